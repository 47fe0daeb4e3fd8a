"""What things are: frozen, strict about our own, lenient about a node's; secrets that show themselves to nobody."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from llmgw.errors import BadReply, LlmgwError, NotFound, from_dict
from llmgw.model.base import is_name
from llmgw.model.catalog import Model
from llmgw.model.holder import Hint, Published
from llmgw.model.key import PREFIX, ApiKey, digest, new_key
from llmgw.model.listing import Listed
from llmgw.model.node import Address
from llmgw.model.probe import Memory
from llmgw.model.replica import Replica, ReplicaState, Shard
from llmgw.model.secret import MASK, Secret
from llmgw.model.weights import FetchState, Weights

CANARY = "canary-7d3f"


# Secrets (F72)


def forms(value: object) -> list[str]:
    return [repr(value), str(value), f"{value}", f"{value!r:>40}", repr([value]), repr({"k": value})]


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret(CANARY)
    for form in forms(secret):
        assert CANARY not in form
        assert MASK in form
    assert secret.reveal() == CANARY


def test_nor_does_a_record_that_holds_it() -> None:
    listed = Listed.model_validate({"replica": "m-1", "attempt": 1, "alive": True, "key_env": {"KEY": CANARY}})
    assert listed.key_env["KEY"].reveal() == CANARY
    for form in (repr(listed), str(listed), listed.model_dump_json(), json.dumps(listed.model_dump(mode="json"))):
        assert CANARY not in form


def test_nor_a_traceback_nor_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(CANARY)
    try:
        raise ValueError(secret)
    except ValueError:
        text = traceback.format_exc()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").warning("the key is %s, %r", secret, [secret])
    assert CANARY not in text
    assert CANARY not in caplog.text


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert copy.deepcopy(Secret("a")) == Secret("a")
    assert Secret("schlüssel") != Secret("schlussel")


def test_keys_are_random_and_only_their_digest_is_kept() -> None:
    made = {new_key().reveal() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith(PREFIX) and len(key) > 50 for key in made)
    assert digest("sk") == digest("sk") != digest("sk ")
    assert len(digest("\udcff")) == 64, "whatever a header holds has a digest"


def test_a_key_allows_all_models_or_those_it_names() -> None:
    assert ApiKey(name="k", hash="h", hint="x").allows("m")
    some = ApiKey(name="k", hash="h", hint="x", models=("m",))
    assert some.allows("m")
    assert not some.allows("n")


# Names


@given(st.text(max_size=70))
def test_a_name_is_safe_wherever_it_ends_up(text: str) -> None:
    """F67: in a path, in a shell, in a URL, in a log."""
    if is_name(text):
        assert text.isascii()
        assert text not in (".", "..")
        assert not set(text) & set("/\\;$`'\"()<>|&*?~ \n\r\t\0")
        assert not text.startswith("-")
        assert len(text) <= 63


@pytest.mark.parametrize("name", ["a", "gpu01", "qwen2.5-0.5b_instruct", "0", "a" * 63])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["a\n", "\na", "A", "", ".a", "-a", "a" * 64, "ａ"])
def test_no_names(name: str) -> None:
    assert not is_name(name)


# Records


def test_ours_are_strict_and_a_nodes_may_say_more() -> None:
    with pytest.raises(ValidationError):
        Shard(node="n", nod="m")  # type: ignore[call-arg]
    assert Memory.model_validate({"total": 5, "novelty": 1}).total == 5
    with pytest.raises(ValidationError):
        Shard(node="n").attempt = 5  # type: ignore[misc]


ENTRY: dict[str, Any] = {
    "name": "m",
    "source": "pypi:p/m.gguf",
    "profiles": [{"name": "cpu", "engine": "llamacpp", "args": ["--threads", "2"]}],
}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"scaling": {"min": 3}}, True),
        ({"aliases": ["x"]}, True),
        ({"lost_after": "1h"}, True),
        ({"routing": "prefix"}, True),
        ({"max_output": 5}, False),
        ({"source": "pypi:p/other.gguf"}, False),
        ({"context_length": 4096}, False),
        ({"task": "embed"}, False),
        ({"profiles": [{"name": "cpu", "engine": "llamacpp"}]}, False),
    ],
)
def test_a_revision_is_what_runs_not_how_many_or_what_they_are_called(change: dict[str, Any], same: bool) -> None:
    before = Model.model_validate(ENTRY).revision("v1")
    assert (Model.model_validate({**ENTRY, **change}).revision("v1") == before) is same
    assert Model.model_validate(ENTRY).revision("v2") != before


def test_a_revision_survives_being_stored() -> None:
    made = Model.model_validate(ENTRY)
    assert Model.model_validate_json(made.model_dump_json()).revision("v") == made.revision("v")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"host": "h", "user": "u"}, "u@h"),
        ({"host": "h", "user": "u", "port": 2222}, "u@h:2222"),
        ({"host": "fe80::1", "user": "u"}, "u@[fe80::1]"),
        ({"host": "local", "user": "u"}, "local"),
    ],
)
def test_addresses(fields: dict[str, Any], text: str) -> None:
    assert str(Address(**fields)) == text


@pytest.mark.parametrize(
    ("memory", "usable"),
    [
        ({}, None),
        ({"cgroup_limit": 5}, None),
        ({"total": 9}, 9),
        ({"total": 9, "cgroup_limit": 5}, 5),
        ({"total": 5, "cgroup_limit": 9}, 5),
        ({"total": 9, "cgroup_limit": 0}, 9),
    ],
)
def test_usable_memory(memory: dict[str, int], usable: int | None) -> None:
    assert Memory(**memory).usable == usable


@pytest.mark.parametrize("missing", ["pid", "start_ticks", "boot_id"])
def test_a_process_is_known_by_all_three_or_not_at_all(missing: str) -> None:
    whole: dict[str, Any] = {"replica": "r", "attempt": 1, "alive": True, "pid": 1, "start_ticks": 2, "boot_id": "b"}
    assert Listed(**whole).process is not None
    assert Listed(**{**whole, missing: None}).process is None


def test_states_fall_into_coming_going_and_over() -> None:
    states = {state: (state.coming, state.going, state.over) for state in ReplicaState}
    assert all(sum(kinds) <= 1 for kinds in states.values())
    assert [state for state, kinds in states.items() if not any(kinds)] == ["ready", "lost", "unclaimed"]
    one = Replica(
        id="r", model="m", revision="x", profile="p", engine="e", engine_version="v", shards=(Shard(node="n"),)
    )
    assert one.nodes == ("n",)
    assert one.lead.rank == 0


def test_progress_of_weights() -> None:
    assert Weights(source="s").progress is None
    assert Weights(source="s", state=FetchState.FETCHING, done=5, size=10).progress == 0.5
    assert Weights(source="s", state=FetchState.PRESENT).progress == 1.0


# Errors


def test_an_error_is_a_sentence_with_a_next_step() -> None:
    error = NotFound("There is no node x.", fix="Did you mean y?", near=["y"])
    assert str(error) == "There is no node x. Did you mean y?"
    assert str(NotFound("There is no node x.")) == "There is no node x."
    assert error.data == {"near": ["y"]}


@pytest.mark.parametrize("body", [{}, {"exit_status": 99, "message": 5}, {"exit_status": 3}])
def test_whatever_crosses_the_api_is_an_error(body: dict[str, Any]) -> None:
    assert isinstance(from_dict(body), LlmgwError)
    assert isinstance(from_dict({"exit_status": 3}), NotFound)


def test_unknown_is_neither_failure_nor_success() -> None:
    assert BadReply("x").exit_status == 1
    assert BadReply("x").http_status == 502


# Holders


async def test_what_is_published_is_there_at_once_and_wakes_those_who_wait() -> None:
    held = Published(1)
    heard: list[int] = []
    held.subscribe(heard.append)
    waiting = [asyncio.create_task(held.changed()) for _ in range(3)]
    await asyncio.sleep(0)
    held.publish(2)
    held.publish(3)
    assert held.value == 3
    assert await asyncio.gather(*waiting) == [3, 3, 3]
    assert heard == [2, 3]


async def test_a_hint_is_taken_once_and_none_is_lost_while_nobody_waits() -> None:
    hint = Hint()
    hint.give()
    hint.give()
    assert await hint.wait(10)
    assert not await hint.wait(0.001)
    waiting = asyncio.create_task(hint.wait())
    await asyncio.sleep(0)
    hint.give()
    assert await waiting
