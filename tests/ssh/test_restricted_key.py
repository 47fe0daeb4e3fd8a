"""The line for authorized_keys, against a real sshd: what must be refused is refused, what we need works (F76)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest

from llmgw.errors import Refused
from llmgw.pki.sshkey import public_line
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login

from .programs import ECHO
from .test_tunnel import Engine, Recorder


@pytest.fixture
def line(home: Path) -> str:
    return public_line(home, "0123abcd")


async def test_what_we_need_works(sshd, login: Login, line: str) -> None:
    server = sshd(authorized=line, AllowAgentForwarding="yes", X11Forwarding="yes", GatewayPorts="yes")
    link = await connect(server.address, login=login, host_key=server.host_key)
    assert await link.run_program("echo", ECHO, {}, deadline=10)
    engine = Engine()
    await engine.start()
    ours = await link.open_stream(engine.port, Recorder)
    assert isinstance(ours, Recorder)
    (await engine.first()).transport.write(b"hello")
    await ours.until(lambda: bytes(ours.data) == b"hello")
    ours.transport.close()
    with pytest.raises(Refused) as caught:
        await link.open_stream(engine.port, Recorder, host="127.0.0.2")
    assert caught.value.code == "forwarding_forbidden"
    with pytest.raises(Refused):
        await link.open_stream(engine.port, Recorder, host="localhost")
    await link.close()
    engine.server.close()
    for end in engine.accepted:
        end.transport.abort()


async def test_what_must_be_refused_is_refused(sshd, login: Login, line: str) -> None:
    server = sshd(authorized=line, AllowAgentForwarding="yes", X11Forwarding="yes", GatewayPorts="yes")
    async with asyncssh.connect(
        "127.0.0.1",
        server.port,
        username=server.address.user,
        client_keys=[str(login.client_keys[0])],
        known_hosts=f"[127.0.0.1]:{server.port} {server.host_key}\n".encode(),
        config=None,
        agent_path=None,
    ) as raw:
        for host, port in (("127.0.0.1", 0), ("", 0), ("localhost", 2222), ("0.0.0.0", 2222)):
            with pytest.raises(asyncssh.ChannelListenError):
                await raw.forward_remote_port(host, port, "127.0.0.1", 1)
        with pytest.raises(asyncssh.ChannelOpenError):
            await raw.open_connection("example.invalid", 80)
        with pytest.raises(asyncssh.ChannelOpenError):
            await raw.run("true", term_type="xterm", request_pty="force")
        with pytest.raises(asyncssh.ChannelOpenError):
            await raw.run("true", x11_forwarding=True, x11_display="127.0.0.1:0")
        found = await raw.run("echo agent=$SSH_AUTH_SOCK", request_pty=False)
        assert found.stdout == "agent=\n"


async def test_no_agent_even_when_it_is_asked_for(sshd, login: Login, line: str, tmp_path: Path) -> None:
    server = sshd(authorized=line, AllowAgentForwarding="yes")

    async def keyless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            writer.write(b"\0\0\0\1\5")  # SSH_AGENT_FAILURE
        writer.close()

    listener = await asyncio.start_unix_server(keyless, str(tmp_path / "agent"))
    async with (
        listener,
        asyncssh.connect(
            "127.0.0.1",
            server.port,
            username=server.address.user,
            client_keys=[str(login.client_keys[0])],
            known_hosts=f"[127.0.0.1]:{server.port} {server.host_key}\n".encode(),
            config=None,
            agent_path=str(tmp_path / "agent"),
            agent_forwarding=True,
        ) as raw,
    ):
        found = await raw.run("echo agent=$SSH_AUTH_SOCK", request_pty=False)
        assert found.stdout == "agent=\n"
