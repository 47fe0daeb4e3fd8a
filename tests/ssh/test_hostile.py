"""What a broken or malicious node may do to us: nothing but fail its own calls (F22, F23, F48-F55, F78)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import pytest_asyncio

from llmgw.errors import BadReply, LinkLost, LlmgwError, NodeError, Refused, TimedOut
from llmgw.pki.sshkey import public_key
from llmgw.ssh import run as run_module
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.identity import Login

from .conftest import at
from .misbehaving import Misbehaving, Speaker, framed

GOOD = {"result": {"fine": True}}


@pytest_asyncio.fixture
async def node(home: Path, tmp_path: Path) -> AsyncIterator[Misbehaving]:
    server = Misbehaving(public_key(home), tmp_path / "key")
    await server.start()
    yield server
    await server.close()


@pytest_asyncio.fixture
async def link(node: Misbehaving, login: Login) -> AsyncIterator[Connection]:
    connection = await connect(at(node), login=login, host_key=node.host_key)
    yield connection
    await connection.close()
    assert connection.channels == 0


async def call(link: Connection, **more: Any) -> dict[str, Any]:
    return await link.run_program("x", b"", {}, **{"deadline": 5, **more})


async def failed(link: Connection, **more: Any) -> LlmgwError:
    with pytest.raises(LlmgwError) as caught:
        await call(link, **more)
    return caught.value


def sends(*parts: bytes | dict[str, Any], status: int = 0) -> Any:
    async def behave(speaker: Speaker) -> None:
        for part in parts:
            await speaker.write(part if isinstance(part, bytes) else framed(speaker.token, part))
        speaker.end(status)

    return behave


async def test_a_well_behaved_reply(node: Misbehaving, link: Connection) -> None:
    node.behave = sends(GOOD)
    assert await call(link) == {"fine": True}


async def test_a_reply_cut_at_any_byte_is_unknown(node: Misbehaving, link: Connection) -> None:
    """F48, over the wire; tests/protocol cuts at every byte."""
    for left in (2, 3, 20, 60, 90):

        async def behave(speaker: Speaker, left: int = left) -> None:
            await speaker.write(framed(speaker.token, GOOD)[:-left])
            speaker.end()

        node.behave = behave
        error = await failed(link)
        assert isinstance(error, BadReply)
        assert error.code in ("truncated", "no_answer")


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"result": {"a": 1}, "error": {}}, "damaged"),
        ({"result": [1]}, "damaged"),
        ({"event": 5}, "damaged"),
        ({}, "damaged"),
        ({"error": "words"}, "damaged"),
        ({"result": {"deep": None}}, None),
    ],
)
async def test_frames_that_are_none_of_ours(node: Misbehaving, link: Connection, part: Any, code: str | None) -> None:
    node.behave = sends(part)
    if code is None:
        assert await call(link) == part["result"]
    else:
        error = await failed(link)
        assert (type(error), error.code) == (BadReply, code)


async def test_wrong_digest_length_and_token(node: Misbehaving, link: Connection) -> None:
    async def wrong_digest(speaker: Speaker) -> None:
        await speaker.frame(GOOD, digest="0" * 32)

    async def too_long(speaker: Speaker) -> None:
        await speaker.frame(GOOD, length=99_999_999)

    async def bad_header(speaker: Speaker) -> None:
        await speaker.write(b"#" + speaker.token.encode() + b" x y\n")

    async def stranger(speaker: Speaker) -> None:
        await speaker.write(framed("f" * 32, GOOD))
        speaker.end()

    for behave, code in (
        (wrong_digest, "digest"),
        (too_long, "oversized"),
        (bad_header, "damaged"),
        (stranger, "no_answer"),
    ):
        node.behave = behave
        error = await failed(link)
        assert (type(error), error.code) == (BadReply, code)


async def test_json_that_is_a_trap(node: Misbehaving, link: Connection) -> None:
    """F51."""
    for text in (
        b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"result":{"a":NaN}}',
        b'{"result":{"a":1,"a":2}}',
        b'{"result":{"a":' + b"9" * 100_000 + b"}}",
        b"\xff\xfe{}",
        b"",
    ):

        async def behave(speaker: Speaker, text: bytes = text) -> None:
            await speaker.frame(text)

        node.behave = behave
        error = await failed(link)
        assert (type(error), error.code) == (BadReply, "damaged")


async def test_an_endless_line(node: Misbehaving, link: Connection) -> None:
    """F50."""

    async def behave(speaker: Speaker) -> None:
        while True:
            await speaker.write(b"y" * 65536)

    node.behave = behave
    began = time.monotonic()
    assert (await failed(link)).code == "oversized"
    assert time.monotonic() - began < 5


async def test_words_from_a_node_carry_no_escapes(node: Misbehaving, link: Connection) -> None:
    """F52."""
    node.behave = sends({"error": {"code": "x\x1b[2J", "message": "a\nb\x1b]0;c\x07" + "d" * 5000, "fix": 7}})
    error = await failed(link)
    assert isinstance(error, NodeError)
    assert error.message.startswith("a b ]0;c d")
    assert len(error.message) <= 2000
    assert (error.code, error.fix) == ("x [2J", "")


async def test_only_the_first_answer_counts(node: Misbehaving, link: Connection) -> None:
    node.behave = sends(GOOD, {"error": {"code": "late", "message": "late"}}, b"noise" * 10_000)
    assert await call(link) == {"fine": True}


async def test_no_answer_ends_at_the_deadline_and_frees_the_slot(
    node: Misbehaving, link: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "GRACE", 0.2)

    async def silence(speaker: Speaker) -> None:
        await asyncio.sleep(60)

    node.behave = silence
    began = time.monotonic()
    errors = await asyncio.gather(*(failed(link, deadline=0.5) for _ in range(3)))
    assert [(type(error), error.code) for error in errors] == [(TimedOut, "deadline")] * 3
    assert time.monotonic() - began < 1.5
    node.behave = sends(GOOD)
    assert await call(link) == {"fine": True}


async def test_a_late_reply_reaches_nobody(
    node: Misbehaving, link: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F55."""
    monkeypatch.setattr(run_module, "GRACE", 0.1)
    events: list[Any] = []

    async def late(speaker: Speaker) -> None:
        await asyncio.sleep(0.5)
        await speaker.frame({"event": {"late": True}})
        await speaker.frame(GOOD)

    node.behave = late
    assert (await failed(link, deadline=0.2, on_event=events.append)).code == "deadline"
    await asyncio.sleep(0.5)
    assert events == []


async def test_a_server_that_lingers_after_the_result(node: Misbehaving, link: Connection) -> None:
    async def behave(speaker: Speaker) -> None:
        await speaker.frame(GOOD)
        await asyncio.sleep(60)

    node.behave = behave
    began = time.monotonic()
    assert await call(link) == {"fine": True}
    assert time.monotonic() - began < 3


async def test_the_connection_closed_in_the_middle(node: Misbehaving, link: Connection) -> None:
    """F20, politely and not."""

    async def behave(speaker: Speaker) -> None:
        await speaker.write(framed(speaker.token, GOOD)[:30])
        node.connection.close()

    node.behave = behave
    error = await failed(link)
    assert (type(error), error.code) == (LinkLost, "link_lost")
    assert link.closed


async def test_a_channel_closed_without_a_status_is_no_success(node: Misbehaving, link: Connection) -> None:
    async def behave(speaker: Speaker) -> None:
        speaker.channel.close()

    node.behave = behave
    error = await failed(link)
    assert (type(error), error.code, error.data["exit_status"]) == (BadReply, "no_answer", None)
    assert not link.closed


async def test_an_exec_that_is_never_answered_counts_as_dead_in_the_end(node: Misbehaving, link: Connection) -> None:
    """F23: deadline, the slot is free, and after three in a row the connection is given up."""
    node.behave, node.answer_exec = sends(GOOD), None
    errors = [await failed(link, deadline=1.1) for _ in range(3)]
    assert [error.code for error in errors[:2]] == ["open_timeout"] * 2
    async with asyncio.timeout(2):
        await link.wait_closed()


async def test_an_open_that_is_never_answered(node: Misbehaving, link: Connection) -> None:
    over = asyncio.Event()

    async def hang() -> bool:
        await over.wait()
        return True

    node.behave = sends(GOOD)
    node.before_session = hang  # type: ignore[method-assign]
    assert (await failed(link, deadline=0.3)).code == "open_timeout"
    assert link.slots.used == 0
    assert link.channels == 1
    over.set()  # it arrives late, and is aborted then
    async with asyncio.timeout(2):
        while link.channels:
            await asyncio.sleep(0.01)


async def test_sessions_refused_at_random(node: Misbehaving, link: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """F22: all calls succeed, the learnt limit drops and comes back, and nothing says that the node is down."""
    dice = random.Random(7)
    monkeypatch.setattr(run_module, "REFUSALS", 1000)

    async def sometimes() -> bool:
        return dice.random() < 0.4

    node.behave = sends(GOOD)
    node.before_session = sometimes  # type: ignore[method-assign]
    results = await asyncio.gather(*(call(link, deadline=20) for _ in range(30)))
    assert results == [{"fine": True}] * 30
    assert link.slots.limit < 4
    assert not link.closed


async def test_sessions_refused_for_ever(node: Misbehaving, link: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> bool:
        return False

    monkeypatch.setattr(run_module, "REFUSALS", 2)
    node.behave = sends(GOOD)
    node.before_session = never  # type: ignore[method-assign]
    error = await failed(link)
    assert (type(error), error.code) == (Refused, "sessions_refused")
    assert not link.closed


async def test_channels_opened_by_the_server_are_refused(node: Misbehaving, link: Connection) -> None:
    """F78: agent, X11, reverse forwards and sessions towards us."""
    server = node.connection

    async def attempt(kind: bytes, *args: bytes) -> None:
        channel = server.create_tcp_channel()
        with pytest.raises(asyncssh.ChannelOpenError):
            async with asyncio.timeout(2):
                await channel._open(kind, *args)

    def text(value: str) -> bytes:
        return len(value).to_bytes(4, "big") + value.encode()

    number = (22).to_bytes(4, "big")
    await attempt(b"auth-agent@openssh.com")
    await attempt(b"x11", text("127.0.0.1"), number)
    await attempt(b"forwarded-tcpip", text("127.0.0.1"), number, text("127.0.0.1"), number)
    await attempt(b"direct-tcpip", text("127.0.0.1"), number, text("127.0.0.1"), number)
    await attempt(b"session")
    await attempt(b"forwarded-streamlocal@openssh.com", text("/tmp/x"), text(""))
    await attempt(b"tun@openssh.com", number, number)
    node.behave = sends(GOOD)
    assert await call(link) == {"fine": True}
