"""A refused login says what there really was to try, and how to try the same by hand."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from llmgw.errors import LlmgwError
from llmgw.model.node import Address
from llmgw.model.secret import Secret
from llmgw.pki.sshkey import ensure_key
from llmgw.ssh import failures
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login

ADDRESS = Address(host="gpu.lan", user="root")


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without keys and agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def refused(login: Login, address: Address = ADDRESS) -> LlmgwError:
    return failures.explain(asyncssh.PermissionDenied("no"), address, login, key_shown=True)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """An agent that gives one answer, which the test may change."""
    answer = [b"\0\0\0\x05\x0c\0\0\0\0"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))

        def serve() -> None:
            asker, _ = listener.accept()
            with asker:
                asker.recv(100)
                asker.sendall(answer[0])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield answer
        thread.join(5)


def test_nothing_to_try() -> None:
    error = refused(Login(agent=True))
    assert error.message == ("root@gpu.lan refused the login: there was nothing to try (no key, no agent with keys).")
    assert error.fix is not None
    assert "`-i FILE`" in error.fix


@pytest.mark.parametrize("answer", [b"\0\0\0\x05\x0c\0\0\0\0", b"\0\0\0\x01\x05", b""])
def test_an_agent_without_keys(agent: list[bytes], answer: bytes) -> None:
    agent[0] = answer
    assert "nothing to try" in refused(Login(agent=True)).message


def test_an_agent_with_keys(agent: list[bytes]) -> None:
    agent[0] = b"\0\0\x01\x05\x0c\0\0\0\x02"
    assert refused(Login(agent=True)).message == "root@gpu.lan refused the login: tried the agent's keys."


def test_an_agent_that_is_gone(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(nobody / "gone"))
    key = Login(client_keys=(nobody / "key",), agent=True, password=Secret("hunter2"))
    assert refused(key).message == f"root@gpu.lan refused the login: tried key {nobody}/key, a password."


def test_the_usual_keys(nobody: Path) -> None:
    (nobody / ".ssh").mkdir()
    shutil.copy(ensure_key(nobody / "made"), nobody / ".ssh" / "id_ed25519")
    assert refused(Login(agent=True)).message == "root@gpu.lan refused the login: tried the keys in ~/.ssh."
    config = nobody / ".ssh" / "config"
    config.write_text("Host *\n")
    login = Login(agent=True, config_files=(config,))
    assert refused(login).message == "root@gpu.lan refused the login: tried the keys of the SSH configuration."
    config.write_text(f"Host gpu.lan\nIdentityFile {nobody}/gone\n")
    assert "of the SSH configuration" in refused(login).message, "what cannot be looked at is not denied"


@pytest.mark.parametrize(
    ("address", "command"),
    [
        (ADDRESS, "`ssh root@gpu.lan`"),
        (Address(host="gpu.lan", port=2222, user="root"), "`ssh -p 2222 root@gpu.lan`"),
        (Address(host="10.0.0.9", port=2222, user="root", config_host="gpu"), "`ssh -p 2222 root@gpu`"),
    ],
)
@pytest.mark.parametrize("login", [Login(client_keys=(Path("/k"),)), Login(agent=True)])
def test_how_to_try_it_by_hand(address: Address, command: str, login: Login) -> None:
    fix = refused(login, address).fix
    assert fix is not None
    assert f"Can {command} log in?" in fix
    assert "-i FILE" in fix
    assert "password" not in fix


@pytest.mark.skipif(not shutil.which("ssh-agent"), reason="no ssh-agent on this machine")
async def test_a_real_agent_that_holds_none(sshd, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(nobody / "agent"))
    agent = await asyncio.create_subprocess_exec("ssh-agent", "-D", "-a", nobody / "agent", stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        await agent.stdout.readline()
        server = sshd()
        for with_key in (False, True):
            if with_key:
                await (await asyncio.create_subprocess_exec("ssh-add", "-q", ensure_key(nobody / "stranger"))).wait()
            with pytest.raises(LlmgwError) as caught:
                await connect(server.address, login=Login(agent=True), host_key=server.host_key)
            assert caught.value.code == "login_refused"
            assert ("the agent's keys" if with_key else "nothing to try") in caught.value.message
    finally:
        agent.kill()
        await agent.wait()


@pytest.mark.parametrize(
    ("exc", "said"),
    [
        (socket.gaierror(-2, "Name or service not known"), "unknown to the name service: Name or service not known."),
        (OSError(101, "Network is unreachable"), "there is no route to gpu.lan: Network is unreachable."),
        (OSError(5, "Input/output error"), "root@gpu.lan cannot be reached: Input/output error."),
        (FileNotFoundError(2, "No such file or directory", "/k"), "/k cannot be read: No such file or directory."),
    ],
)
def test_no_error_numbers_for_people(exc: OSError, said: str) -> None:
    message = failures.explain(exc, ADDRESS, Login(), key_shown=False).message
    assert message.endswith(said)
