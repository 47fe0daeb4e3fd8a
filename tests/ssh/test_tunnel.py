"""Streams to an engine's port: asyncio's own manners over a channel (F24, F36, F60)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from llmgw.errors import LinkLost, TimedOut, Unreachable
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import Login
from llmgw.ssh.relay_stream import RelayStream
from llmgw.ssh.tunnel import WINDOW

from .conftest import Sshd, at, free_port
from .programs import ECHO


class Recorder(asyncio.Protocol):
    """Keeps all that happens to it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.data = bytearray()
        self.changed = asyncio.Event()
        self.transport: asyncio.Transport

    def note(self, what: str) -> None:
        self.log.append(what)
        self.changed.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is none of asyncio's
        self.note("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.data += data
        self.changed.set()

    def eof_received(self) -> bool | None:
        self.note("eof")
        return None

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.note("lost" if exc is None else f"lost: {type(exc).__name__}")

    async def until(self, condition: Callable[[], bool], timeout: float = 5) -> None:
        async with asyncio.timeout(timeout):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Engine:
    """A TCP server on loopback; `accepted` are its ends of the streams."""

    def __init__(self) -> None:
        self.accepted: list[Recorder] = []

    async def start(self) -> None:
        def made() -> Recorder:
            self.accepted.append(Recorder())
            return self.accepted[-1]

        self.server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        self.port: int = self.server.sockets[0].getsockname()[1]

    async def first(self) -> Recorder:
        async with asyncio.timeout(5):
            while not self.accepted or not self.accepted[0].log:
                await asyncio.sleep(0.005)
        return self.accepted[0]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    made.server.close()
    for end in made.accepted:
        end.transport.abort()


@pytest_asyncio.fixture(params=["sshd", "embedded", "relay"])
async def link(
    request, shared_sshd: Sshd, deaf_sshd: Sshd, embedded: EmbeddedServer, login: Login
) -> AsyncIterator[Connection]:
    if request.param != "embedded":
        server = deaf_sshd if request.param == "relay" else shared_sshd
        connection = await connect(server.address, login=login, host_key=server.host_key)
    else:
        connection = await connect(at(embedded), login=login, host_key=embedded.host_key)
    yield connection
    await settled(connection)
    await connection.close()


async def settled(link: Connection) -> None:
    async with asyncio.timeout(10):
        while busy(link) and not link.closed:
            await asyncio.sleep(0.01)
    assert link.closed or len(link._made._channels) <= (link.data_path == "relay")


def busy(link: Connection) -> int:
    """Channels and streams that are open; a relay that only waits is none."""
    relay = link.relays.relay
    if relay is None or relay.over is not None:
        return link.channels
    return link.channels - 1 + relay.streams


async def test_bytes_both_ways(link: Connection, engine: Engine) -> None:
    ours = await link.open_stream(engine.port, Recorder)
    assert isinstance(ours, Recorder)
    theirs = await engine.first()
    ours.transport.write(b"GET / ")
    ours.transport.writelines([b"HTTP", b"/1.1"])
    await theirs.until(lambda: bytes(theirs.data) == b"GET / HTTP/1.1")
    theirs.transport.write(b"\x00\xff" * 100_000)
    await ours.until(lambda: len(ours.data) == 200_000)
    assert bytes(ours.data) == b"\x00\xff" * 100_000
    assert not ours.transport.is_closing()
    assert ours.transport.get_extra_info("connection") is not None
    ours.transport.close()
    assert ours.transport.is_closing()
    ours.transport.write(b"ignored, as asyncio does")
    await ours.until(lambda: "lost" in ours.log)
    await theirs.until(lambda: "eof" in theirs.log)
    assert ours.log == ["made", "lost"]


async def test_the_engine_closes(link: Connection, engine: Engine) -> None:
    ours = await link.open_stream(engine.port, Recorder)
    theirs = await engine.first()
    theirs.transport.write(b"bye")
    theirs.transport.close()
    await ours.until(lambda: "lost" in ours.log)
    assert ours.log == ["made", "eof", "lost"]
    assert bytes(ours.data) == b"bye"


async def test_half_open_when_asked_for(link: Connection, engine: Engine) -> None:
    class Patient(Recorder):
        def eof_received(self) -> bool:
            self.note("eof")
            return True

    ours = await link.open_stream(engine.port, Patient)
    theirs = await engine.first()
    theirs.transport.write_eof()
    await ours.until(lambda: "eof" in ours.log)
    ours.transport.write(b"still here")
    await theirs.until(lambda: bytes(theirs.data) == b"still here")
    ours.transport.write_eof()
    await theirs.until(lambda: "eof" in theirs.log)
    ours.transport.close()
    await ours.until(lambda: "lost" in ours.log)


async def test_abort_tells_at_once_and_once(link: Connection, engine: Engine) -> None:
    ours = await link.open_stream(engine.port, Recorder)
    theirs = await engine.first()
    ours.transport.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ours.log == ["made", "lost"]
    await theirs.until(lambda: any(entry.startswith("lost") for entry in theirs.log))
    await settled(link)
    assert ours.log == ["made", "lost"]


async def test_close_flushes_what_was_written(link: Connection, engine: Engine) -> None:
    data = bytes(range(256)) * 20_000
    ours = await link.open_stream(engine.port, Recorder)
    theirs = await engine.first()
    ours.transport.write(data)
    ours.transport.close()
    await theirs.until(lambda: len(theirs.data) == len(data))
    assert bytes(theirs.data) == data
    await ours.until(lambda: "lost" in ours.log)


async def test_a_reader_that_pauses_holds_the_engine_up(link: Connection, engine: Engine) -> None:
    """F60: what we hold for a slow client is at most one window."""
    ours = await link.open_stream(engine.port, Recorder)
    theirs = await engine.first()
    ours.transport.pause_reading()
    total = 32 << 20
    theirs.transport.write(bytes(total))
    await theirs.until(lambda: "pause" in theirs.log)
    await asyncio.sleep(0.3)
    assert len(ours.data) == 0
    held = sum(len(data) for chan in link._made._channels.values() for data, _ in chan._recv_buf)
    if isinstance(ours.transport, RelayStream):
        held += len(ours.transport._held)
        assert held
    assert held <= WINDOW
    ours.transport.resume_reading()
    await ours.until(lambda: len(ours.data) == total, timeout=20)
    ours.transport.close()


async def test_a_writer_is_held_up_by_an_engine_that_does_not_read(link: Connection, engine: Engine) -> None:
    ours = await link.open_stream(engine.port, Recorder)
    theirs = await engine.first()
    theirs.transport.pause_reading()
    sent = 0
    while "pause" not in ours.log:
        ours.transport.write(bytes(1 << 16))
        sent += 1 << 16
        assert sent < 64 << 20
        await asyncio.sleep(0.001)
    theirs.transport.resume_reading()
    await ours.until(lambda: "resume" in ours.log, timeout=10)
    await theirs.until(lambda: len(theirs.data) == sent, timeout=10)
    ours.transport.close()


async def test_a_closed_port_is_the_engine_not_the_node(link: Connection) -> None:
    with pytest.raises(Unreachable) as caught:
        await link.open_stream(free_port(), Recorder)
    assert caught.value.code == "engine_port_closed"
    assert not link.closed
    assert await link.run_program("echo", ECHO, {}, deadline=10)


async def test_a_lost_link_ends_streams_and_opens(link: Connection, engine: Engine) -> None:
    ours = await link.open_stream(engine.port, Recorder)
    opening = asyncio.create_task(link.open_stream(engine.port, Recorder))
    await asyncio.sleep(0)
    link.abort()
    with pytest.raises(LinkLost):
        await opening
    await ours.until(lambda: ours.log[-1].startswith("lost"))
    with pytest.raises(LinkLost):
        await link.open_stream(engine.port, Recorder)


async def test_a_protocol_that_raises_loses_its_own_stream_only(link: Connection, engine: Engine) -> None:
    class Broken(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("bug")

    class Stillborn(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            raise ValueError("bug")

    good = await link.open_stream(engine.port, Recorder)
    broken = await link.open_stream(engine.port, Broken)
    await asyncio.sleep(0.05)
    for end in engine.accepted:
        end.transport.write(b"x")
    await broken.until(lambda: "lost" in broken.log)
    await good.until(lambda: bytes(good.data) == b"x")
    await link.open_stream(engine.port, Stillborn)
    assert not link.closed
    good.transport.close()


async def test_protocols_can_be_exchanged(link: Connection, engine: Engine) -> None:
    ours = await link.open_stream(engine.port, Recorder)
    theirs = await engine.first()
    other = Recorder()
    ours.transport.set_protocol(other)
    assert ours.transport.get_protocol() is other
    theirs.transport.write(b"to the other")
    await other.until(lambda: bytes(other.data) == b"to the other")
    ours.transport.close()


async def test_1000_cancelled_opens_leave_nothing(link: Connection, engine: Engine) -> None:
    """F24. asyncssh alone: 50 of 50 leaked."""
    for n in range(1000):
        task = asyncio.create_task(link.open_stream(engine.port, Recorder))
        for _ in range(n % 7):
            await asyncio.sleep(0)
        if n % 50 == 0:
            await asyncio.sleep(0.002)
        if task.done():
            task.result().transport.abort()  # type: ignore[attr-defined]
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await settled(link)
    async with asyncio.timeout(10):
        while any(not end.log[-1].startswith("lost") for end in engine.accepted):
            await asyncio.sleep(0.01)


async def test_an_open_that_takes_too_long(sshd, login: Login) -> None:
    """An engine whose queue is full accepts nothing; that is no reason to give up the connection."""
    server = sshd()
    link = await connect(server.address, login=login, host_key=server.host_key)
    import socket

    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        for _ in range(4):
            began = time.monotonic()
            with pytest.raises(TimedOut) as caught:
                await link.open_stream(full.getsockname()[1], Recorder, timeout=0.2)
            assert caught.value.code == "open_timeout"
            assert time.monotonic() - began < 1
        for filler in fillers:
            filler.close()
    assert not link.closed
    assert await link.run_program("echo", ECHO, {}, deadline=10)
    await link.close()
