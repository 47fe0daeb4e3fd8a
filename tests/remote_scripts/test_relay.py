"""relay.py as a node runs it: its streams, its windows, and when it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw import assets
from llmgw.protocol.frame import FrameReader, new_token, request
from llmgw.protocol.relay import (
    ABORT,
    CLOSE,
    CLOSED,
    CREDIT,
    DATA,
    EOF,
    FRAME,
    HEAD,
    OPEN,
    OPENED,
    PING,
    PONG,
    WINDOW,
    Reader,
)
from llmgw.protocol.shell import BOOTSTRAP

from .conftest import Node


class Relay:
    """The other side of it. `said` are the frames that are no data, `data` what came on each stream."""

    def __init__(self, node: Node, *, window: int = WINDOW, silence: float = 30, noise: str = "") -> None:
        token = new_token()
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", noise + BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=node.env,
            cwd=node.home,
            bufsize=0,
        )
        args = {"window": window, "silence": silence}
        script = assets.remote_script("relay")
        self.write(request(assets.prelude(), "relay.py", script, args, token=token, deadline=0, payload=1))
        hello = FrameReader(token)
        body: dict[str, Any] | None = None
        while body is None:
            body = next(hello.feed(self.read(10)), None)
        assert body == {"event": {"relay": 1}}
        rest = hello.rest() or self.read(10)
        assert rest == b"\n"
        self.frames = Reader()
        self.said: list[tuple[int, int, int]] = []
        self.data: dict[int, bytearray] = {}

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def read(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        assert ready, "the relay is silent"
        return os.read(self.process.stdout.fileno(), 1 << 20)

    def say(self, kind: int, number: int, value: int = 0) -> None:
        self.write(HEAD.pack(kind, number, value))

    def send(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), FRAME):
            piece = data[start : start + FRAME]
            self.write(HEAD.pack(DATA, number, len(piece)) + piece)

    def take(self, seconds: float = 5) -> None:
        for kind, number, value in self.frames.feed(self.read(seconds)):
            if isinstance(value, bytes):
                self.data.setdefault(number, bytearray()).extend(value)
            else:
                self.said.append((kind, number, value))

    def until(self, *frame: int) -> int:
        """Waits for a frame that begins with `frame`, and answers with its number."""
        while True:
            for said in self.said:
                if said[: len(frame)] == frame:
                    self.said.remove(said)
                    return said[2]
            self.take()

    def quiet(self, seconds: float = 0.3) -> bool:
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def open(self, number: int, port: int) -> None:
        self.say(OPEN, number, port)
        self.until(OPENED, number)

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    def sockets(self) -> int:
        folder = f"/proc/{self.process.pid}/fd"
        return sum(os.readlink(f"{folder}/{fd}").startswith("socket:") for fd in os.listdir(folder))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def engine() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(200)
        listener.settimeout(5)
        yield listener


@pytest.fixture
def relay(node: Node) -> Iterator[Relay]:
    made = Relay(node)
    yield made
    made.end()


def accepted(engine: socket.socket) -> socket.socket:
    sock, _ = engine.accept()
    sock.settimeout(5)
    return sock


def port(engine: socket.socket) -> int:
    return int(engine.getsockname()[1])


def all_of(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (data := sock.recv(1 << 20)):
        found += data
    return bytes(found)


def test_both_ways_and_the_engine_closes(relay: Relay, engine: socket.socket) -> None:
    relay.open(1, port(engine))
    with accepted(engine) as theirs:
        relay.send(1, b"GET / HTTP/1.1\r\n\r\n")
        assert theirs.recv(100) == b"GET / HTTP/1.1\r\n\r\n"
        theirs.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    relay.until(EOF, 1)
    assert relay.data[1] == b"HTTP/1.1 200 OK\r\n\r\n"
    relay.say(CLOSE, 1)
    assert relay.until(CLOSED, 1) == 0
    assert relay.sockets() == 0


def test_ports_that_cannot_be_reached(relay: Relay, engine: socket.socket) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        relay.say(OPEN, 1, port(free))
        assert relay.until(CLOSED, 1) == errno.ECONNREFUSED
    for number, wrong in ((2, 0), (3, 65536 + port(engine)), (4, 2**32 - 1)):
        relay.say(OPEN, number, wrong)
        assert relay.until(CLOSED, number) == errno.EINVAL
    assert relay.sockets() == 0


def test_only_127_0_0_1(relay: Relay) -> None:
    """An engine that listens elsewhere on the same machine is none of ours."""
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.2", 0))
        elsewhere.listen(1)
        relay.say(OPEN, 1, port(elsewhere))
        assert relay.until(CLOSED, 1) == errno.ECONNREFUSED


def test_a_port_that_would_connect_to_itself(node: Node) -> None:
    """The engines' ports lie where the kernel takes its own from: without a listener one may get itself (RFC 9293)."""
    source = assets.remote_script("relay").decode()
    probe = """
import socket, types
prelude = types.ModuleType("prelude")
prelude.main = lambda function: None
import sys
sys.modules["prelude"] = prelude
exec(compile(SOURCE, "relay.py", "exec"))
relay = Relay(1 << 19, 10)
sock = socket.socket()
sock.bind(("127.0.0.1", 0))
sock.connect(sock.getsockname())
stream = Stream(1, sock, 1 << 19)
relay.streams[1] = relay.by_fd[stream.fd] = stream
relay.connected(stream)
assert relay.out == [HEAD.pack(CLOSED, 1, errno.ECONNREFUSED)], relay.out
"""
    done = subprocess.run(
        [node.bin / "python3.14", "-c", f"SOURCE = {source!r}\n{probe}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 0


def test_a_window_and_not_a_byte_more(relay: Relay, engine: socket.socket) -> None:
    relay.open(1, port(engine))
    with accepted(engine) as theirs:
        theirs.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += theirs.send(bytes(1 << 16))
                while not relay.quiet(0.02):
                    relay.take()
        assert sent > WINDOW
        assert len(relay.data[1]) == WINDOW
        assert relay.quiet()
        relay.say(CREDIT, 1, 1000)
        while len(relay.data[1]) < WINDOW + 1000:
            relay.take()
        assert relay.quiet()
        relay.say(ABORT, 1)
        relay.until(CLOSED, 1)


def cpu(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("how", ["reset", "close", "half"])
def test_waiting_costs_nothing(relay: Relay, engine: socket.socket, how: str) -> None:
    """An engine that has gone while our window is used up, or that has only said its last word."""
    relay.open(1, port(engine))
    theirs = accepted(engine)
    if how == "half":
        theirs.shutdown(socket.SHUT_WR)
        relay.until(EOF, 1)
    else:
        theirs.sendall(bytes(WINDOW + 1000))
        while len(relay.data.get(1, b"")) < WINDOW:
            relay.take()
        if how == "reset":
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        theirs.close()
    before = cpu(relay.process.pid)
    time.sleep(0.5)
    assert cpu(relay.process.pid) - before <= 0.02
    theirs.close()
    if how == "half":
        relay.say(EOF, 1)
    relay.say(CREDIT, 1, WINDOW)
    while not any(kind in (CLOSED, EOF) for kind, _, _ in relay.said):
        relay.take()
    relay.say(ABORT, 1)
    relay.until(CLOSED, 1)
    assert relay.sockets() == 0


def test_an_upload_waits_for_the_engine(relay: Relay, engine: socket.socket) -> None:
    """What the engine does not take is kept, one window at most, and credit comes as it takes it."""
    relay.open(1, port(engine))
    relay.open(2, port(engine))
    with accepted(engine) as theirs, accepted(engine) as other:
        total = 0
        for _ in range(200):  # more than the sockets hold: but never more than was granted
            relay.send(1, bytes(WINDOW // 2))
            total += WINDOW // 2
            if relay.quiet(0.1):
                break
            relay.until(CREDIT, 1)
        else:
            raise AssertionError("it takes for ever")
        relay.send(2, b"past it")
        assert other.recv(10) == b"past it"
        relay.say(CLOSE, 1)
        assert len(all_of(theirs, total)) == total
        assert theirs.recv(1) == b""
        relay.until(CLOSED, 1)


def test_half_open(relay: Relay, engine: socket.socket) -> None:
    relay.open(1, port(engine))
    with accepted(engine) as theirs:
        relay.send(1, b"question")
        relay.say(EOF, 1)
        assert all_of(theirs, 100) == b"question"
        theirs.sendall(b"answer")
    relay.until(EOF, 1)
    relay.until(CLOSED, 1)
    assert relay.data[1] == b"answer"


def test_an_abort_is_seen_by_the_engine_at_once(relay: Relay, engine: socket.socket) -> None:
    relay.open(1, port(engine))
    with accepted(engine) as theirs:
        began = time.monotonic()
        relay.say(ABORT, 1)
        assert theirs.recv(1) == b""
        assert time.monotonic() - began < 0.5
        relay.until(CLOSED, 1)
    relay.say(ABORT, 1)
    relay.send(1, b"late")
    relay.say(EOF, 1)
    relay.say(PING, 0)
    relay.until(PONG)
    assert relay.said == []


def test_a_reset_is_told(relay: Relay, engine: socket.socket) -> None:
    relay.open(1, port(engine))
    theirs = accepted(engine)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    theirs.close()
    assert relay.until(CLOSED, 1) == errno.ECONNRESET


def test_memory_stays_flat_while_nobody_reads(relay: Relay, engine: socket.socket) -> None:
    """The link is slow and many engines are fast: they wait in their own sockets."""
    ends = []
    for number in range(1, 101):
        relay.open(number, port(engine))
        ends.append(accepted(engine))
    before = relay.memory()
    for end in ends:
        end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                end.send(bytes(1 << 16))
    time.sleep(0.5)
    assert relay.memory() - before < 4 << 20
    busy = cpu(relay.process.pid)
    time.sleep(0.5)
    assert cpu(relay.process.pid) - busy <= 0.02
    while len(relay.data) < 100 or min(map(len, relay.data.values())) < WINDOW // 2:
        relay.take()
    for end in ends:
        end.close()


def test_turns(relay: Relay, engine: socket.socket) -> None:
    """A token of one stream waits for no more than a frame or so of each other one."""
    ends = []
    for number in range(1, 21):
        relay.open(number, port(engine))
        ends.append(accepted(engine))
    for end in ends[:-1]:
        end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                end.send(bytes(1 << 16))
    time.sleep(0.2)
    ends[-1].send(b"token")
    while 20 not in relay.data:
        relay.take()
    assert max(map(len, relay.data.values())) < 8 * FRAME
    for end in ends:
        end.close()


def test_it_ends_with_its_stdin(relay: Relay, engine: socket.socket) -> None:
    relay.open(1, port(engine))
    with accepted(engine) as theirs:
        assert relay.process.stdin is not None
        relay.process.stdin.close()
        assert theirs.recv(1) == b""
        assert relay.process.wait(5) == 0


def test_it_ends_with_its_stdout(relay: Relay) -> None:
    assert relay.process.stdout is not None
    assert relay.process.stderr is not None
    relay.process.stdout.close()
    relay.say(PING, 0)
    assert relay.process.wait(5) == 0
    assert relay.process.stderr.read() == b""


def test_it_ends_when_it_is_left_alone(node: Node, engine: socket.socket) -> None:
    """Half-open: nobody closes its stdin, and nobody says anything any more."""
    relay = Relay(node, silence=1)
    relay.open(1, port(engine))
    with accepted(engine) as theirs:
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                theirs.send(bytes(1 << 16))
        for _ in range(4):
            relay.say(PING, 0)
            time.sleep(0.4)
        assert relay.process.poll() is None
        began = time.monotonic()
        assert relay.process.wait(5) == 0
        assert 0.5 < time.monotonic() - began < 2
    relay.end()


def test_noise_before_the_hello(node: Node) -> None:
    relay = Relay(node, noise="echo Welcome; echo '#0 1 2'; printf 'no newline'; ")
    relay.say(PING, 0)
    relay.until(PONG)
    relay.end()


def test_more_streams_than_the_soft_limit(node: Node, engine: socket.socket) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1024:
        pytest.skip("this machine allows fewer than 1,024 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        relay = Relay(node)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ends = []
    for number in range(1, 301):
        relay.open(number, port(engine))
        ends.append(accepted(engine))
    assert relay.sockets() == 300
    relay.end()
    for end in ends:
        end.close()
