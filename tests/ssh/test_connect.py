"""Reaching a node: every way to fail has its own code and its own sentence (F26, F27, F28)."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import asyncssh
import pytest

from llmgw.errors import LlmgwError, Refused, TimedOut, Unreachable
from llmgw.model.node import Address
from llmgw.model.secret import Secret
from llmgw.pki.sshkey import ensure_key
from llmgw.ssh.connection import connect
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import Login, host_key_fingerprint, public_text, resolve

from .conftest import USER, at, free_port
from .programs import ECHO

OTHER = public_text(asyncssh.generate_private_key("ssh-ed25519"))


async def failure(address: Address, login: Login, host_key: str | None = OTHER, **times: float) -> LlmgwError:
    with pytest.raises(LlmgwError) as caught:
        await connect(address, login=login, host_key=host_key, **times)
    return caught.value


async def test_unknown_host(login: Login) -> None:
    error = await failure(Address(host="no-such-host.invalid", user="x"), login)
    assert isinstance(error, Unreachable)
    assert error.code == "unknown_host"
    assert error.exit_status == 5
    assert "Errno" not in error.message


async def test_closed_port(login: Login) -> None:
    for host in ("127.0.0.1", "localhost"):
        error = await failure(Address(host=host, port=free_port(), user="x"), login)
        assert (type(error), error.code) == (Unreachable, "port_closed")


async def test_silent_port_times_out_as_a_login(login: Login) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(host="127.0.0.1", port=silent.getsockname()[1], user="x")
        error = await failure(address, login, login_timeout=0.3)
        assert (type(error), error.code) == (TimedOut, "login_timeout")


async def test_unanswered_connect_times_out(login: Login) -> None:
    # A listener whose queue is full drops further SYNs: as silent as a firewall.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        error = await failure(
            Address(host="127.0.0.1", port=full.getsockname()[1], user="x"),
            login,
            connect_timeout=0.3,
            login_timeout=0.3,
        )
        assert (type(error), error.code) == (TimedOut, "connect_timeout")
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(
    ("greeting", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "handshake_dropped"),
        (b"SSH-1.5-old\r\n", "not_ssh"),
        (b"x" * 20000, "not_ssh"),
        (b"SSH-2.0-odd\r\n" + b"\0" * 4096, "not_ssh"),
        (b"", "handshake_dropped"),
        (b"Exceeded MaxStartups\r\n", "handshake_dropped"),
    ],
    ids=["http", "old", "endless", "damaged", "nothing", "full"],
)
async def test_not_ssh(login: Login, greeting: bytes, code: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        error = await failure(Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1], user="x"), login)
    assert (type(error), error.code) == (Unreachable, code)


async def test_refused_login_names_what_was_tried(sshd, tmp_path: Path) -> None:
    server = sshd()
    stranger = ensure_key(tmp_path / "stranger")
    error = await failure(server.address, Login(client_keys=(stranger,), password=Secret("hunter2")), server.host_key)
    assert (type(error), error.code, error.exit_status) == (Refused, "login_refused", 4)
    assert str(stranger) in error.message
    assert "a password" in error.message
    assert "hunter2" not in str(error) + repr(error.data)


async def test_a_missing_identity_says_so(sshd, tmp_path: Path) -> None:
    server = sshd()
    error = await failure(server.address, Login(client_keys=(tmp_path / "nothing",)), server.host_key)
    assert error.code == "bad_key"
    assert "nothing" in error.message
    assert "Errno" not in error.message


async def test_changed_key_is_refused_before_authentication(sshd, login: Login) -> None:
    server = sshd(LogLevel="DEBUG1")
    error = await failure(server.address, login, OTHER)
    assert (type(error), error.code) == (Refused, "host_key_changed")
    assert host_key_fingerprint(OTHER) in error.message
    assert host_key_fingerprint(server.host_key) in error.message
    assert f"--trust-key {host_key_fingerprint(server.host_key)}" in error.fix
    assert error.data["shown_key"] == server.host_key
    assert "userauth-request" not in server.log.read_text()


@pytest.mark.parametrize("kind", ["ssh-rsa", "ecdsa-sha2-nistp256", "ssh-ed25519"])
async def test_a_pinned_key_of_any_type_is_asked_for(sshd, login: Login, kind: str) -> None:
    server = sshd(keys=("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"))
    connection = await connect(server.address, login=login, host_key=server.host_keys[kind])
    assert connection.host_key == server.host_keys[kind]
    await connection.close()


async def test_a_pinned_type_that_is_gone_counts_as_changed(sshd, login: Login) -> None:
    server = sshd(keys=("ecdsa-sha2-nistp256",))
    error = await failure(server.address, login, OTHER)
    assert (error.code, error.data["shown_key"]) == ("host_key_changed", server.host_keys["ecdsa-sha2-nistp256"])


async def test_unknown_key_is_asked_for_before_any_login(sshd, login: Login) -> None:
    server = sshd(LogLevel="DEBUG1")
    error = await failure(server.address, login, None)
    assert (error.code, error.data["shown_key"]) == ("host_key_unknown", server.host_key)
    asked = []

    async def ask(host: str, key: str, fingerprint: str) -> bool:
        asked.append((host, key, fingerprint))
        assert "userauth-request" not in server.log.read_text()
        return len(asked) > 1

    with pytest.raises(Refused, match="nobody has confirmed"):
        await connect(server.address, login=login, host_key=None, ask=ask)
    connection = await connect(server.address, login=login, host_key=None, ask=ask)
    assert asked[1] == (str(server.address), server.host_key, host_key_fingerprint(server.host_key))
    await connection.close()


async def test_no_pin_is_never_any_key(embedded: EmbeddedServer, login: Login) -> None:
    assert (await failure(at(embedded), login, "")).code == "host_key_unknown"


async def test_cancelling_leaves_nothing(embedded: EmbeddedServer, login: Login) -> None:
    for delay in (0, 0.001, 0.005, 0.01, 0.02, 0.05):
        task = asyncio.create_task(connect(at(embedded), login=login, host_key=embedded.host_key))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            await (await task).close()
        except asyncio.CancelledError:
            continue


async def test_close_is_quick_and_told_once(embedded: EmbeddedServer, login: Login) -> None:
    reasons: list[LlmgwError] = []
    connection = await connect(at(embedded), login=login, host_key=embedded.host_key, on_close=reasons.append)
    began = time.monotonic()
    await connection.close()
    await connection.close()
    assert connection.closed
    assert time.monotonic() - began < 1
    assert [reason.code for reason in reasons] == ["link_lost"]


async def test_aliases_and_jump_hosts_of_the_configuration(sshd, login: Login, tmp_path: Path, monkeypatch) -> None:
    target, jump = sshd(), sshd(AllowTcpForwarding="yes")
    jump.authorized_keys.write_text(jump.authorized_keys.read_text().replace('permitopen="127.0.0.1:*",', ""))
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{jump.port} {jump.host_key}\n")
    config = tmp_path / "config"
    config.write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  Port {target.port}\n  User {USER}\n  ProxyJump hop\n"
        f"Host hop\n  HostName 127.0.0.1\n  Port {jump.port}\n  User {USER}\n  UserKnownHostsFile {known}\n"
        f"Host *\n  IdentityFile {login.client_keys[0]}\n"
    )
    with_config = Login(config_files=(config, tmp_path / "missing"))
    address = await resolve("gpu", login=with_config)
    assert address == Address(host="127.0.0.1", port=target.port, user=USER, config_host="gpu")
    connection = await connect(address, login=with_config, host_key=target.host_key)
    assert (await connection.run_program("echo", ECHO, {"a": 1}, deadline=10))["args"] == {"a": 1}
    # F29: the jump host goes away, and with it what lies behind.
    jump.stop()
    async with asyncio.timeout(5):
        await connection.wait_closed()
    error = await failure(address, with_config, target.host_key)
    assert isinstance(error, Unreachable)
    jump.start()
    known.write_text("")
    assert (await failure(address, with_config, target.host_key)).code == "jump_host_key"


async def test_a_broken_configuration_is_named(login: Login, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  Port many\n")
    error = await failure(
        Address(host="127.0.0.1", user="x"), Login(client_keys=login.client_keys, config_files=(config,))
    )
    assert error.code == "config"
    with pytest.raises(LlmgwError, match="SSH configuration"):
        await resolve("x", login=Login(config_files=(config,)))
