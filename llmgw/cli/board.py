"""How the story of an add is shown: a live checklist in a terminal, a line a step elsewhere, or JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from llmgw.admin.text import clean
from llmgw.errors import LlmgwError

T = TypeVar("T")

STEPS = {
    "reach": "answers",
    "identify": "what it is",
    "preflight": "looked over",
    "decide": "whose it is",
    "mend": "mended",
    "key": "our key on it",
    "prove": "we come back alone",
    "join": "taken in",
    "engines": "installed and seen to run",
    "ready": "takes replicas",
}
LOOK = ("reach", "identify", "preflight")
"""The steps of a check."""
LONGEST_NAME = 30
"""Letters of a host in a list of many; the step beside it has to stay legible."""
_MARKS = {"done": "[green]✔[/green]", "failed": "[red]✘[/red]", "open": "[dim]·[/dim]", "doubt": "[yellow]![/yellow]"}
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


class Board(Protocol):
    """Where steps are told and questions asked."""

    interactive: bool

    def tell(self, host: str, step: str, text: str, **more: Any) -> None: ...
    def failed(self, host: str, exc: LlmgwError) -> None: ...
    async def ask(self, host: str, question: Callable[[], Awaitable[T]]) -> T:
        """Runs something that talks to the person about a host, while nobody else does."""
        ...


def board(
    hosts: Sequence[str], *, as_json: bool = False, steps: Sequence[str] = tuple(STEPS)
) -> contextlib.AbstractContextManager[Board]:
    """The one that fits: a checklist where a person looks at both ends."""
    if as_json:
        return contextlib.nullcontext(JsonLines())
    if sys.stderr.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _live(Checklist(hosts, steps))
    return contextlib.nullcontext(Lines(hosts))


class JsonLines:
    """One object a step on stdout."""

    interactive = False

    def tell(self, host: str, step: str, text: str, **more: Any) -> None:
        click.echo(json.dumps({"host": host, "step": step, "message": text, **more}, ensure_ascii=False))

    def failed(self, host: str, exc: LlmgwError) -> None:
        self.tell(host, "failed", exc.message, code=exc.code, fix=exc.fix, exit_status=exc.exit_status)

    async def ask(self, host: str, question: Callable[[], Awaitable[T]]) -> T:
        raise AssertionError("nobody is there to be asked")


class _Floor:
    """One machine at a time talks to the person, and keeps the floor until its next step: a password that was wrong is
    asked for again before any other machine's."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._host: str | None = None
        self._asking = False

    @contextlib.asynccontextmanager
    async def taken(self, host: str) -> AsyncIterator[None]:
        if self._host != host:
            await self._lock.acquire()
            self._host = host
        self._asking = True
        try:
            yield
        finally:
            self._asking = False

    def leave(self, host: str) -> None:
        """The host has gone on."""
        if self._host == host and not self._asking:
            self._host = None
            self._lock.release()


class Lines:
    """One line a step on stderr. A person at the keyboard may be asked all the same."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.interactive = sys.stdin.isatty() and sys.stderr.isatty()
        self._several = len(hosts) > 1
        self._width = max(map(len, hosts))
        self._floor = _Floor()

    def tell(self, host: str, step: str, text: str, **more: Any) -> None:
        self._floor.leave(host)
        if more.get("severity") == "note":
            return  # counted at the end of the step; `node check` tells them
        severity = f"{more['severity']}: " if "severity" in more else ""
        click.echo(f"{host:<{self._width}}  {step:<9}  {severity}{clean(text)}", err=True)
        if more.get("fix"):
            click.echo(f"{'':<{self._width}}  {'':<9}  ↳ {clean(more['fix'])}", err=True)

    def failed(self, host: str, exc: LlmgwError) -> None:
        self._floor.leave(host)
        if self._several:  # of one alone it is the last word of the command
            self.tell(host, "failed", exc.message)

    async def ask(self, host: str, question: Callable[[], Awaitable[T]]) -> T:
        async with self._floor.taken(host):
            return await question()


class Checklist:
    """All steps of every host on the screen, each with its latest sentence."""

    interactive = True

    def __init__(self, hosts: Sequence[str], steps: Sequence[str]) -> None:
        self._hosts = {host: _Host(host, steps) for host in hosts}
        self._floor = _Floor()
        self.console = Console(stderr=True, highlight=False, no_color="NO_COLOR" in os.environ or None)
        self._live: Live | None = None

    def tell(self, host: str, step: str, text: str, **more: Any) -> None:
        self._floor.leave(host)
        self._hosts[host].tell(step, text, more)

    def failed(self, host: str, exc: LlmgwError) -> None:
        self._floor.leave(host)
        # Of one alone it is the last word of the command, below the list.
        self._hosts[host].fail(exc.message if len(self._hosts) > 1 else exc.code.replace("_", " "))

    async def ask(self, host: str, question: Callable[[], Awaitable[T]]) -> T:
        async with self._floor.taken(host):
            self.leave(wipe=True)  # what stands above a question shall not stand there twice
            answer = await question()  # where that is broken off nothing is drawn any more
            self.enter()
            return answer

    def enter(self) -> None:
        """Draws from here on. A new one each time: one that was left would draw over what was written since."""
        self._live = Live(self, console=self.console, refresh_per_second=8, vertical_overflow="visible")
        self._live.start()

    def leave(self, *, wipe: bool = False) -> None:
        """Draws no more."""
        if self._live is not None:
            self._live.transient = wipe
            self._live.stop()
            self._live = None

    def __rich__(self) -> RenderableType:
        several, width = len(self._hosts) > 1, max(map(len, self._hosts))
        return Group(*(one.line(width) if several else one.whole() for one in self._hosts.values()))


class _Host:
    def __init__(self, name: str, steps: Sequence[str]) -> None:
        self._name = name
        self._order = list(steps)
        self._steps: dict[str, str] = {}
        self._findings: list[tuple[str, str, str]] = []
        self._now = "reach"
        self._end = ""
        self._spinner = Spinner("dots", style="cyan")

    def tell(self, step: str, text: str, more: dict[str, Any]) -> None:
        step = {"node": "engines"}.get(step, step)
        if "severity" in more:
            self._findings.append((more["severity"], text, more.get("fix", "")))
            return
        if step == "identify":
            self._findings.clear()  # it is looked at once more, after something was mended
        if step not in self._order:
            self._end = "done"
            return
        self._now, self._steps[step] = step, clean(text)
        if step == "ready":
            self._end = "done"

    def fail(self, text: str) -> None:
        self._end = "failed"
        self._steps[self._now] = clean(text)

    def _mark(self, step: str) -> RenderableType:
        if step == self._now and not self._end:
            return self._spinner
        if step == self._now and self._end == "failed":
            return _MARKS["failed"]
        if step == "preflight" and self._findings:
            worst = min(("error", "warning", "note").index(severity) for severity, *_ in self._findings)
            if worst < 2:
                return _MARKS[("failed", "doubt")[worst]]
        reached = self._order.index(step) <= self._order.index(self._now)
        return _MARKS["done"] if reached else _MARKS["open"]

    def whole(self) -> RenderableType:
        """One host with all its steps, the findings under the step that made them."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(width=10, no_wrap=True)
        grid.add_column(overflow="fold")
        for step in self._order:
            if step not in self._steps and (step == "mend" or self._end == "failed"):
                continue  # most nodes need no mending; and nothing comes after a failure
            text = self._steps.get(step)
            shown = escape(text) if text is not None else f"[dim]{STEPS[step]}[/dim]"
            grid.add_row(self._mark(step), step, shown)
            if step == "preflight":
                for severity, said, fix in self._findings:
                    if severity != "note":
                        grid.add_row("", severity, f"[{_COLOURS[severity]}]{escape(clean(said))}[/]")
                        grid.add_row("", "", f"[dim]↳ {escape(clean(fix))}[/dim]")
        return Group(f"[bold]{escape(self._name)}[/bold]", grid)

    def line(self, width: int) -> RenderableType:
        """One of many hosts: where it is. `width`: that of the longest name."""
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=1)
        grid.add_column(width=min(width, LONGEST_NAME), no_wrap=True, overflow="ellipsis")
        grid.add_column(width=10, no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        worst = next((one for one in ("error", "warning") if any(found[0] == one for found in self._findings)), None)
        count = sum(found[0] != "note" for found in self._findings)
        found = f" [{_COLOURS[worst]}]({count} finding{'s' if count > 1 else ''})[/]" if worst else ""
        grid.add_row(
            self._mark(self._now), escape(self._name), self._now, escape(self._steps.get(self._now, "")) + found
        )
        return grid


@contextlib.contextmanager
def _live(checklist: Checklist) -> Iterator[Checklist]:
    checklist.enter()
    try:
        yield checklist
    finally:
        checklist.leave()
