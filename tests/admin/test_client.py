"""The client before something else than its control plane, and with names and secrets that no request can carry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw import __version__
from llmgw.admin.client import AdminClient, part, secret_word
from llmgw.config.home import Home
from llmgw.errors import BadReply, LlmgwError, Refused, Unreachable, UsageError
from llmgw.model.requests import NewKey, Said


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes, tmp_path: Path) -> AsyncIterator[AdminClient]:
    """A client of a server that answers everything with the same."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = AdminClient(Home(tmp_path), url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "body", [b'{"message": "m", "colour": "red"}', b"{}", b"[]", b"null", b'{"message": 7}'], ids=repr
)
async def test_a_reply_of_another_version_is_a_sentence(body: bytes, tmp_path: Path) -> None:
    async with answering(200, body, tmp_path) as client:
        with pytest.raises(BadReply) as caught:
            await client.get("/x", Said)
    assert "says what this command does not know (Said" in caught.value.message
    assert __version__ in caught.value.fix
    assert "pydantic" not in str(caught.value)
    assert (caught.value.exit_status, caught.value.code) == (1, "other_version")


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff\xfe", b'{"message": "'], ids=repr)
@pytest.mark.parametrize("status", [200, 404, 500])
async def test_something_else_that_answers_there_is_told_from_a_control_plane(
    status: int, body: bytes, tmp_path: Path
) -> None:
    async with answering(status, body, tmp_path) as client:
        with pytest.raises(Unreachable, match=f"no control plane of llmgw, with status {status}") as caught:
            await client.get("/x", Said)
    assert "LLMGW_ADMIN_URL" in caught.value.fix


@pytest.mark.parametrize(
    "body",
    [b'{"error": "broken"}', b'{"error": {"exit_status": "x"}}', b'{"error": {"message": "No."}}', b"[]", b"7"],
    ids=repr,
)
async def test_an_error_that_is_none_of_ours(body: bytes, tmp_path: Path) -> None:
    async with answering(400, body, tmp_path) as client:
        with pytest.raises(Unreachable, match="no control plane"):
            await client.get("/x", Said)


async def test_a_proxy_before_a_control_plane_that_is_down(tmp_path: Path) -> None:
    async with answering(502, b"<h1>Bad Gateway</h1>", tmp_path) as client:
        with pytest.raises(Unreachable, match="answers a proxy, with status 502"):
            await client.get("/x", Said)


async def test_an_error_of_ours_stays_itself(tmp_path: Path) -> None:
    body = b'{"error": {"code": "c", "message": "No.", "fix": "Do.", "exit_status": 4}}'
    async with answering(409, body, tmp_path) as client:
        with pytest.raises(Refused, match=r"No\. Do\."):
            await client.get("/x", Said)


@pytest.mark.parametrize("line", [b'{"at": 1, "shape": "new"}', b"data", b'{"at"'], ids=repr)
async def test_an_event_of_another_version_is_a_sentence(line: bytes, tmp_path: Path) -> None:
    async with answering(200, b"id: 1\ndata: " + line + b"\n\n", tmp_path) as client:
        with pytest.raises(LlmgwError, match=r"does not know|no control plane"):
            async for _ in client.events():
                pass


async def test_an_event_without_an_end_is_a_sentence(tmp_path: Path) -> None:
    async with answering(200, b"data: " + b"x" * (3 << 20), tmp_path) as client:
        with pytest.raises(BadReply, match="longer than 1 MiB"):
            async for _ in client.events():
                pass


def test_what_is_not_text_is_no_part_of_a_path() -> None:
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        part("a\udcff")
    assert part("größe/1") == "gr%C3%B6%C3%9Fe%2F1"


async def test_what_is_not_text_is_in_no_body(tmp_path: Path) -> None:
    async with answering(200, b"{}", tmp_path) as client:
        with pytest.raises(UsageError, match="is not UTF-8 text"):
            await client.post("/keys", Said, NewKey(name="k", models=("\udcff",)))


async def test_what_is_not_text_is_no_query(tmp_path: Path) -> None:
    async with answering(200, b"{}", tmp_path) as client:
        with pytest.raises(UsageError, match="is not UTF-8 text"):
            await client.get("/x", Said, node="\udcff")
        with pytest.raises(UsageError, match="is not UTF-8 text"):
            async for _ in client.events(node="\udcff"):
                pass


@pytest.mark.parametrize("value", ["sk\nb", "sk\rb", "sk b", "sk\x00", "sk\u20ac", "sk\udcff", "a\tb"], ids=repr)
def test_a_secret_that_no_header_carries_is_not_repeated(value: str) -> None:
    with pytest.raises(UsageError, match="LLMGW_API_KEY is no single word") as caught:
        secret_word("LLMGW_API_KEY", value)
    assert value not in str(caught.value)
    assert secret_word("LLMGW_API_KEY", " sk-llmgw-x\n") == "sk-llmgw-x"


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "http://\udcff"], ids=repr)
async def test_an_address_that_is_none(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        AdminClient(Home(tmp_path), url=url)


async def test_an_admin_token_that_no_header_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_ADMIN_TOKEN", "a\nb")
    with pytest.raises(UsageError, match="LLMGW_ADMIN_TOKEN is no single word"):
        AdminClient(Home(tmp_path), url="http://127.0.0.1:1")
