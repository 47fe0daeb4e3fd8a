"""A real sshd with throw-away keys, the embedded server, and the check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import pytest_asyncio

from llmgw.model.node import Address
from llmgw.pki.sshkey import ensure_key, public_key
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import Login

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or ""
USER = __import__("pwd").getpwuid(os.getuid()).pw_name


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A control plane's home with its key."""
    path = tmp_path_factory.mktemp("home")
    ensure_key(path)
    return path


@pytest.fixture(scope="session")
def login(home: Path) -> Login:
    return Login(client_keys=(ensure_key(home),))


@dataclass
class Sshd:
    port: int
    host_keys: dict[str, str]
    config: Path
    authorized_keys: Path
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.port, user=USER)

    @property
    def host_key(self) -> str:
        return self.host_keys["ssh-ed25519"]

    def children(self) -> list[int]:
        """The processes that serve connections."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def stop(self) -> None:
        for pid in self.children():
            _kill_tree(pid)
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.config)], stdin=subprocess.DEVNULL, stderr=log
            )
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with socket.socket() as sock:
                sock.settimeout(2)
                try:
                    sock.connect(("127.0.0.1", self.port))
                    if sock.recv(4).startswith(b"SSH-"):
                        return
                except OSError:
                    time.sleep(0.02)
            if self.process.poll() is not None:
                break
        raise RuntimeError(f"sshd did not start: {self.log.read_text()}")


def _kill_tree(pid: int) -> None:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    for child in found.stdout.split():
        _kill_tree(int(child))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _host_key(path: Path, algorithm: str) -> str:
    key = asyncssh.generate_private_key(algorithm)
    path.write_bytes(key.export_private_key("openssh"))
    path.chmod(0o600)
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


def start_sshd(
    folder: Path,
    home: Path,
    *,
    keys: tuple[str, ...] = ("ssh-ed25519",),
    authorized: str | None = None,
    **options: object,
) -> Sshd:
    """An OpenSSH server with `options` in its configuration: `start_sshd(…, MaxSessions=1)`."""
    if not SSHD:
        pytest.skip("no sshd on this machine (openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # privilege separation wants it
    folder.mkdir()
    public = {name: _host_key(folder / name, name) for name in keys}
    (folder / "authorized_keys").write_text((authorized or public_key(home)) + "\n")
    port = free_port()
    lines = [
        *(f"{name} {value}" for name, value in options.items() if name != "Match"),  # of two the first counts
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        *(f"HostKey {folder / name}" for name in keys),
        f"AuthorizedKeysFile {folder / 'authorized_keys'}",
        "StrictModes no",
        "PermitRootLogin yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "UsePAM no",
        f"PidFile {folder / 'pid'}",
        f"SetEnv HOME={folder}",  # nobody's own .bashrc: it is slow, and killing a shell in it may leave locks
        *(f"{name} {value}" for name, value in options.items() if name == "Match"),
    ]
    (folder / "config").write_text("\n".join(lines) + "\n")
    server = Sshd(port, public, folder / "config", folder / "authorized_keys", folder / "log")
    server.start()
    return server


@pytest.fixture
def sshd(tmp_path: Path, home: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts servers that end with the test: `sshd(MaxSessions=1, keys=("ssh-ed25519",), authorized="…")`."""
    made: list[Sshd] = []

    def start(**options: Any) -> Sshd:
        made.append(start_sshd(tmp_path / f"sshd{len(made)}", home, **options))
        return made[-1]

    yield start
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def shared_sshd(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Sshd]:
    """One for all the tests that leave it alone."""
    server = start_sshd(tmp_path_factory.mktemp("shared") / "sshd", home)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def deaf_sshd(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Sshd]:
    """One that forwards nothing, for all the tests that leave it alone."""
    server = start_sshd(tmp_path_factory.mktemp("deaf") / "sshd", home, AllowTcpForwarding="no")
    yield server
    server.stop()


@pytest_asyncio.fixture
async def embedded(home: Path, tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(public_key(home), tmp_path / "embedded_key")
    await server.start()
    yield server
    await server.close()


def at(server: EmbeddedServer) -> Address:
    return Address(host="127.0.0.1", port=server.port, user="anybody")


@pytest_asyncio.fixture
async def link(embedded: EmbeddedServer, login: Login) -> AsyncIterator[Connection]:
    """A connection to the embedded server."""
    connection = await connect(at(embedded), login=login, host_key=embedded.host_key)
    yield connection
    await connection.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest_asyncio.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Tasks and descriptors after a test are those from before it."""
    await asyncio.get_running_loop().run_in_executor(None, int)  # the executor's own thread and pipe
    before_tasks, before_files = len(asyncio.all_tasks()), open_files()
    yield
    end = time.monotonic() + 5
    while True:
        tasks, files = len(asyncio.all_tasks()), open_files()
        if (tasks <= before_tasks and files <= before_files) or time.monotonic() > end:
            break
        gc.collect()
        await asyncio.sleep(0.02)
    assert tasks <= before_tasks, f"tasks left: {asyncio.all_tasks()}"
    assert files <= before_files, f"{files - before_files} descriptors left"
