"""Remote scripts over a real sshd and over the embedded server."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from llmgw import assets
from llmgw.errors import BadReply, LinkLost, LlmgwError, NodeError, TimedOut
from llmgw.model.secret import Secret
from llmgw.protocol import frame, shell
from llmgw.ssh import run, session
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import Login
from llmgw.ssh.run import CommandRecord

from .conftest import Sshd, at
from .programs import CHATTER, CRASH, DEATH, ECHO, EVENTS, FULL, HASH, NOISE, PARENT, REFUSE, SLEEP, program

records: list[CommandRecord] = []


@pytest_asyncio.fixture(params=["sshd", "embedded"])
async def node(
    request: pytest.FixtureRequest, shared_sshd: Sshd, embedded: EmbeddedServer, login: Login
) -> AsyncIterator[Connection]:
    records.clear()
    more: dict[str, Any] = {"node": "n1", "audit": records.append}
    if request.param == "sshd":
        connection = await connect(shared_sshd.address, login=login, host_key=shared_sshd.host_key, **more)
    else:
        connection = await connect(at(embedded), login=login, host_key=embedded.host_key, **more)
    yield connection
    end = time.monotonic() + 3
    while connection.channels and time.monotonic() < end:
        await asyncio.sleep(0.02)  # sshd answers a close only when the command has ended
    assert connection.channels == 0
    assert connection.slots.used == 0
    await connection.close()


async def test_result_and_arguments(node: Connection) -> None:
    args = {"text": "ünï'\"$(x)`\\\n", "none": None, "list": [1, 2.5, True], "_hidden": "1", "key": Secret("s3cret")}
    result = await node.run_program("echo", ECHO, args, deadline=10)
    assert result["args"] == {"text": args["text"], "none": None, "list": [1, 2.5, True], "key": "s3cret"}
    (record,) = records
    assert (record.node, record.script, record.exit_status, record.outcome) == ("n1", "echo", 0, "ok")
    assert "s3cret" not in repr(record)
    assert "_hidden" not in record.args
    assert 0 < record.seconds < 10


async def test_events_come_in_order(node: Connection) -> None:
    seen: list[dict[str, Any]] = []
    assert await node.run_program("events", EVENTS, {"count": 500}, deadline=20, on_event=seen.append) == {"done": True}
    assert seen == [{"n": n} for n in range(500)]


async def test_an_error_frame_is_a_node_error(node: Connection) -> None:
    with pytest.raises(NodeError, match="needs 5, has 4") as caught:
        await node.run_program("refuse", REFUSE, {}, deadline=10)
    assert (caught.value.code, caught.value.fix, caught.value.data["need"]) == ("too_small", "Add one.", 5)
    assert (records[0].outcome, records[0].exit_status) == ("too_small", 1)


async def test_a_crash_is_a_node_error(node: Connection) -> None:
    with pytest.raises(NodeError, match="ZeroDivisionError") as caught:
        await node.run_program("crash", CRASH, {}, deadline=10)
    assert caught.value.code == "crash"


async def test_noise_around_the_frames_is_ignored(node: Connection) -> None:
    seen: list[dict[str, Any]] = []
    assert await node.run_program("chatter", CHATTER, {}, deadline=10, on_event=seen.append) == {"ok": 1}
    assert seen == [{"a": 1}]


async def test_payload_arrives_whole(node: Connection) -> None:
    data = os.urandom(5 << 20)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 300_000):
            yield data[start : start + 300_000]

    result = await node.run_program("hash", HASH, {}, deadline=30, payload=pieces(), payload_size=len(data))
    assert result == {"sha256": hashlib.sha256(data).hexdigest()}


async def test_an_early_error_stops_the_payload(node: Connection) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield bytes(1 << 16)

    with pytest.raises(NodeError, match="no space left at /data/weights") as caught:
        await node.run_program("full", FULL, {}, deadline=30, payload=endless(), payload_size=1 << 40)
    assert caught.value.code == "disk_full"
    assert sent < 64 << 20


async def test_a_payload_that_fails_ends_the_call(node: Connection) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise ValueError("disk gone")

    async def short() -> AsyncIterator[bytes]:
        yield b"some"

    with pytest.raises(ValueError, match="disk gone"):
        await node.run_program("hash", HASH, {}, deadline=10, payload=broken(), payload_size=100)
    with pytest.raises(LlmgwError, match="4 bytes where 100"):
        await node.run_program("hash", HASH, {}, deadline=10, payload=short(), payload_size=100)
    assert [record.outcome for record in records] == ["ValueError", "payload_size"]


async def test_a_payload_that_nobody_reads_stalls(node: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STALL", 0.5)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 18)

    with pytest.raises(TimedOut) as caught:
        await node.run_program("sleep", SLEEP, {"seconds": 1.5}, deadline=20, payload=endless(), payload_size=1 << 40)
    assert caught.value.code == "stalled"


async def test_the_script_keeps_its_own_deadline(node: Connection) -> None:
    began = time.monotonic()
    with pytest.raises(TimedOut) as caught:
        await node.run_program("sleep", SLEEP, {"seconds": 30}, deadline=1)
    assert caught.value.code == "deadline"
    assert 0.5 < time.monotonic() - began < 4
    assert await node.run_program("echo", ECHO, {}, deadline=10)  # F54: the slot is free


@pytest.mark.parametrize("fd", [1, 2])
async def test_300_mb_of_noise_leave_memory_flat(node: Connection, fd: int) -> None:
    """F50. stdout is cut at the cap; stderr is read to its end and forgotten."""

    def rss() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    await node.run_program("echo", ECHO, {}, deadline=10)
    before, peak = rss(), 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, rss())
            await asyncio.sleep(0.01)

    watcher = asyncio.create_task(watch())
    megabytes = 300 if fd == 1 else 60
    calling = node.run_program("noise", NOISE, {"megabytes": megabytes, "fd": fd}, deadline=30)
    if fd == 1:
        with pytest.raises(BadReply) as caught:
            await calling
        assert caught.value.code == "oversized"
        assert len(caught.value.data["noise"]) <= 4096
    else:
        assert await calling == {"done": True}
    watcher.cancel()
    assert peak - before < 40 << 20


async def test_a_killed_script_is_no_answer(node: Connection) -> None:
    with pytest.raises(BadReply) as caught:
        await node.run_program("death", DEATH, {"signal": int(signal.SIGKILL)}, deadline=10)
    assert caught.value.code == "no_answer"
    assert caught.value.data["exit_status"] == -9
    assert records[0].exit_status == -9


async def test_an_event_handler_that_raises_ends_the_call_not_the_link(node: Connection) -> None:
    def broken(event: dict[str, Any]) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await node.run_program("events", EVENTS, {"count": 3}, deadline=10, on_event=broken)
    assert await node.run_program("echo", ECHO, {}, deadline=10)


async def test_cancelling_ends_the_script_on_the_node(node: Connection) -> None:
    seen: list[dict[str, Any]] = []
    body = program("prelude.event(pid=os.getpid())\ntime.sleep(30)\nreturn {}")
    task = asyncio.create_task(node.run_program("slow", body, {}, deadline=60, on_event=seen.append))
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert records[0].outcome == "cancelled"
    end = time.monotonic() + 3
    while os.path.exists(f"/proc/{seen[0]['pid']}") and time.monotonic() < end:
        await asyncio.sleep(0.02)
    assert not os.path.exists(f"/proc/{seen[0]['pid']}")


async def test_a_lost_connection_is_never_success(node: Connection) -> None:
    """F20: asyncssh's own run() returns normally here."""
    calls = [asyncio.create_task(node.run_program("sleep", SLEEP, {"seconds": 30}, deadline=60)) for _ in range(3)]
    await asyncio.sleep(0.5)
    node.abort()
    for call in calls:
        with pytest.raises(LinkLost):
            await call
    with pytest.raises(LinkLost):
        await node.run_program("echo", ECHO, {}, deadline=10)


async def test_no_python_on_the_node(node: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BOOTSTRAP", f"exec /bin/sh -c 'echo {shell.NO_PYTHON} >&2; exit 127'")
    with pytest.raises(NodeError) as caught:
        await node.run_program("echo", ECHO, {}, deadline=10)
    assert caught.value.code == "no_python"


async def test_a_shell_that_refuses_is_quoted(node: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BOOTSTRAP", "echo 'This account is \x1b[1mnot available.'; exit 1")
    with pytest.raises(BadReply, match=r"exit status 1\): This account is \[1mnot available\.") as caught:
        await node.run_program("echo", ECHO, {}, deadline=10)
    assert caught.value.code == "no_answer"


@pytest.mark.parametrize("name", ["bash", "dash", "fish", "tcsh", "sh"])
def test_the_bootstrap_means_the_same_in_every_login_shell(name: str) -> None:
    """sshd runs `SHELL -c COMMAND`; so do we."""
    token = frame.new_token()
    head = frame.request(assets.prelude(), "e.py", ECHO, {"a": "b"}, token=token, deadline=10)
    with subprocess.Popen([name, "-c", shell.BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(head)
        process.stdin.flush()
        reader = frame.FrameReader(token)
        (answer,) = reader.feed(process.stdout.read())
    assert answer["result"]["args"] == {"a": "b"}


async def test_the_call_survives_a_noisy_rc_file(sshd, login: Login, tmp_path) -> None:
    """F49: sshd runs ~/.ssh/rc before the command; whatever it prints is in front of our frames."""
    rc = tmp_path / "noise.sh"
    rc.write_text("echo Welcome; echo '#0123456789abcdef0123456789abcdef 5 zz'; echo careful >&2\n")
    server = sshd(ForceCommand=f'/bin/sh {rc}; eval "$SSH_ORIGINAL_COMMAND"')
    connection = await connect(server.address, login=login, host_key=server.host_key)
    assert (await connection.run_program("echo", ECHO, {"a": 1}, deadline=10))["args"] == {"a": 1}
    await connection.close()


async def test_real_scripts_are_found(link: Connection) -> None:
    with pytest.raises(FileNotFoundError):
        await link.run_script("no_such_script", {}, deadline=5)
    assert sys.version_info >= (3, 11)


async def test_parent(node: Connection) -> None:
    assert (await node.run_program("parent", PARENT, {}, deadline=10))["parent"] > 1
