"""Every error is OpenAI-shaped, says what to do, and carries an id; clients' own libraries understand it."""

from __future__ import annotations

import re
import ssl

import openai
import pytest

from llmgw.gateway import problems

from .conftest import table
from .engines import plain
from .raw import CHAT, Answer, ask

DEEP = b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def check_shape(answer: Answer) -> None:
    assert answer.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[\w.-]{1,128}", answer.headers["x-request-id"])
    assert set(answer.json()) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["message"][0].isupper()
    assert answer.error["message"].rstrip()[-1] in ".?!…"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"not json", None),
        (b"{", None),
        (b"[]", None),
        (b'"m"', None),
        (b"null", None),
        (b"{}", "model"),
        (b'{"model":""}', "model"),
        (b'{"model":null}', "model"),
        (b'{"model":7}', "model"),
        (b'{"model":["m"]}', "model"),
        (b'{"model":"m","stream":"yes"}', "stream"),
        (b'{"model":"m","stream":1}', "stream"),
        (b'{"model":"m"}{"model":"m"}', None),
        (b'{"model":"m","x":"\xff\xfe"}', None),
        (b'{"model":"\xff"}', None),
        (b'{"model":"m","x":NaN}', None),
        (b"\xef\xbb\xbf{}", None),
        (b"\x1f\x8b\x08\x00gzip", None),
        (DEEP, None),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_bad_bodies(house, fake, body: bytes, param: str | None, path: str) -> None:
    engine = await fake(plain({}))
    home = await house(engine.upstream)
    answer = await home.ask(body, path)
    check_shape(answer)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (400, "invalid_body", "invalid_request_error")
    assert answer.error["param"] == param
    assert engine.requests == []
    assert home.traffic.inflight == {}


@pytest.mark.parametrize("name", ["smolm2", "Smollm2", "HuggingFaceTB/SmolLM2-135M"])
async def test_an_unknown_model_names_the_nearest(house, name: str) -> None:
    routes = table(model="smollm2-135m-instruct", aliases=("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"))
    answer = await (await house(table=routes)).ask(ask(name))
    check_shape(answer)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert f"`{name}`" in answer.error["message"]
    assert "Did you mean `" in answer.error["message"]


@pytest.mark.parametrize(
    "name",
    ["x" * 100_000, "\n\r\nset-cookie: a", "\x00", "../../etc/passwd", "http://169.254.169.254/", "m\ud83d\ude00"],
)
async def test_nasty_model_names(house, name: str) -> None:
    """F74: a name is looked up in a table and steers nothing else."""
    answer = await (await house()).ask(ask(name))
    check_shape(answer)
    assert answer.status == 404
    assert len(answer.body) < 2000
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "unknown_path"),
        ("POST", "/v1/nope", 404, "unknown_path"),
        ("POST", "/v1/chat/completions/", 404, "unknown_path"),
        ("GET", "/v1/modelsx", 404, "unknown_path"),
        ("GET", "/api/v1/snapshot", 404, "unknown_path"),
        ("GET", "/docs", 404, "unknown_path"),
        ("GET", CHAT, 405, "wrong_method"),
        ("POST", "/v1/models", 405, "wrong_method"),
        ("DELETE", "/v1/models/m", 405, "wrong_method"),
        ("OPTIONS", CHAT, 405, "wrong_method"),
        ("GET", "/v1/models/nope", 404, "model_not_found"),
    ],
)
async def test_paths_and_methods(house, method: str, path: str, status: int, code: str) -> None:
    """F75: among them, no admin route is here."""
    raw = await (await house()).raw()
    for _ in range(2):
        answer = await raw.ask(ask(), path, method)
        check_shape(answer)
        assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT),
        ("/completions", "/v1/completions"),
        ("/embeddings", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/models/m", "/v1/models/m"),
        ("/v1/v1/chat/completions", CHAT),
        ("/v1/chat/completions/", CHAT),
        ("/v1/chat/completion", CHAT),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_base_url_without_v1(house, path: str, meant: str, method: str) -> None:
    answer = await (await house()).ask(ask(), path, method)
    check_shape(answer)
    assert (answer.status, answer.error["code"]) == (404, "unknown_path")
    assert answer.error["message"].endswith(f"Did you mean {meant}?")


@pytest.mark.parametrize("path", ["/", "/nope", "/" * 5000, "/v1", "/v1/audio/speech"])
def test_no_guess_where_there_is_none(path: str) -> None:
    assert "Did you mean" not in problems.no_such_path("GET", path).message


@pytest.mark.parametrize("reason", ["m is unplaceable: hf:org/x: there is no such name.", "it is off. ", "it is off"])
def test_an_unavailable_model(reason: str) -> None:
    """One full stop; and nobody is told to try again when nothing is on its way."""
    for coming in (True, False):
        message = problems.unavailable("m", reason, coming=coming).message
        assert ".." not in message
        assert ("Try again" in message) == coming
        assert message.endswith(".")
    assert problems.unavailable("m", "", coming=False).message == "The model `m` has no replica that can answer."


@pytest.mark.parametrize(
    ("exc", "said"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (OSError("Multiple exceptions: [Errno 1] a, [Errno -2] b"), "Multiple exceptions: a, b"),
        (ssl.SSLError(1, "[SSL: KEY_VALUES_MISMATCH] key values mismatch (_ssl.c:4069)"), "key values mismatch"),
        (TimeoutError(), ""),
    ],
)
def test_no_error_numbers_for_people(exc: Exception, said: str) -> None:
    assert problems.words(exc) == said


@pytest.mark.parametrize("given", ["abc-123", "a.b:c_d", "0" * 128])
async def test_a_sane_request_id_is_kept(house, given: str) -> None:
    home = await house()
    for path, method in [(CHAT, "POST"), ("/v1/models", "GET"), ("/nope", "GET")]:
        assert (await home.ask(ask("x"), path, method, x_request_id=given)).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "0" * 129, "ä", "a;b", "<script>"])
async def test_an_odd_request_id_is_replaced(house, given: str) -> None:
    home = await house()
    first = (await home.ask(ask("x"), x_request_id=given)).headers["x-request-id"]
    second = (await home.ask(ask("x"), x_request_id=given)).headers["x-request-id"]
    assert given not in (first, second)
    assert first != second


async def test_errors_of_the_engine_are_shown_as_they_are(house, sim) -> None:
    home = await house(sim("r1", "--context", "2").upstream)
    answer = await home.ask(ask())
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.error["message"] == "the prompt has 3 tokens, the context 2"
    assert answer.headers["x-request-id"]


async def test_the_official_client_raises_what_it_should(house, sim) -> None:
    home = await house(sim("r1", "--fail-every", "1").upstream)
    messages = [{"role": "user", "content": "x"}]
    async with openai.AsyncOpenAI(base_url=home.url, api_key="sk-test", max_retries=0) as api:
        with pytest.raises(openai.NotFoundError, match="Did you mean"):
            await api.chat.completions.create(model="mm", messages=messages)
        with pytest.raises(openai.InternalServerError, match="told to fail"):
            await api.chat.completions.create(model="m", messages=messages)
    async with openai.AsyncOpenAI(base_url=home.url, api_key="sk-no", max_retries=0) as api:
        with pytest.raises(openai.AuthenticationError, match="not known here"):
            await api.models.list()


async def test_a_bug_of_ours_is_a_500_and_not_a_hang(house, fake, caplog: pytest.LogCaptureFixture) -> None:
    from dataclasses import replace

    async def broken(factory):
        raise RuntimeError("boom")

    engine = await fake(plain({}))
    home = await house(replace(engine.upstream, connect=broken))
    answer = await home.ask(ask())
    check_shape(answer)
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert "boom" in caplog.text
    assert home.traffic.inflight == {}


async def test_a_bug_in_the_choice_is_a_500_too(house, fake, caplog: pytest.LogCaptureFixture) -> None:
    home = await house((await fake(plain({"ok": True}))).upstream)
    raw = await home.raw()
    choose, home.gateway.router.choose = home.gateway.router.choose, None
    answer = await raw.ask(ask())
    check_shape(answer)
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert "NoneType" in caplog.text
    home.gateway.router.choose = choose
    assert (await raw.ask(ask())).json() == {"ok": True}


async def test_a_bug_in_a_page_is_a_500_too(house, caplog: pytest.LogCaptureFixture) -> None:
    home = await house()
    home.gateway.models = None
    answer = await home.ask(path="/v1/models", method="GET")
    check_shape(answer)
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert "NoneType" in caplog.text


async def test_a_dead_engine_does_not_fill_the_log(house, caplog: pytest.LogCaptureFixture) -> None:
    from .engines import upstream

    home = await house(upstream(1, "dead"))
    for _ in range(20):
        assert (await home.ask(ask())).status == 502
    assert caplog.text.count("cannot be reached") == 1
    assert len(home.failures) == 20, "whoever watches is told each time"
