"""A login that is not root, made for a test, with the sudo that the test gives it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Node

NEEDED = ("sudo", "useradd", "userdel", "chpasswd", "setpriv")
PLACES = "/usr/sbin:/usr/bin:/sbin:/bin"
PASSWORD = f"geh3im wort-{secrets.token_hex(4)} ä%p"
PYTHON = "/usr/bin/python3"
"""The system's: the account may not look into anybody's home for another."""
ABSENT = [name for name in (*NEEDED, PYTHON) if shutil.which(name, path=PLACES) is None]

needs_sudo = pytest.mark.skipif(
    os.geteuid() != 0 or bool(ABSENT), reason=f"makes an account and gives it sudo: root only, missing: {ABSENT}"
)


class Account(Node):
    """A login that is not root, with the sudo that a test gives it. Stand-ins for the system's tools lie in `tools`."""

    def __init__(self, base: Path) -> None:
        (base / "home").mkdir()
        super().__init__(base / "home")
        self.use(PYTHON)
        self.name = f"llmgw{os.getpid()}"
        self.sudoers = Path(f"/etc/sudoers.d/llmgw-test-{self.name}")
        self.tools, self.record = base / "tools", base / "record"
        self.tools.mkdir()
        subprocess.run(["useradd", "-M", "-d", str(self.home), "-s", "/bin/sh", self.name], check=True)
        subprocess.run(["chpasswd"], input=f"{self.name}:{PASSWORD}\n".encode(), check=True)
        shutil.chown(self.home, self.name, self.name)
        self.login = base / "login"
        self.within = ""
        self.enter()

    def enter(self, within: str = "") -> None:
        """What a login is; `within` stands before it (strace)."""
        self.login.write_text(
            f'#!/bin/sh\nexec {within} setpriv --reuid {self.name} --regid {self.name} --init-groups /bin/sh "$@"\n'
        )
        self.login.chmod(0o755)

    def may(self, *rules: str) -> None:
        """The account's lines in sudoers; `USER` stands for its name."""
        self.sudoers.write_text("".join(rule.replace("USER", self.name) + "\n" for rule in rules))
        self.sudoers.chmod(0o440)

    def tool(self, name: str, body: str = "") -> None:
        """A stand-in that records how it was run and as whom."""
        path = self.tools / name
        head = f'#!/bin/sh\necho "$(id -un) {name} $*" >> {self.record}\nenv > {self.record}.env\n'
        path.write_text(f"{head}{body}\n")
        path.chmod(0o755)

    @property
    def ran(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def mend(self, remedy: str, **args: Any) -> Any:
        return self.call("privileged", **self.asked(remedy, **args))

    def asked(self, remedy: str, **args: Any) -> dict[str, Any]:
        return {"remedy": remedy, "_places": [str(self.tools)], "shell": str(self.login), **args}

    def end(self) -> None:
        self.sudoers.unlink(missing_ok=True)
        subprocess.run(["userdel", "-f", self.name], check=False, capture_output=True)
        for place in ("/run/sudo/ts", "/var/lib/sudo/lectured", "/var/lib/sudo/ts"):
            (Path(place) / self.name).unlink(missing_ok=True)


@contextlib.contextmanager
def an_account() -> Iterator[Account]:
    base = Path(tempfile.mkdtemp(prefix="llmgw-sudo-"))
    base.chmod(0o755)
    made = Account(base)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(base)


FREE = "USER ALL=(ALL) NOPASSWD: ALL"
ASKED = "USER ALL=(ALL) ALL"
TTY = "Defaults:USER requiretty"
PLAIN = "Defaults:USER !use_pty"
