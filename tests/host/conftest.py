"""Homes as an operator has them: one that was used, copied for each test, and what is found in it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmgw.clock import SystemClock
from llmgw.config.home import Home, write_private
from llmgw.config.settings import Settings, parse_listen
from llmgw.host import facts, processes
from llmgw.host.doctor import Report, examine
from llmgw.model.node import Address, Node
from llmgw.pki import sshkey
from llmgw.store import events, lease, nodes
from llmgw.store.db import Store, Tx
from tests.core.findings.fixes import wrong

Look = Callable[..., Report]
LARGE = 256 << 20
"""Bytes of a file that is not read whole here: a sparse one."""


@pytest.fixture(scope="session")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that has served: keys, identity, a state with a node, a copy of it. No server runs."""
    place = tmp_path_factory.mktemp("used") / "home"
    place.mkdir(mode=0o700)
    home = Home(place)
    identity = home.identity()
    key = sshkey.public_key(place)
    write_private(home.token, "llmgw-admin-0123456789abcdef\n")
    write_private(home.known_hosts, f"10.0.0.2 {key}\n")

    def fill(tx: Tx) -> None:
        lease.begin_term(tx, identity.controller_id)
        nodes.put(tx, Node(id="gpu01", address=Address(host="10.0.0.2", user="root"), host_key=key))
        events.add(tx, "node.added", "gpu01 is here")

    async def make() -> None:
        store = Store(home.database, SystemClock())
        await store.open()
        await store.write(fill)
        await store.close()
        taken = await lease.acquire(home.lock, purpose="server run")
        taken.release()

    asyncio.run(make())
    (place / "backups").mkdir(mode=0o700)
    shutil.copy2(home.database, place / "backups" / "state-2026-01-01.db")
    (place / "llmgw.yaml").write_text("listen: 127.0.0.1:0\nadmin_listen: null\n")
    return place


@pytest.fixture(autouse=True)
def nobody_at_the_default_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home whose configuration cannot be read is judged by the defaults; here somebody may be using those."""
    real, defaults = processes.listeners, Settings()
    ports = {parse_listen(str(one))[1] for one in (defaults.listen, defaults.admin_listen)}
    monkeypatch.setattr(processes, "listeners", lambda port: [] if port in ports else real(port))


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Home:
    return Home(Path(shutil.copytree(used, tmp_path / "home")))


@pytest.fixture
def look(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Examines the home in the environment of a shell that has nothing but what is said."""
    monkeypatch.delenv("LLMGW_CONFIG", raising=False)

    def look(**environ: str) -> Report:
        report = examine(home, {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **environ})
        assert [(one.code, one.fix, why) for one in report.problems if (why := wrong(one.fix))] == []
        return report

    return look


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system with the options given."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SERVER", 1.0)


def said(report: Report, code: str) -> str:
    """The finding's sentence and fix. Fails when it is not there, or there twice."""
    found = [f"{problem.message} → {problem.fix}" for problem in report.problems if problem.code == code]
    assert len(found) == 1, f"{code}: {[(one.code, one.message) for one in report.problems]}"
    return found[0]


def codes(report: Report, severity: str | None = None) -> set[str]:
    return {one.code for one in report.problems if severity is None or one.severity == severity}


def tree(place: Path) -> dict[str, tuple[object, ...]]:
    """What is there, every byte of it: a difference between two of these is a trace."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [place, *place.rglob("*")]:
        info = path.lstat()
        holds = b""
        if stat.S_ISREG(info.st_mode) and info.st_size < LARGE:
            holds = hashlib.sha256(path.read_bytes()).digest()
        elif stat.S_ISLNK(info.st_mode):
            holds = os.fsencode(os.readlink(path))
        found[str(path)] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino, info.st_uid, holds)
    return found
