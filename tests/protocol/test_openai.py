"""OpenAI's shapes: what is read of a request and of an answer, and what is made."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.protocol.openai import Ask, BadBody, error_body, is_json, model_entry, read_ask, read_usage, rename

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(st.text(max_size=8), values, max_size=5)


def test_what_routing_needs() -> None:
    assert read_ask(b'{"model":"m"}') == Ask(model="m")
    assert read_ask(b'{"messages":[{"model":"no"}],"stream":true,"model":"m"}') == Ask(model="m", stream=True)
    assert read_ask('{"model":"Org/Mödel:7b"}'.encode()).model == "Org/Mödel:7b"


@given(body=bodies, model=st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_any_body_with_a_model_is_understood(body: dict, model: str) -> None:
    body = {**body, "model": model, "stream": False}
    assert read_ask(json.dumps(body).encode()) == Ask(model=model, stream=False)


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_refused_in_words(data: bytes) -> None:
    with contextlib.suppress(BadBody):  # nothing else comes out
        read_ask(data)


@given(body=bodies, model=st.text(max_size=20))
def test_renaming_changes_the_name_and_nothing_else(body: dict, model: str) -> None:
    before = {**body, "model": "old"}
    assert json.loads(rename(json.dumps(before).encode(), model)) == {**before, "model": model}


def test_renaming_keeps_the_bytes_of_every_other_value() -> None:
    renamed = rename(b'{"a": 1.50e1, "model": "x", "b": [ {"model":"x"} , "\\u00e4"]}', "y")
    assert b"1.50e1" in renamed
    assert b'[ {"model":"x"} , "\\u00e4"]' in renamed
    assert json.loads(renamed)["model"] == "y"


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}', (3, 4)),
        (b'{"usage" : { "total_tokens": 7, "completion_tokens": 4, "prompt_tokens": 3 } }', (3, 4)),
        (b'{"usage":{"prompt_tokens":3,"total_tokens":3}}', (3, 0)),
        (b'{"usage":{"completion_tokens":4,"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":1}}}', (3, 4)),
        (
            b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n{"usage":{"prompt_tokens":3,"completion_tokens":4}}',
            (3, 4),
        ),
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\ndata: {"usage":null}\n\n', (3, 4)),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":9,\\"completion_tokens\\":9}"}', None),
        (b'{"usage":null}', None),
        (b'{"usage":{}}', None),
        (b'{"usage":{"prompt_tokens":-3}}', None),
        (b'ens":4}}', None),
        (b"", None),
    ],
    ids=range(12),
)
def test_usage(tail: bytes, tokens: tuple[int, int] | None) -> None:
    assert read_usage(tail) == tokens


@given(st.text(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_generated_text_cannot_forge_usage(text: str, prompt: int, completion: int) -> None:
    forged = text + '"usage":{"prompt_tokens":999999999,"completion_tokens":999999999}' + text
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    before = json.dumps({"choices": [{"text": forged}], "usage": usage}, separators=(",", ":")).encode()
    behind = json.dumps({"usage": usage, "choices": [{"text": forged}]}, separators=(",", ":")).encode()
    assert read_usage(before) == read_usage(behind) == (prompt, completion)
    assert read_usage(json.dumps({"text": forged}).encode()) is None


def test_errors() -> None:
    made = json.loads(error_body('a "quoted"\nmessage', "server_error", "code"))
    assert made == {"error": {"message": 'a "quoted"\nmessage', "type": "server_error", "param": None, "code": "code"}}


@pytest.mark.parametrize(
    ("body", "is_it"), [(b"{}", True), (b'{"error":{}}', True), (b"[]", False), (b"", False), (b"[" * 10**5, False)]
)
def test_is_json(body: bytes, is_it: bool) -> None:
    assert is_json(body) is is_it


def test_models() -> None:
    entry = model_entry("m", 5, task="chat")
    assert entry == {"id": "m", "object": "model", "created": 5, "owned_by": "llmgw", "task": "chat"}
