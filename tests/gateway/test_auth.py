"""F72, F73: who may ask for what; keys are compared by digest and appear nowhere."""

from __future__ import annotations

import json
import logging

import pytest

from llmgw.gateway.pages import render_metrics
from llmgw.model.route import KeyTable, Route, RouteTable

from .conftest import key
from .engines import ENGINE_KEY, plain, upstream
from .raw import ask

CANARY = "sk-canary-6f1d2c"


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("", "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Bearer ", "missing_api_key"),
        ("Basic c2stdGVzdA==", "missing_api_key"),
        ("sk-test", "missing_api_key"),
        ("Bearer sk-wrong", "invalid_api_key"),
        ("Bearer sk-tes", "invalid_api_key"),
        ("Bearer sk-test sk-test", "invalid_api_key"),
        ("Bearer \xff\xfe", "invalid_api_key"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models")])
async def test_no_key_no_answer(house, fake, header: str | None, code: str, method: str, path: str) -> None:
    engine = await fake(plain({}))
    home = await house(engine.upstream)
    raw = await home.raw(key=None)
    answer = await raw.ask(ask(), path, method, **({"authorization": header} if header is not None else {}))
    assert (answer.status, answer.error["code"], answer.error["type"]) == (401, code, "authentication_error")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert engine.requests == []


@pytest.mark.parametrize("header", ["Bearer sk-test", "bearer sk-test", "BEARER  sk-test "])
async def test_the_scheme_has_no_case(house, fake, header: str) -> None:
    home = await house((await fake(plain({}))).upstream)
    raw = await home.raw(key=None)
    assert (await raw.ask(ask(), authorization=header)).status == 200


async def test_a_refused_client_keeps_its_connection(house, fake) -> None:
    home = await house((await fake(plain({"ok": True}))).upstream)
    raw = await home.raw(key="sk-wrong")
    assert (await raw.ask(ask())).status == 401
    raw.headers["authorization"] = "Bearer sk-test"
    assert (await raw.ask(ask())).json() == {"ok": True}


async def test_revocation_holds_from_the_next_request(house, fake) -> None:
    home = await house((await fake(plain({}))).upstream)
    raw = await home.raw()
    assert (await raw.ask(ask())).status == 200
    home.keys.publish(KeyTable())
    assert (await raw.ask(ask())).status == 401


async def test_a_key_for_some_models(house, fake) -> None:
    engine = await fake(plain({"ok": True}))
    mine = Route(model="mine", upstreams=(upstream(engine.port, "f1", model="mine"),))
    other = Route(model="other", aliases=("Org/Other",), upstreams=(upstream(engine.port, "f2", model="other"),))
    table = RouteTable({"mine": mine, "other": other, "Org/Other": other})
    home = await house(table=table, keys=[key(models=("mine",))])
    assert (await home.ask(ask("mine"))).status == 200
    for name in ("other", "Org/Other"):
        answer = await home.ask(ask(name))
        assert (answer.status, answer.error["code"], answer.error["param"]) == (403, "model_not_allowed", "model")
    listed = await home.ask(path="/v1/models", method="GET")
    assert [entry["id"] for entry in listed.json()["data"]] == ["mine"]
    assert (await home.ask(path="/v1/models/other", method="GET")).status == 403
    near = await home.ask(ask("othr"))
    assert near.status == 404
    assert "other" not in near.error["message"].lower(), "names it may not use are not offered"
    assert len(engine.requests) == 1


async def test_an_open_endpoint_asks_for_no_key_and_takes_any(house, fake) -> None:
    engine = await fake(plain({}))
    known = key()
    home = await house(engine.upstream, keys=KeyTable({known.hash: known}, open=True))
    for secret in (None, "sk-anything", "sk-test"):
        raw = await home.raw(key=secret)
        assert (await raw.ask(ask())).status == 200
    assert sorted((row.key, row.requests) for row in home.gateway.usage.take()) == [("", 2), ("tester", 1)]


async def test_a_key_in_the_url_is_no_key(house, fake) -> None:
    home = await house((await fake(plain({}))).upstream)
    raw = await home.raw(key=None)
    for name in ("api_key", "key", "access_token"):
        assert (await raw.ask(ask(), f"/v1/chat/completions?{name}=sk-test")).status == 401


async def test_secrets_appear_nowhere(house, fake, caplog: pytest.LogCaptureFixture) -> None:
    """F72: canaries in every field; nothing of them in logs, errors, metrics, usage or reprs."""
    caplog.set_level(logging.DEBUG)

    async def die(engine, reader, writer, request) -> bool:
        return False

    engine = await fake(die)
    home = await house(engine.upstream, keys=[key(CANARY)])
    said = []
    for secret in (CANARY, f"{CANARY}-wrong", None):
        raw = await home.raw(key=secret)
        for path, method in [("/v1/chat/completions", "POST"), ("/v1/nope", "GET"), ("/metrics", "GET")]:
            target = f"{path}?api_key={CANARY}"
            answer = await raw.ask(ask(secret=f"{CANARY}-prompt"), target, method, cookie=CANARY)
            said += [answer.body.decode(), str(answer.headers)]
        raw.writer.write(f"POST / {CANARY}\r\n\r\n".encode())
        said.append((await raw.answer()).body.decode())
    said += [caplog.text, render_metrics(home.gateway), repr(home.failures), repr(home.gateway.usage.take())]
    said += [repr(home.gateway.routes.value), repr(engine.upstream)]
    text = "\n".join(said)
    assert engine.requests
    assert CANARY not in text
    assert ENGINE_KEY not in text


async def test_the_key_never_reaches_the_engine(house, fake) -> None:
    engine = await fake(plain({}))
    home = await house(engine.upstream, keys=[key(CANARY)])
    raw = await home.raw(key=CANARY)
    await raw.ask(ask(), "/v1/chat/completions?k=" + CANARY)
    assert CANARY not in json.dumps([engine.requests[0].line, engine.requests[0].headers])
