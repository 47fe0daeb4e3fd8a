"""The operator's ways to log in: agent, encrypted key, password; and that nothing is sent to a wrong host."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest
import pytest_asyncio

from llmgw.errors import Refused
from llmgw.model.node import Address
from llmgw.model.secret import Secret
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login, operator_authorities, operator_known_keys, public_text

from .programs import ECHO


class PasswordServer(asyncssh.SSHServer):
    """Knows one password and writes down what it is asked."""

    seen: list[str]
    interactive = False

    def begin_auth(self, username: str) -> bool:
        self.seen.append(f"begin {username}")
        return True

    def password_auth_supported(self) -> bool:
        return not self.interactive

    def validate_password(self, username: str, password: str) -> bool:
        self.seen.append("password")
        return password == "correct horse"

    def kbdint_auth_supported(self) -> bool:
        return self.interactive

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> object:
        return "", "", "", [("Password: ", False)]

    def validate_kbdint_response(self, username: str, responses: list[str]) -> bool:
        return responses == ["correct horse"]


@pytest_asyncio.fixture(params=["password", "keyboard-interactive"])
async def server(request) -> AsyncIterator[tuple[Address, str, list[str]]]:
    seen: list[str] = []
    interactive = request.param != "password"

    class Here(PasswordServer):
        pass

    Here.seen, Here.interactive = seen, interactive
    key = asyncssh.generate_private_key("ssh-ed25519")
    listener = await asyncssh.listen("127.0.0.1", 0, server_factory=Here, server_host_keys=[key], config=None)
    yield Address(host="127.0.0.1", port=listener.get_port(), user="op"), public_text(key), seen
    listener.close()
    await listener.wait_closed()


async def test_a_password(server) -> None:
    address, key, _ = server
    connection = await connect(address, login=Login(password=Secret("correct horse")), host_key=key)
    await connection.close()
    with pytest.raises(Refused) as caught:
        await connect(address, login=Login(password=Secret("wrong")), host_key=key)
    assert caught.value.code == "login_refused"


async def test_a_password_is_sent_to_no_host_that_is_unknown_or_changed(server) -> None:
    address, _, seen = server
    login = Login(password=Secret("correct horse"))
    other = public_text(asyncssh.generate_private_key("ssh-ed25519"))
    for host_key, code in ((other, "host_key_changed"), (None, "host_key_unknown")):
        with pytest.raises(Refused) as caught:
            await connect(address, login=login, host_key=host_key)
        assert caught.value.code == code
    assert seen == []


@pytest.fixture
def encrypted(home: Path, tmp_path: Path) -> Path:
    if not shutil.which("ssh-keygen"):
        pytest.skip("no ssh-keygen on this machine")
    path = tmp_path / "encrypted"
    path.write_bytes((home / "id_ed25519").read_bytes())
    path.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-a", "1", "-P", "", "-N", "open sesame", "-f", path], check=True)
    return path


async def test_an_encrypted_key_that_nobody_opens_is_passed_over(sshd, encrypted: Path) -> None:
    server = sshd()
    with pytest.raises(Refused) as caught:
        await connect(server.address, login=Login(client_keys=(encrypted,)), host_key=server.host_key)
    assert caught.value.code == "login_refused"


async def test_an_encrypted_key_and_its_passphrase(sshd, encrypted: Path) -> None:
    server = sshd()
    asked: list[str] = []

    async def ask(name: str) -> str:
        asked.append(name)
        await asyncio.sleep(0.3)  # longer than a connection may take: a person is typing
        return "open sesame"

    async def guess(name: str) -> str:
        return "wrong"

    login = Login(client_keys=(encrypted,), passphrase=ask)
    try:
        import bcrypt  # noqa: F401
    except ImportError:
        with pytest.raises(Refused, match="bcrypt") as without:
            await connect(server.address, login=login, host_key=server.host_key)
        assert without.value.code == "bad_key"
        return
    await (await connect(server.address, login=login, host_key=server.host_key, connect_timeout=0.2)).close()
    assert asked == [str(encrypted)]
    wrong = Login(client_keys=(encrypted,), passphrase=guess)
    with pytest.raises(Refused, match="may be wrong") as caught:
        await connect(server.address, login=wrong, host_key=server.host_key)
    assert caught.value.code == "login_refused"


@pytest.mark.skipif(not shutil.which("ssh-agent"), reason="no ssh-agent on this machine")
async def test_the_operators_agent(sshd, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = tmp_path / "agent"
    monkeypatch.setenv("HOME", str(tmp_path))  # no keys of whoever runs the tests
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    agent = await asyncio.create_subprocess_exec("ssh-agent", "-D", "-a", socket, stdout=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(5):
        while not socket.exists():
            await asyncio.sleep(0.01)
    await (await asyncio.create_subprocess_exec("ssh-add", "-q", home / "id_ed25519")).wait()
    server = sshd(AllowAgentForwarding="yes")
    connection = await connect(server.address, login=Login(agent=True), host_key=server.host_key)
    source = ECHO.replace(b"'pid': os.getpid()", b"'agent': os.environ.get('SSH_AUTH_SOCK')")
    assert (await connection.run_program("echo", source, {}, deadline=10))["agent"] is None
    await connection.close()
    # And without it being asked for the agent is not used.
    with pytest.raises(Refused):
        await connect(server.address, login=Login(), host_key=server.host_key)
    agent.terminate()
    await agent.wait()


def typist(*answers: str | None, pause: float = 0.0) -> tuple[list[str], Login]:
    """A login whose prompts are answered one after the other, and what was asked."""
    asked: list[str] = []

    async def prompt(question: str, echo: bool) -> str | None:
        assert not echo
        asked.append(question)
        await asyncio.sleep(pause)
        return answers[len(asked) - 1]

    return asked, Login(prompt=prompt)


async def test_a_person_may_type_the_password(server) -> None:
    address, key, _ = server
    asked, login = typist("wrong", "correct horse")
    await (await connect(address, login=login, host_key=key)).close()
    assert len(asked) == 2
    assert asked[0].startswith(str(address))
    assert asked[1].startswith(f"Wrong; once more. {address}")


async def test_a_person_has_three_tries_and_may_give_up(server) -> None:
    address, key, _ = server
    for answers, times in ((("a", "b", "c", "correct horse"), 3), ((None,), 1)):
        asked, login = typist(*answers)
        with pytest.raises(Refused) as caught:
            await connect(address, login=login, host_key=key)
        assert caught.value.code == "login_refused"
        assert len(asked) == times


@pytest.mark.parametrize("options", [{"KbdInteractiveAuthentication": "yes"}])
async def test_a_server_that_offers_to_ask_and_asks_nothing(sshd, options: dict[str, str]) -> None:
    """sshd without PAM: its keyboard-interactive fails at once, and each try counts against MaxAuthTries."""
    server = sshd(PasswordAuthentication="yes", MaxAuthTries=3, **options)
    asked, login = typist("wrong", None)
    with pytest.raises(Refused) as caught:
        await connect(server.address, login=login, host_key=server.host_key)
    assert caught.value.code == "login_refused"
    assert asked, "the password was never asked for"


async def test_typing_takes_its_time(server) -> None:
    address, key, _ = server
    _, login = typist("correct horse", pause=0.8)
    await (await connect(address, login=login, host_key=key, login_timeout=0.3)).close()


async def test_what_comes_after_the_typing_has_its_time_too(server) -> None:
    address, key, _ = server
    _, login = typist("wrong", "correct horse", pause=0.45)  # the last answer comes just after twice the time
    await (await connect(address, login=login, host_key=key, login_timeout=0.5)).close()


async def test_nobody_types_for_an_unknown_host(server) -> None:
    address, _, seen = server
    asked, login = typist("correct horse")
    with pytest.raises(Refused) as caught:
        await connect(address, login=login, host_key=None)
    assert caught.value.code == "host_key_unknown"
    assert asked == seen == []


needs_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen on this machine")


def sign(authority: Path, key: Path, *more: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "test", *more, key], check=True)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    path = tmp_path / "authority"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@needs_keygen
async def test_a_certificate_of_the_operator(sshd, authority: Path, home: Path, tmp_path: Path) -> None:
    server = sshd(authorized="# nobody", TrustedUserCAKeys=f"{authority}.pub")
    key = tmp_path / "mine"
    for end in ("", ".pub"):
        shutil.copy(f"{home / 'id_ed25519'}{end}", f"{key}{end}")
    with pytest.raises(Refused):
        await connect(server.address, login=Login(client_keys=(key,)), host_key=server.host_key)
    sign(authority, Path(f"{key}.pub"), "-n", server.address.user)
    await (await connect(server.address, login=Login(client_keys=(key,)), host_key=server.host_key)).close()


@needs_keygen
async def test_an_authority_vouches_for_the_host(sshd, login: Login, authority: Path, tmp_path: Path) -> None:
    server = sshd()
    folder = server.config.parent
    (folder / "ssh-ed25519.pub").write_text(server.host_key + "\n")
    sign(authority, folder / "ssh-ed25519.pub", "-h", "-n", "127.0.0.1")
    server.stop()
    server.config.write_text(server.config.read_text() + f"HostCertificate {folder / 'ssh-ed25519-cert.pub'}\n")
    server.start()
    known = tmp_path / "known_hosts"
    known.write_text(f"@cert-authority 127.0.0.1,[127.0.0.1]:* {Path(f'{authority}.pub').read_text()}")
    authorities = operator_authorities(server.address, [known])
    assert operator_known_keys(server.address, [known]) == []
    connection = await connect(server.address, login=login, host_key=None, authorities=authorities)
    assert connection.host_key == server.host_key  # the plain key is what is pinned
    await connection.close()
    stranger = public_text(asyncssh.generate_private_key("ssh-ed25519"))
    for others in ((), (stranger,)):
        with pytest.raises(Refused) as caught:
            await connect(server.address, login=login, host_key=None, authorities=others)
        assert caught.value.code == "host_key_unknown"


@pytest.mark.parametrize("pinned", [True, False])
async def test_what_the_operators_known_hosts_holds_does_not_go_before_the_pin(
    server, pinned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncssh reads ~/.ssh/known_hosts by itself where it is given nothing to go by."""
    address, key, seen = server
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_text(f"[{address.host}]:{address.port} {key}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    other = public_text(asyncssh.generate_private_key("ssh-ed25519")) if pinned else None
    with pytest.raises(Refused) as caught:
        await connect(address, login=Login(password=Secret("correct horse")), host_key=other)
    assert caught.value.code == ("host_key_changed" if pinned else "host_key_unknown")
    assert seen == []
