"""Questions to the person at the terminal, answered on the event loop: behind no question waits a thread that Ctrl-C
does not reach, and a terminal that was silenced for a password is given back as it was, however that ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
from collections.abc import Iterator

import click


async def line(question: str, *, hidden: bool = False) -> str | None:
    """What is typed until Enter, without it. None at the end of the input (Ctrl-D). `hidden`: it is not shown."""
    descriptor = sys.stdin.fileno()
    with _silent(descriptor) if hidden else contextlib.nullcontext():
        click.echo(question, nl=False, err=True)  # who types at once must find it silent
        typed = await _read(descriptor)
        if hidden or typed is None:
            click.echo(err=True)  # the Enter that was not shown, or was not pressed
    return None if typed is None else typed.decode(sys.stdin.encoding or "utf-8", "surrogateescape")


async def confirm(question: str, *, default: bool | None = None) -> bool:
    """A yes or a no. Enter alone means `default`, where there is one; the end of the input means to stop here.

    Raises click.Abort at the end of the input.
    """
    choices = {None: "y/n", True: "Y/n", False: "y/N"}[default]
    while (typed := await line(f"{question} [{choices}]: ")) is not None:
        answer = typed.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False
        if not answer and default is not None:
            return default
        click.echo("Please answer y or n.", err=True)
    raise click.Abort


async def _read(descriptor: int) -> bytes | None:
    """A line from a terminal in its usual mode, which hands over a whole one at a time."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes | None] = loop.create_future()
    parts: list[bytes] = []

    def take() -> None:
        try:
            data = os.read(descriptor, 4096)
        except OSError:  # the terminal has gone
            data = b""
        parts.append(data)
        if not typed.done() and (not data or data.endswith(b"\n")):
            whole = b"".join(parts)
            typed.set_result(whole.removesuffix(b"\n") if whole else None)

    loop.add_reader(descriptor, take)
    try:
        return await typed
    finally:
        loop.remove_reader(descriptor)


@contextlib.contextmanager
def _silent(descriptor: int) -> Iterator[None]:
    """The terminal without echo."""
    before = termios.tcgetattr(descriptor)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
