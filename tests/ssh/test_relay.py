"""Streams where sshd forwards nothing: over one process on the node. `test_tunnel.py` runs over it as well."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import pytest_asyncio
import uvloop

from llmgw.clock import SystemClock
from llmgw.errors import BadReply, LinkLost, LlmgwError, Refused, TimedOut, Unreachable
from llmgw.pki.sshkey import public_key
from llmgw.protocol.relay import CLOSED, CREDIT, DATA, EOF, FRAME, HEAD, OPENED, PONG, WINDOW
from llmgw.protocol.shell import NO_PYTHON
from llmgw.ssh import relay as relay_module
from llmgw.ssh.channels import Slots
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.identity import Login
from llmgw.ssh.pool import Pool
from llmgw.ssh.run import CommandRecord

from .conftest import Sshd, at, free_port
from .misbehaving import Misbehaving, Speaker, framed
from .programs import ECHO, SLEEP
from .test_tunnel import Engine, Recorder, busy, settled

# libuv keeps one pipe a process for signals, from its first loop on.
uvloop.run(asyncio.sleep(0))

HELLO = {"event": {"relay": 1}}


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    made.server.close()
    for end in made.accepted:
        end.transport.abort()


@pytest_asyncio.fixture
async def link(deaf_sshd: Sshd, login: Login) -> AsyncIterator[Connection]:
    connection = await connect(deaf_sshd.address, login=login, host_key=deaf_sshd.host_key)
    yield connection
    await settled(connection)
    await connection.close()


def relay_pids(link: Connection, server: Sshd) -> list[int]:
    """The processes on the node that run a relay for this connection's server."""
    found = []
    for child in server.children():
        tree = subprocess.run(["pgrep", "-P", str(child)], capture_output=True, text=True, check=False).stdout.split()
        for pid in [str(child), *tree]:
            for grandchild in subprocess.run(
                ["pgrep", "-P", pid], capture_output=True, text=True, check=False
            ).stdout.split():
                found.append(int(grandchild))
    return sorted({pid for pid in found if b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()})


async def open_many(link: Connection, engine: Engine, count: int) -> list[Recorder]:
    made = await asyncio.gather(*(link.open_stream(engine.port, Recorder) for _ in range(count)))
    async with asyncio.timeout(5):
        while len(engine.accepted) < count or not all(end.log for end in engine.accepted):
            await asyncio.sleep(0.01)
    return [one for one in made if isinstance(one, Recorder)]


@pytest.mark.parametrize("how", ["server", "local", "open", "key", "host"])
async def test_whatever_forbids_forwarding(sshd, login: Login, home: Path, engine: Engine, how: str) -> None:
    if how == "server":
        server = sshd(AllowTcpForwarding="no")
    elif how == "local":
        server = sshd(AllowTcpForwarding="remote")
    elif how == "open":
        server = sshd(PermitOpen="none")
    elif how == "key":
        server = sshd(authorized=f"restrict {public_key(home)}")
    else:
        server = sshd(authorized=f'restrict,port-forwarding,permitopen="127.0.0.2:*" {public_key(home)}')
    link = await connect(server.address, login=login, host_key=server.host_key)
    assert link.data_path is None
    ours = await link.open_stream(engine.port, Recorder)
    assert isinstance(ours, Recorder)
    theirs = await engine.first()
    ours.transport.write(b"ping")
    await theirs.until(lambda: bytes(theirs.data) == b"ping")
    theirs.transport.write(b"pong")
    await ours.until(lambda: bytes(ours.data) == b"pong")
    assert link.data_path == "relay"
    with pytest.raises(Unreachable) as closed:
        await link.open_stream(free_port(), Recorder)
    assert closed.value.code == "engine_port_closed"
    with pytest.raises(Refused) as caught:
        await link.open_stream(engine.port, Recorder, host="localhost")
    assert caught.value.code == "forwarding_forbidden"
    assert await link.run_program("echo", ECHO, {}, deadline=10)
    ours.transport.close()
    await link.close()


async def test_where_it_is_allowed_no_relay_is_begun(shared_sshd: Sshd, login: Login, engine: Engine) -> None:
    link = await connect(shared_sshd.address, login=login, host_key=shared_sshd.host_key)
    ours = await link.open_stream(engine.port, Recorder)
    assert (link.data_path, link.relays.relay) == ("direct-tcpip", None)
    ours.transport.close()  # type: ignore[attr-defined]
    await link.close()


async def test_100_streams_at_once_over_one_process(link: Connection, engine: Engine, deaf_sshd: Sshd) -> None:
    streams = await open_many(link, engine, 100)
    assert len(relay_pids(link, deaf_sshd)) == 1
    assert link.relays.relay is not None
    assert link.relays.relay.streams == 100
    for end in engine.accepted:
        end.transport.write(bytes(300_000) + b"!")
    for number, stream in enumerate(streams):
        stream.transport.write(b"%03d" % number * 10_000)
    for stream in streams:
        await stream.until(lambda stream=stream: len(stream.data) == 300_001, timeout=20)
    for end in engine.accepted:
        await end.until(lambda end=end: len(end.data) == 30_000, timeout=20)
    assert sorted(bytes(end.data[:3]) for end in engine.accepted) == [b"%03d" % n for n in range(100)]
    assert all(end.data == end.data[:3] * 10_000 for end in engine.accepted)
    for stream in streams:
        stream.transport.close()
    await settled(link)
    assert all(stream.log[-1] == "lost" for stream in streams)


async def test_a_slow_reader_beside_a_fast_one(link: Connection, engine: Engine) -> None:
    """One that pauses for good holds a window and no more, and nobody up."""
    slow, fast = await open_many(link, engine, 2)
    slow.transport.pause_reading()
    first = engine.accepted[0]
    first.transport.write(b"which")
    await asyncio.sleep(0.1)
    slow_end, fast_end = engine.accepted if not fast.data else reversed(engine.accepted)
    for end in (slow_end, fast_end):
        end.transport.write(bytes(16 << 20))
    await fast.until(lambda: len(fast.data) >= 16 << 20, timeout=20)
    assert not slow.data
    assert 0 < len(slow.transport._held) <= WINDOW  # type: ignore[attr-defined]
    fast_end.transport.write(b"token")
    began = time.monotonic()
    await fast.until(lambda: fast.data.endswith(b"token"))
    assert time.monotonic() - began < 0.5
    slow.transport.resume_reading()
    await slow.until(lambda: len(slow.data) >= 16 << 20, timeout=20)
    for one in (slow, fast):
        one.transport.close()


async def test_a_reader_that_pauses_at_every_chunk_gets_it_all(link: Connection, engine: Engine) -> None:
    class Halting(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.0005, self.transport.resume_reading)

    ours = await link.open_stream(engine.port, Halting)
    assert isinstance(ours, Recorder)
    theirs = await engine.first()
    data = os.urandom(3 << 20)
    theirs.transport.write(data)
    theirs.transport.close()
    await ours.until(lambda: "lost" in ours.log, timeout=20)
    assert bytes(ours.data) == data
    assert ours.log == ["made", "eof", "lost"]


async def test_a_writer_that_would_fill_the_channel_leaves_room(link: Connection, engine: Engine) -> None:
    """Ten streams write as fast as they can; what another has to say does not wait for all of it."""
    streams = await open_many(link, engine, 11)
    quick = streams.pop()
    for stream in streams:
        stream.transport.write(bytes(WINDOW))
    quick.transport.write(b"question")
    async with asyncio.timeout(5):
        while not (end := next((one for one in engine.accepted if b"question" in one.data), None)):
            await asyncio.sleep(0.001)
    assert bytes(end.data) == b"question"
    for one in engine.accepted:
        if one is not end:
            await one.until(lambda one=one: len(one.data) == WINDOW, timeout=10)
    for stream in (*streams, quick):
        stream.transport.close()


async def test_an_abort_of_50_is_seen_at_once(link: Connection, engine: Engine) -> None:
    streams = await open_many(link, engine, 50)
    for end in engine.accepted:
        end.transport.write(bytes(100_000))
    began = time.monotonic()
    for stream in streams:
        stream.transport.abort()
    for end in engine.accepted:
        await end.until(lambda end=end: any(word.startswith(("eof", "lost")) for word in end.log))
    assert time.monotonic() - began < 0.5
    await settled(link)
    assert all(stream.log == ["made", "lost"] for stream in streams)
    relay = link.relays.relay
    assert relay is not None
    assert (relay._streams, relay._leaving, relay._turns) == ({}, set(), {})


async def test_a_killed_relay_is_started_again(deaf_sshd: Sshd, login: Login, engine: Engine) -> None:
    records: list[CommandRecord] = []
    link = await connect(deaf_sshd.address, login=login, host_key=deaf_sshd.host_key, node="n1", audit=records.append)
    streams = await open_many(link, engine, 3)
    for end in engine.accepted:
        end.transport.write(bytes(4 << 20))
    await streams[0].until(lambda: bool(streams[0].data))
    (pid,) = relay_pids(link, deaf_sshd)
    os.kill(pid, signal.SIGKILL)
    for stream in streams:
        await stream.until(lambda stream=stream: stream.log[-1] == "lost: LinkLost")
        assert stream.log.count("lost: LinkLost") == 1
    assert not link.closed
    assert [(record.node, record.script, record.exit_status, record.outcome) for record in records] == [
        ("n1", "relay", -9, "link_lost")
    ]
    for end in engine.accepted:
        await end.until(lambda end=end: end.log[-1].startswith("lost"))
    again = await link.open_stream(engine.port, Recorder)
    assert isinstance(again, Recorder)
    again.transport.write(b"again")
    await engine.accepted[-1].until(lambda: bytes(engine.accepted[-1].data) == b"again")
    async with asyncio.timeout(5):
        while busy(link) != 1:
            await asyncio.sleep(0.01)
    await link.close()
    await again.until(lambda: again.log[-1] == "lost: LinkLost")


async def test_opens_that_wait_while_it_dies(link: Connection, engine: Engine, deaf_sshd: Sshd) -> None:
    await open_many(link, engine, 1)
    (pid,) = relay_pids(link, deaf_sshd)
    os.kill(pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(link.open_stream(engine.port, Recorder)) for _ in range(5)]
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    for task in waiting:
        with pytest.raises(LinkLost, match="relay"):
            await task


async def test_a_relay_that_hangs_is_found(deaf_sshd: Sshd, login: Login, engine: Engine) -> None:
    link = await connect(deaf_sshd.address, login=login, host_key=deaf_sshd.host_key, keepalive=0.5)
    (stream,) = await open_many(link, engine, 1)
    await asyncio.sleep(3)
    assert stream.log == ["made"]  # it answers
    (pid,) = relay_pids(link, deaf_sshd)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TimedOut) as caught:
        await link.open_stream(engine.port, Recorder, timeout=0.1)
    assert caught.value.code == "open_timeout"
    await stream.until(lambda: stream.log[-1] == "lost: LinkLost")
    os.kill(pid, signal.SIGCONT)
    assert not link.closed
    (again,) = await open_many(link, engine, 1)
    again.transport.close()
    await link.close()


async def test_a_cut_link_ends_streams_here_and_the_process_there(sshd, login: Login, engine: Engine) -> None:
    server = sshd(AllowTcpForwarding="no")
    link = await connect(server.address, login=login, host_key=server.host_key, keepalive=0.2)
    streams = await open_many(link, engine, 5)
    (pid,) = relay_pids(link, server)
    child = next(iter(server.children()))
    os.kill(child, signal.SIGKILL)
    for stream in streams:
        await stream.until(lambda stream=stream: stream.log[-1].startswith("lost"))
        assert len(stream.log) == 2
    with pytest.raises(LinkLost):
        await link.open_stream(engine.port, Recorder)
    for end in engine.accepted:
        await end.until(lambda end=end: end.log[-1].startswith("lost"))
    async with asyncio.timeout(5):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)


async def test_half_open_the_process_ends_by_itself(sshd, login: Login, engine: Engine) -> None:
    """The link is dead and nobody has told the node: sshd is stopped, so nothing closes the relay's stdin."""
    server = sshd(AllowTcpForwarding="no")
    link = await connect(server.address, login=login, host_key=server.host_key, keepalive=0.2)
    await open_many(link, engine, 1)
    (pid,) = relay_pids(link, server)
    children = server.children()
    for child in children:
        os.kill(child, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5):
            await link.wait_closed()
        async with asyncio.timeout(5):
            while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
                await asyncio.sleep(0.05)
        await engine.accepted[0].until(lambda: engine.accepted[0].log[-1].startswith("lost"))
    finally:
        for child in children:
            os.kill(child, signal.SIGCONT)


async def test_cancelled_while_it_starts(link: Connection, engine: Engine) -> None:
    tasks = [asyncio.create_task(link.open_stream(engine.port, Recorder)) for _ in range(20)]
    for n, task in enumerate(tasks):
        await asyncio.sleep(n / 5000)
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result().transport.abort()  # type: ignore[attr-defined]
    (stream,) = await open_many(link, engine, 1)
    stream.transport.close()
    await settled(link)
    async with asyncio.timeout(5):
        while any(not end.log[-1].startswith("lost") for end in engine.accepted):
            await asyncio.sleep(0.01)


async def test_closed_while_it_starts(deaf_sshd: Sshd, login: Login) -> None:
    for pause in (0, 0.005, 0.02, 0.05):
        link = await connect(deaf_sshd.address, login=login, host_key=deaf_sshd.host_key)
        opening = asyncio.create_task(link.open_stream(1, Recorder))
        await asyncio.sleep(pause)
        await link.close()
        with pytest.raises((LinkLost, Unreachable)):
            await opening


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_few_sessions_serve_scripts_and_streams(sshd, login: Login, engine: Engine, most: int) -> None:
    """MaxSessions counts for each connection. Where it is 1 the relay gets a connection of its own."""
    server = sshd(AllowTcpForwarding="no", MaxSessions=most)
    records: list[CommandRecord] = []
    link = await connect(server.address, login=login, host_key=server.host_key, audit=records.append)
    streams = await open_many(link, engine, 10)
    apart = link.relays._extra
    assert (apart is not None) == (most == 1)
    calls = [link.run_program("echo", ECHO, {}, deadline=20, urgent=n == 3) for n in range(6)]
    assert len(await asyncio.gather(*calls)) == 6
    for end in engine.accepted:
        end.transport.write(b"there")
    for stream in streams:
        await stream.until(lambda stream=stream: bytes(stream.data) == b"there")
    assert link.data_path == "relay"
    await link.close()
    for stream in streams:
        await stream.until(lambda stream=stream: stream.log[-1] == "lost: LinkLost")
    async with asyncio.timeout(5):
        while sum(record.script == "relay" for record in records) != (2 if apart else 1) or server.children():
            await asyncio.sleep(0.02)


async def test_a_relay_apart_that_is_cut_is_dialled_again(sshd, login: Login, engine: Engine) -> None:
    server = sshd(AllowTcpForwarding="no", MaxSessions=1)
    link = await connect(server.address, login=login, host_key=server.host_key)
    (stream,) = await open_many(link, engine, 1)
    first = link.relays._extra
    assert first is not None
    first.abort()
    await stream.until(lambda: stream.log[-1] == "lost: LinkLost")
    again = await link.open_stream(engine.port, Recorder)
    assert isinstance(again, Recorder)
    assert link.relays._extra is not first
    assert await link.run_program("echo", ECHO, {}, deadline=10)
    await link.close()
    await again.until(lambda: again.log[-1].startswith("lost"))


async def test_one_session_and_no_second_connection(sshd, login: Login, engine: Engine, home: Path) -> None:
    server = sshd(AllowTcpForwarding="no", MaxSessions=1)
    link = await connect(server.address, login=login, host_key=server.host_key)
    server.authorized_keys.write_text("")
    with pytest.raises(Refused) as caught:
        await link.open_stream(engine.port, Recorder)
    assert caught.value.code == "forwarding_forbidden"
    assert "one session" in caught.value.message
    assert "MaxSessions" in caught.value.fix
    assert link.data_path is None
    assert await link.run_program("echo", ECHO, {}, deadline=10)
    await link.close()


async def test_a_script_that_holds_the_only_session(sshd, login: Login, engine: Engine) -> None:
    server = sshd(AllowTcpForwarding="no", MaxSessions=1)
    link = await connect(server.address, login=login, host_key=server.host_key)
    call = asyncio.create_task(link.run_program("s", SLEEP, {"seconds": 1}, deadline=10))
    await asyncio.sleep(0.3)
    (stream,) = await open_many(link, engine, 1)
    assert not call.done()
    assert await call == {"slept": 1}
    stream.transport.close()
    await link.close()


async def test_a_node_that_cannot_run_one(sshd, login: Login, home: Path, engine: Engine) -> None:
    command = f"echo '{NO_PYTHON}' >&2; exit 127"
    server = sshd(authorized=f'restrict,command="{command}" {public_key(home)}')
    link = await connect(server.address, login=login, host_key=server.host_key)
    with pytest.raises(Refused) as caught:
        await link.open_stream(engine.port, Recorder)
    assert caught.value.code == "forwarding_forbidden"
    assert "python3" in caught.value.message
    assert "AllowTcpForwarding" in caught.value.fix
    assert not link.closed
    await link.close()


def test_a_held_session_is_one_less_for_scripts() -> None:
    slots = Slots(4, now=lambda: 0.0)
    slots.hold()
    slots.used = 2
    assert not slots._free(urgent=False)
    assert slots._free(urgent=True)
    slots.used = 1
    slots.refused()
    assert slots.limit == 2  # the relay's and this one
    slots.used = 0
    assert slots._free(urgent=False)
    slots.release()
    assert slots.held == 0


async def test_a_pool_tells_how_it_reaches_its_node(sshd, login: Login, engine: Engine) -> None:
    server = sshd(AllowTcpForwarding="no", MaxSessions=1)
    pool = Pool(login=login, handshakes=1, clock=SystemClock(), on_change=lambda node, status: None)
    link = pool.add("n1", server.address, server.host_key)
    assert link.data_path is None
    await link.wait_up(5)
    for _ in range(2):
        (stream,) = await open_many(link, engine, 1)  # type: ignore[arg-type]
        assert link.data_path == "relay"
        server.stop()
        await stream.until(lambda stream=stream: stream.log[-1].startswith("lost"))
        assert link.data_path is None
        server.start()
        link.kick()
        await link.wait_up(10)
        engine.accepted.clear()
    await pool.close()


def test_under_uvloop(deaf_sshd: Sshd, login: Login) -> None:
    async def story() -> None:
        link = await connect(deaf_sshd.address, login=login, host_key=deaf_sshd.host_key)
        engine = Engine()
        await engine.start()
        streams = await open_many(link, engine, 10)
        for end in engine.accepted:
            end.transport.write(bytes(2 << 20))
        for stream in streams:
            await stream.until(lambda stream=stream: len(stream.data) == 2 << 20, timeout=20)
            stream.transport.close()
        await settled(link)
        engine.server.close()
        await link.close()

    uvloop.run(story())


# ---- nodes that lie ----


class Deaf(Misbehaving):
    """Forwards nothing, and its relay is whatever `behave` does."""

    def serve(self) -> asyncssh.SSHServer:
        server = super().serve()
        server.connection_requested = _forbidden  # type: ignore[method-assign]
        return server


def _forbidden(*about: Any) -> bool:
    raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "no")


@pytest_asyncio.fixture
async def liar(home: Path, tmp_path: Path) -> AsyncIterator[Deaf]:
    server = Deaf(public_key(home), tmp_path / "key")
    await server.start()
    yield server
    await server.close()


@pytest_asyncio.fixture
async def lied_to(liar: Deaf, login: Login) -> AsyncIterator[Connection]:
    connection = await connect(at(liar), login=login, host_key=liar.host_key)
    yield connection
    assert not connection.closed
    await connection.close()


def says(*parts: bytes, wait: float = 0.0) -> Any:
    async def behave(speaker: Speaker) -> None:
        await speaker.frame(HELLO)
        size = len(speaker._read)
        async with asyncio.timeout(5):
            while len(speaker._read) < size + 2 * HEAD.size:  # the first ping and the first open
                await asyncio.sleep(0.002)
        for part in parts:
            await speaker.write(part)
            await asyncio.sleep(wait)
        await asyncio.sleep(5)

    return behave


OPEN_1 = HEAD.pack(OPENED, 1, 0)


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD.pack(OPENED, 2, 0),),
        (HEAD.pack(CLOSED, 77, 0),),
        (HEAD.pack(DATA, 1, 3) + b"abc",),
        (HEAD.pack(EOF, 1, 0),),
        (HEAD.pack(PONG, 0, 0) * 2,),
        (b"Mail has arrived.\n",),
        (HEAD.pack(DATA, 1, FRAME + 1),),
        (b"\0" * 9,),
    ],
)
async def test_nonsense_before_the_stream_is_open(liar: Deaf, lied_to: Connection, parts: tuple[bytes, ...]) -> None:
    liar.behave = says(*parts)
    with pytest.raises(BadReply) as caught:
        await lied_to.open_stream(4711, Recorder)
    assert caught.value.code in ("damaged", "oversized")
    assert "relay" in caught.value.message
    assert lied_to.relays.relay is not None
    assert lied_to.relays.relay.over is not None
    liar.behave = says(OPEN_1)  # the next one is honest
    stream = await lied_to.open_stream(4711, Recorder)
    stream.transport.abort()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "parts",
    [
        (OPEN_1, OPEN_1),
        (OPEN_1, HEAD.pack(EOF, 1, 0) * 2),
        (OPEN_1, HEAD.pack(EOF, 1, 0) + HEAD.pack(DATA, 1, 1) + b"x"),
        (OPEN_1, HEAD.pack(CREDIT, 1, 1)),
        (OPEN_1, HEAD.pack(CREDIT, 1, 0)),
        (OPEN_1, HEAD.pack(CREDIT, 1, 2**32 - 1)),
        (OPEN_1, HEAD.pack(CLOSED, 1, 0) * 2),
        (OPEN_1, b"Broadcast message from root@node"),
    ],
)
async def test_nonsense_about_an_open_stream(liar: Deaf, lied_to: Connection, parts: tuple[bytes, ...]) -> None:
    class Patient(Recorder):
        def eof_received(self) -> bool:
            return True

    liar.behave = says(*parts, wait=0.02)
    stream = await lied_to.open_stream(4711, Patient)
    assert isinstance(stream, Recorder)
    await stream.until(lambda: stream.log[-1].startswith("lost"))
    relay = lied_to.relays.relay
    async with asyncio.timeout(5):
        while relay is None or relay.over is None:
            await asyncio.sleep(0.01)
    assert isinstance(relay.over, BadReply)


@pytest.mark.parametrize("size", [1, FRAME])
async def test_more_than_the_window_ends_it(liar: Deaf, lied_to: Connection, size: int) -> None:
    """F50, F60: a paused reader, and a node that does not care. What is held stays under the window."""
    frame = HEAD.pack(DATA, 1, size) + bytes(size)
    liar.behave = says(OPEN_1, *[frame * (30_000 // len(frame) + 1)] * (300 if size == 1 else 1000))
    gc.collect()
    tracemalloc.start()
    try:

        class Paused(Recorder):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                self.transport.pause_reading()

        stream = await lied_to.open_stream(4711, Paused)
        assert isinstance(stream, Recorder)
        await stream.until(lambda: stream.log[-1] == "lost: BadReply", timeout=60)
        assert not stream.data
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 << 20


async def test_one_that_never_closes_a_stream(liar: Deaf, lied_to: Connection, monkeypatch) -> None:
    """Each stream that we leave is a number that we keep: not for ever."""
    monkeypatch.setattr(relay_module, "LEAVING", 20)
    liar.behave = says(*(HEAD.pack(OPENED, number, 0) for number in range(1, 2)))
    (await lied_to.open_stream(4711, Recorder)).transport.abort()  # type: ignore[attr-defined]
    relay = lied_to.relays.relay
    assert relay is not None
    for _ in range(25):
        with pytest.raises(LlmgwError):
            await lied_to.open_stream(4711, Recorder, timeout=0.005)
        if relay.over is not None:
            break
    assert isinstance(relay.over, BadReply)


async def test_strange_hellos(liar: Deaf, lied_to: Connection) -> None:
    async def other(speaker: Speaker) -> None:
        await speaker.frame({"event": {"relay": 2}})

    async def early(speaker: Speaker) -> None:
        await speaker.write(framed(speaker.token, HELLO) + OPEN_1)

    async def garbled(speaker: Speaker) -> None:
        await speaker.frame(HELLO, digest="0" * 32)

    async def forged(speaker: Speaker) -> None:
        await speaker.write(framed("f" * 32, HELLO))
        speaker.end(3)

    async def endless(speaker: Speaker) -> None:
        while True:
            await speaker.write(b"y\n" * 30_000)

    for behave, code in (
        (other, "damaged"),
        (early, "damaged"),
        (garbled, "digest"),
        (forged, "no_answer"),
        (endless, "oversized"),
    ):
        liar.behave = behave
        with pytest.raises(BadReply) as caught:
            await lied_to.open_stream(4711, Recorder, timeout=10)
        assert caught.value.code == code, behave

    async def refusing(speaker: Speaker) -> None:
        await speaker.frame({"error": {"code": "denied", "message": "no epoll", "fix": ""}})
        speaker.end(1)

    liar.behave = refusing
    with pytest.raises(Refused, match="no epoll") as refused:
        await lied_to.open_stream(4711, Recorder)
    assert refused.value.code == "forwarding_forbidden"


async def test_a_flood_on_stderr_is_kept_short(liar: Deaf, lied_to: Connection) -> None:
    async def behave(speaker: Speaker) -> None:
        await speaker.frame(HELLO)
        for _ in range(200):
            speaker.channel.write_stderr(b"x" * 30_000)
            await asyncio.sleep(0)
        speaker.channel.write_stderr(b"the end")
        speaker.end(70)

    liar.behave = behave
    with pytest.raises(LinkLost, match=r"exit status 70.*the end"):
        await lied_to.open_stream(4711, Recorder)
    assert busy(lied_to) == 0
