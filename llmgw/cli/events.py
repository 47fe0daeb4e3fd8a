"""Events as a person reads them: one a line where it is a pipe, broken between words and not endless in a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable

import click

from llmgw.admin.client import AdminClient
from llmgw.admin.text import STAMP, event_line
from llmgw.cli.output import show_json_line
from llmgw.model.event import Event

HIGHEST = 3
"""Lines of a terminal that one event takes."""


class Printer:
    """Prints events on stdout and remembers whether all of each was shown."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self._cut = False

    def show(self, event: Event) -> None:
        if self._as_json:
            show_json_line(event)
            return
        line = event_line(event)
        shown = line if self._width is None else broken(line, self._width)
        self._cut = self._cut or shown.endswith("…") > line.endswith("…")
        click.echo(shown)

    def tell(self) -> None:
        """How to see what was cut, if anything was."""
        if self._cut:
            click.echo(click.style("(all of it with | cat)", dim=True), err=True)


def broken(line: str, width: int) -> str:
    """An event's line over as many as it needs, at most `HIGHEST`, the sentence in a column of its own."""
    room = max(width, 2 * STAMP)
    # No break at a hyphen: there are commands in sentences.
    lines = textwrap.wrap(
        line, room, subsequent_indent=" " * STAMP, max_lines=HIGHEST, placeholder=" …", break_on_hyphens=False
    )
    return "\n".join(lines)


async def watch(
    client: AdminClient, *, node: str | None = None, about: Callable[[Event], bool] = lambda event: True
) -> None:
    """Tells on stderr what happens from now on, for as long as the caller works on something."""
    async for event in client.events(node=node):
        if about(event):
            click.echo(event_line(event), err=True)
