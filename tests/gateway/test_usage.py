"""What is counted for whom: exact where the engine says, an estimate where it does not, and nothing twice."""

from __future__ import annotations

import pytest

from llmgw.model.catalog import Task
from llmgw.model.usage import UsageRow

from .conftest import key, table
from .engines import plain, stream
from .raw import ask


async def test_each_key_and_model_has_a_row(house, sim) -> None:
    engine = sim("r1", "--max-tokens", "4")
    home = await house(engine.upstream, keys=[key("sk-a", "anna"), key("sk-b", "bert")])
    for secret, times in (("sk-a", 2), ("sk-b", 1)):
        raw = await home.raw(key=secret)
        for _ in range(times):
            await raw.ask(ask())
    rows = sorted(home.gateway.usage.take(), key=lambda row: row.key)
    assert rows == [
        UsageRow(key="anna", model="m", requests=2, prompt_tokens=6, completion_tokens=8),
        UsageRow(key="bert", model="m", requests=1, prompt_tokens=3, completion_tokens=4),
    ]
    assert home.gateway.usage.take() == []


async def test_an_alias_counts_as_its_model(house, sim) -> None:
    home = await house(table=table(sim().upstream, aliases=("Org/M",)))
    await home.ask(ask("m"))
    await home.ask(ask("Org/M"))
    (row,) = home.gateway.usage.take()
    assert (row.model, row.requests) == ("m", 2)


async def test_a_stream_with_usage_is_exact(house, sim) -> None:
    home = await house(sim("r1", "--max-tokens", "5").upstream)
    await home.ask(ask(stream=True, stream_options={"include_usage": True}))
    (row,) = home.gateway.usage.take()
    assert (row.prompt_tokens, row.completion_tokens) == (3, 5)


async def test_a_stream_without_usage_is_exact_too_and_the_client_sees_nothing_of_it(house, sim) -> None:
    home = await house(sim("r1", "--max-tokens", "50").upstream)
    answer = await home.ask(ask(stream=True))
    assert b"usage" not in answer.body, "it was not asked for, so it is not added"
    assert answer.whole
    assert answer.body.endswith(b"}\n\ndata: [DONE]\n\n")
    (row,) = home.gateway.usage.take()
    assert (row.prompt_tokens, row.completion_tokens) == (3, 50)


@pytest.mark.parametrize("said", [{"include_usage": False}, {}, None])
async def test_what_the_client_says_of_it_stands(house, sim, said: object) -> None:
    home = await house(sim("r1", "--max-tokens", "50").upstream)
    answer = await home.ask(ask(stream=True, stream_options=said))
    assert b"usage" not in answer.body
    (row,) = home.gateway.usage.take()
    assert row.prompt_tokens == 0
    assert 50 <= row.completion_tokens <= 52


async def test_an_engine_that_ignores_the_question_is_estimated(house, fake) -> None:
    events = [b'{"choices":[{"delta":{"content":"a"}}]}'] * 5 + [b"[DONE]"]
    home = await house((await fake(stream(*events))).upstream)
    answer = await home.ask(ask(stream=True))
    assert answer.body == b"".join(b"data: %b\n\n" % event for event in events)
    (row,) = home.gateway.usage.take()
    assert (row.prompt_tokens, row.completion_tokens) == (0, 6)


USAGE = b'{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}'


@pytest.mark.parametrize(
    "events",
    [
        [b"{}", USAGE, b"[DONE]"],
        [b'{"usage":null}', USAGE, b"[DONE]"],
        [USAGE],
        [USAGE.replace(b":", b": "), b"[DONE]"],
        [b'{"content":"\\"usage\\":{\\"prompt_tokens\\":999}"}', USAGE, b"[DONE]"],
        [USAGE, b'{"timings":{"a":1}}', b"[DONE]"],
    ],
    ids=["last but one", "null before", "no done", "spaces", "forged in text", "something behind"],
)
async def test_where_engines_put_it(house, fake, events: list[bytes]) -> None:
    home = await house((await fake(stream(*events))).upstream)
    await home.ask(ask(stream=True))
    (row,) = home.gateway.usage.take()
    assert (row.prompt_tokens, row.completion_tokens) == (11, 7)


async def test_embeddings_have_no_completion(house, sim) -> None:
    home = await house(table=table(sim().upstream, task=Task.EMBED))
    await home.ask(b'{"model":"m","input":["a b","c"]}', "/v1/embeddings")
    (row,) = home.gateway.usage.take()
    assert (row.requests, row.prompt_tokens, row.completion_tokens) == (1, 3, 0)


@pytest.mark.parametrize(("status", "failed"), [(400, 0), (404, 0), (429, 0), (500, 1), (503, 1)])
async def test_errors_of_the_engine(house, fake, status: int, failed: int) -> None:
    lie = {"error": {"message": "x"}, "usage": {"prompt_tokens": 5}}
    home = await house((await fake(plain(lie, status))).upstream)
    await home.ask(ask())
    (row,) = home.gateway.usage.take()
    assert (row.requests, row.failed, row.prompt_tokens) == (1, failed, 0)


async def test_what_never_reached_a_model_is_not_counted(house, fake) -> None:
    home = await house((await fake(plain({}))).upstream, keys=[key(models=("m",)), key("sk-x", "x", ("other",))])
    await home.ask(b"no json")
    await home.ask(ask("unknown"))
    raw = await home.raw(key="sk-x")
    assert (await raw.ask(ask())).status == 403
    assert home.gateway.usage.take() == []


async def test_a_request_that_moved_to_another_replica_counts_once(house, fake) -> None:
    async def hang_up(engine, reader, writer, request) -> bool:
        return False

    bad, good = await fake(hang_up, "bad"), await fake(plain({"usage": {"prompt_tokens": 1}}), "good")
    home = await house(bad.upstream, good.upstream)
    for _ in range(4):
        await home.ask(ask())
    (row,) = home.gateway.usage.take()
    assert (row.requests, row.prompt_tokens, row.failed) == (4, 4, 0)
    assert home.traffic.served == {"good": 4}
