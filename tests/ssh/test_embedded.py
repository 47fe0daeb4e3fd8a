"""The embedded server: what `local` stands on. Checked with asyncssh's own client, and with ssh where there is one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import pytest_asyncio

from llmgw.errors import Refused
from llmgw.pki.sshkey import ensure_key, public_key
from llmgw.ssh import command
from llmgw.ssh.connection import connect
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import Login

from .conftest import at
from .programs import program

DETACH = program("""
import subprocess
child = subprocess.Popen(['/bin/sleep', '60'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, start_new_session=True)
return {'pid': child.pid}
""")


def options(server: EmbeddedServer, home: Path, **more: Any) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": server.port,
        "username": "anybody",
        "client_keys": [str(ensure_key(home))],
        "known_hosts": f"[127.0.0.1]:{server.port} {server.host_key}\n".encode(),
        "config": None,
        "agent_path": None,
        **more,
    }


@pytest_asyncio.fixture
async def raw(embedded: EmbeddedServer, home: Path) -> AsyncIterator[asyncssh.SSHClientConnection]:
    async with asyncssh.connect(**options(embedded, home)) as connection:
        yield connection


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int, timeout: float = 6) -> bool:
    end = time.monotonic() + timeout
    while alive(pid) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return not alive(pid)


async def run(raw: asyncssh.SSHClientConnection, text: str, **more: Any) -> asyncssh.SSHCompletedProcess:
    return await raw.run(text, encoding=None, request_pty=False, **more)


async def test_output_status_and_signals(raw: asyncssh.SSHClientConnection) -> None:
    done = await run(raw, "printf out; printf err >&2; pwd; exit 7")
    assert done.stdout == b"out" + os.path.expanduser("~").encode() + b"\n"
    assert done.stderr == b"err"
    assert done.exit_status == 7
    done = await run(raw, "kill -9 $$")
    assert done.exit_signal is not None
    assert done.exit_signal[0] == "KILL"
    assert (await run(raw, "cat", input=b"\x00\xff" * 50_000)).stdout == b"\x00\xff" * 50_000
    assert (await run(raw, "exec /no/such/program")).exit_status == 127
    assert (await run(raw, "echo a\0b")).exit_status == 126


async def test_a_session_of_its_own(raw: asyncssh.SSHClientConnection) -> None:
    done = await run(raw, "echo $$; ps -o sid= -p $$")
    pid, sid = (done.stdout or b"").split()
    assert pid == sid != str(os.getsid(0)).encode()


async def test_the_environment_is_ours_without_secrets(
    raw: asyncssh.SSHClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_ADMIN_TOKEN", "s3cret")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    monkeypatch.setenv("HARMLESS", "1")
    text = (await run(raw, "env")).stdout
    assert b"s3cret" not in text
    assert b"/agent" not in text
    assert b"HARMLESS=1" in text


async def test_only_the_one_key_gets_in(embedded: EmbeddedServer, home: Path, tmp_path: Path) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(**options(embedded, home, client_keys=[str(ensure_key(tmp_path / "other"))]))
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(**options(embedded, home, client_keys=None, password="x"))
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(**options(embedded, home, client_keys=None, username=""))


async def test_nothing_but_commands_and_loopback(raw: asyncssh.SSHClientConnection, tmp_path: Path) -> None:
    for host in ("127.0.0.2", "::1", "localhost", "example.invalid", "0.0.0.0"):
        with pytest.raises(asyncssh.ChannelOpenError):
            await raw.open_connection(host, 22)
    with pytest.raises(asyncssh.ChannelOpenError):
        await raw.open_unix_connection(str(tmp_path / "socket"))
    with pytest.raises(asyncssh.ChannelListenError):
        await raw.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 1)
    with pytest.raises(asyncssh.ChannelListenError):
        await raw.forward_remote_path(str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(asyncssh.ChannelOpenError):
        await raw.start_sftp_client()
    with pytest.raises(asyncssh.ChannelOpenError):
        await raw.create_process(None)  # a shell
    with pytest.raises(asyncssh.ChannelOpenError):
        await raw.run("true", term_type="xterm", request_pty="force")
    with pytest.raises(asyncssh.ChannelOpenError):
        await raw.run("true", x11_forwarding=True, x11_display="127.0.0.1:0")
    assert (await run(raw, "echo fine")).stdout == b"fine\n"


async def test_it_listens_on_loopback_only(embedded: EmbeddedServer) -> None:
    assert embedded._acceptor is not None
    assert {address[0] for address in embedded._acceptor.get_addresses()} == {"127.0.0.1"}


@pytest.mark.parametrize("how", ["channel", "connection", "server"])
async def test_a_command_ends_with_its_channel(
    embedded: EmbeddedServer, home: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole group, also one that ignores TERM."""
    monkeypatch.setattr(command, "KILL_AFTER", 0.3)
    raw = await asyncssh.connect(**options(embedded, home))
    process = await raw.create_process("trap '' TERM HUP; echo $$; sleep 60 & echo $!; wait", request_pty=False)
    pids = [int(await process.stdout.readline()) for _ in range(2)]
    assert all(alive(pid) for pid in pids)
    if how == "channel":
        process.channel.abort()
    elif how == "connection":
        raw.abort()
    else:
        await embedded.close()
    for pid in pids:
        assert await gone(pid)
    raw.abort()
    await raw.wait_closed()


async def test_what_has_detached_outlives_channel_connection_and_server(embedded: EmbeddedServer, login: Login) -> None:
    """Engines do."""
    link = await connect(at(embedded), login=login, host_key=embedded.host_key)
    pid = (await link.run_program("detach", DETACH, {}, deadline=10))["pid"]
    assert alive(pid)
    await link.close()
    assert alive(pid)
    await embedded.close()
    await asyncio.sleep(0.3)
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_a_channel_lasts_until_its_output_is_closed(raw: asyncssh.SSHClientConnection) -> None:
    """As sshd has it: a plain `&` that keeps the output holds the channel."""
    began = time.monotonic()
    await run(raw, "sleep 0.5 & exit 0")
    assert time.monotonic() - began >= 0.4
    process = await raw.create_process("sleep 60 & echo $!; exit 0", request_pty=False)
    pid = int(await process.stdout.readline())
    await asyncio.sleep(0.1)
    process.channel.abort()
    await process.wait_closed()
    os.kill(pid, signal.SIGKILL)


async def test_output_waits_for_a_slow_reader(raw: asyncssh.SSHClientConnection, tmp_path: Path) -> None:
    """Nothing is piled up: a writer of 64 MB is stopped by a client that does not read."""
    done = tmp_path / "done"
    process = await raw.create_process(f"head -c 64000000 /dev/zero; touch {done}", request_pty=False, encoding=None)
    await asyncio.sleep(0.7)
    assert not done.exists()
    total = 0
    while data := await process.stdout.read(1 << 20):
        total += len(data)
    assert total == 64_000_000
    assert done.exists()


async def test_input_waits_for_a_slow_command(raw: asyncssh.SSHClientConnection) -> None:
    process = await raw.create_process("sleep 0.5; wc -c", request_pty=False, encoding=None)
    for _ in range(64):
        process.stdin.write(bytes(1 << 18))
    early = asyncio.create_task(process.stdin.drain())
    await asyncio.sleep(0.2)
    assert not early.done()
    await early
    process.stdin.write_eof()
    assert (await process.stdout.read()).strip() == b"16777216"


async def test_the_last_piece_of_the_input_arrives_whatever_the_pipe_is_doing(
    raw: asyncssh.SSHClientConnection,
) -> None:
    """The end of the input comes while the pipe is written to, again and again: nothing before it is lost."""
    sizes = [(1 << 20) + number * 4099 for number in range(40)]

    async def count(size: int) -> int:
        process = await raw.create_process("sleep 0.02; wc -c", request_pty=False, encoding=None)
        process.stdin.write(bytes(size))
        process.stdin.write_eof()
        return int((await process.stdout.read()).strip())

    assert [await count(size) for size in sizes] == sizes


async def test_the_host_key_is_made_once_and_kept(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "host_key"
    keys = []
    for _ in range(2):
        server = EmbeddedServer(public_key(home), path)
        await server.start()
        keys.append(server.host_key)
        await server.close()
        await server.close()
    assert keys[0] == keys[1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("rubbish")
    with pytest.raises(Refused, match="a new one is made"):
        await EmbeddedServer(public_key(home), path).start()


async def test_inside_a_unit_a_command_gets_a_scope_of_its_own(
    raw: asyncssh.SSHClientConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "systemd-run"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do echo "$1"; shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (await run(raw, "echo plain")).stdout == b"plain\n"
    monkeypatch.setenv("INVOCATION_ID", "1")
    owner = b"--system" if os.geteuid() == 0 else b"--user"
    assert (await run(raw, "echo scoped")).stdout == owner + b"\n--scope\n--quiet\n--collect\nscoped\n"


@pytest.mark.skipif(not shutil.which("ssh"), reason="no OpenSSH client on this machine")
async def test_openssh_speaks_to_it(embedded: EmbeddedServer, home: Path, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{embedded.port} {embedded.host_key}\n")
    process = await asyncio.create_subprocess_exec(
        "ssh", "-F", "none", "-i", str(ensure_key(home)), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes",
        "-p", str(embedded.port), "x@127.0.0.1", "cat; exit 3",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate(b"through ssh")
    assert (out, process.returncode) == (b"through ssh", 3)
