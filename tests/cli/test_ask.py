"""Questions at a real terminal: an answer, none, and Ctrl-C, which leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = """
from llmgw.cli import ask, session
async def main():
    {body}
try:
    session.run(main())
except KeyboardInterrupt:
    raise SystemExit(130)
"""
LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
"""Makes the terminal the one that Ctrl-C is typed at."""


class Terminal:
    def __init__(self, body: str) -> None:
        self.master, self.slave = pty.openpty()  # both held open, so that its settings can be looked at
        command = [sys.executable, "-c", LAUNCH, sys.executable, "-c", PROGRAM.format(body=body)]
        ends = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        self.process = subprocess.Popen(command, start_new_session=True, **ends)
        self.text = ""

    def until(self, words: str) -> str:
        """Reads until the words are on the screen; everything that was on it since `text` was emptied."""
        ends = time.monotonic() + 20
        while words not in self.text:
            assert time.monotonic() < ends, f"{words!r} never came: {self.text!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.text += os.read(self.master, 4096).decode()
        return self.text

    def until_silent(self) -> None:
        ends = time.monotonic() + 20
        while self.echoes:
            assert time.monotonic() < ends, "the terminal was never silenced"
            time.sleep(0.01)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.slave)[3] & termios.ECHO)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


Open = Callable[[str], Terminal]


@pytest.fixture
def terminal() -> Iterator[Open]:
    opened: list[Terminal] = []

    def begin(body: str) -> Terminal:
        opened.append(Terminal(body))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


def test_a_line_and_the_end_of_the_input(terminal: Open) -> None:
    asked = terminal("print([await ask.line('Name: '), await ask.line('Once more: ')])")
    asked.until("Name: ")
    asked.type("gpü 01\n")
    asked.until("Once more: ")
    asked.type("\x04")
    assert "['gpü 01', None]" in asked.until("]")
    assert asked.process.wait(10) == 0


def test_a_password_is_not_shown(terminal: Open) -> None:
    asked = terminal("print((await ask.line('Password: ', hidden=True))[::-1])")
    asked.until("Password: ")
    assert not asked.echoes, "it is silent before it is asked for"
    asked.type("secret\n")
    assert "secret" not in asked.until("terces")
    assert asked.process.wait(10) == 0
    assert asked.echoes


@pytest.mark.parametrize(
    ("typed", "default", "answer"),
    [("y\n", None, True), ("No\n", True, False), ("\n", True, True), ("\n", False, False)],
)
def test_yes_and_no(terminal: Open, typed: str, default: bool | None, answer: bool) -> None:
    asked = terminal(f"print('said', await ask.confirm('Sure?', default={default}))")
    asked.until("]: ")
    asked.type(typed)
    asked.until(f"said {answer}")


def test_what_is_neither_is_asked_again(terminal: Open) -> None:
    asked = terminal("print('said', await ask.confirm('Sure?'))")
    for typed in ("perhaps\n", "\n", "y\n"):
        asked.until("[y/n]: ")
        asked.text = ""
        asked.type(typed)
    asked.until("said True")


@pytest.mark.parametrize("hidden", [False, True])
def test_ctrl_c_ends_it_at_once_and_the_terminal_is_as_it_was(terminal: Open, hidden: bool) -> None:
    asked = terminal(f"await ask.line('Password: ', hidden={hidden})")
    asked.until("Password: ")
    if hidden:
        asked.until_silent()
    asked.type("half of it\x03")
    assert asked.process.wait(10) == 130
    assert asked.echoes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_command_lets_it_undo_what_it_began(terminal: Open, number: signal.Signals, tmp_path: Path) -> None:
    """SIGHUP: the terminal was closed, and whatever the command still says goes nowhere."""
    body = f"""try:
        await ask.line('Name: ')
    finally:
        import asyncio
        print('undoing')
        await asyncio.sleep(0.05)
        open({str(tmp_path / "undone")!r}, 'w').close()"""
    asked = terminal(body)
    asked.until("Name: ")
    asked.process.send_signal(number)
    assert asked.process.wait(10) == 128 + number
    assert (tmp_path / "undone").exists()
