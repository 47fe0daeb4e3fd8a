"""Runs a remote script as a node would: the bootstrap line in a shell, the request on stdin, frames on stdout."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llmgw import assets
from llmgw.protocol.frame import FrameReader, new_token, request
from llmgw.protocol.shell import BOOTSTRAP

SCRIPTS = Path(__file__).resolve().parents[2] / "remote_scripts"


def free_ports(count: int) -> tuple[int, int]:
    """First and last of `count` ports in a row that can be bound, from below those that outgoing connections are
    given: there a test's whole range may be taken by anyone, and stays so for a minute after."""
    outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for last in range(outgoing - 1, 1024 + count, -count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(last - count + 1, last + 1):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return last - count + 1, last
    raise AssertionError(f"no {count} ports in a row are free below {outgoing}")


class ScriptError(Exception):
    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(f"{body['code']}: {body['message']}")
        self.body = body
        self.code: str = body["code"]


@dataclass
class Call:
    """One call of a script under way."""

    process: subprocess.Popen[bytes]
    reader: FrameReader
    events: list[dict[str, Any]] = field(default_factory=list)
    stderr: str = ""

    def finish(self, timeout: float = 30) -> Any:
        out, err = self.process.communicate(timeout=timeout)
        self.stderr = err.decode(errors="replace")
        frames = list(self.reader.feed(out))
        self.reader.close()
        self.events = [frame["event"] for frame in frames if "event" in frame]
        last = [frame for frame in frames if "event" not in frame]
        assert len(last) == 1, (frames, self.stderr)
        if "error" in last[0]:
            raise ScriptError(last[0]["error"])
        return last[0]["result"]


class Node:
    """A home of its own, and what the control plane would say to it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {"HOME": str(home), "LANG": "C"}
        self.bin = home.parent / "bin"
        self.bin.mkdir()
        self.use(os.environ.get("LLMGW_TEST_PYTHON", sys.executable))
        self.base: dict[str, Any] = {"root": None, "node_id": "n1", "controller_id": "c1", "term": 1}
        self.last: Call | None = None
        self.change: tuple[str, str] | None = None

    def use(self, python: str) -> None:
        """Scripts run under this interpreter: it has the name that the bootstrap tries first."""
        link = self.bin / "python3.14"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.realpath(python))
        self.env["PATH"] = f"{self.bin}:/usr/local/bin:/usr/bin:/bin"

    @property
    def root(self) -> Path:
        return self.home / ".local/share/llmgw"

    def begin(
        self, name: str, *, payload: bytes | None = None, cut: bytes | None = None, deadline: float = 30, **args: Any
    ) -> Call:
        """Starts a call. `cut` is sent in place of the announced payload."""
        token = new_token()
        sent = payload if cut is None else cut
        source = assets.remote_script(name).decode()
        if self.change is not None:  # what a test makes different in the script
            assert self.change[0] in source
            source = source.replace(*self.change)
        body = request(
            assets.prelude(),
            f"{name}.py",
            source.encode(),
            {**self.base, **args},
            token=token,
            deadline=deadline,
            payload=len(payload or b""),
        )
        process = subprocess.Popen(
            [args.get("shell", "/bin/bash"), "-c", BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.home,
            start_new_session=True,
        )
        assert process.stdin is not None
        call = Call(process, FrameReader(token))
        self.last = call
        with contextlib.suppress(BrokenPipeError):  # an answer may come before the payload is taken
            process.stdin.write(body + (sent or b""))
            process.stdin.flush()
        if cut is not None:
            process.stdin.close()
            process.stdin = None
        return call

    def call(self, name: str, **args: Any) -> Any:
        call = self.begin(name, **args)
        # stdin stays open until the script is done: its end would end the script.
        stdin, call.process.stdin = call.process.stdin, None
        try:
            return call.finish()
        finally:
            if stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    stdin.close()


def tagged(home: Path) -> list[int]:
    """Every process that was started for this home, waiters included."""
    mark = f"HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                data = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mark in data.split(b"\0") and b"LLMGW_" in data and state != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture
def node(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    yield Node(home)
    for pid in tagged(home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ends = time.monotonic() + 5
    while tagged(home) and time.monotonic() < ends:
        time.sleep(0.01)


def tree(path: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Every name below `path` with mode and contents."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for each in sorted(path.rglob("*")):
        info = each.lstat()
        contents = os.readlink(each) if each.is_symlink() else each.read_bytes() if each.is_file() else None
        found[str(each.relative_to(path))] = (info.st_mode, contents)
    return found
