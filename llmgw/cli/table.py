"""Tables: whole where a program reads them; in a terminal a line a row, fitted to its width.

Who it is and how it is are never cut: what else there is gives way as its `Layout` says, and a line below tells it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

import click
from rich.cells import cell_len, set_cell_size

from llmgw.admin.fit import Layout, fit
from llmgw.admin.text import clean

GAP = 2
"""Blanks between two columns."""
LEAST = 24
"""So much of a sentence is worth a column; less says nothing."""
NOTHING = "–"

_COLOURS = {
    "ready": "green",
    "up": "green",
    "installed": "green",
    "failed": "red",
    "lost": "red",
    "down": "red",
    "unplaceable": "red",
    "quarantined": "red",
    "degraded": "yellow",
    "loading": "yellow",
    "draining": "yellow",
    "cordoned": "yellow",
}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], layout: Layout, *, empty: str) -> None:
    """Prints a table, or the sentence `empty` on stderr when there is no row."""
    cells = [[_text(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty, err=True)
        return
    needs = {name: max(cell_len(text) for text in (name, *texts)) for name, *texts in zip(columns, *cells, strict=True)}
    shown, room = needs, None
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns
        shown = fit(needs, layout, room, empty=_silent(needs, cells), gap=GAP, least=LEAST)
    places = [columns.index(name) for name in shown]
    click.echo(_line((click.style(name, bold=True) for name in shown), shown, shown.values()))
    for row in cells:
        texts = [_cut(row[place], width) for place, width in zip(places, shown.values(), strict=True)]
        click.echo(_line(map(_coloured, texts), texts, shown.values()))
    if room is not None:
        _tell(needs, cells, shown, room)


def _text(value: object) -> str:
    return NOTHING if value is None else clean(value).replace("\t", " ")


def _silent(names: Iterable[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Columns that say nothing in any row."""
    return [name for name, *texts in zip(names, *cells, strict=True) if not set(texts) - {"", NOTHING}]


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _coloured(text: str) -> str:
    colour = _COLOURS.get(text.split(" ")[0].rstrip(":"))
    return click.style(text, fg=colour) if colour else text


def _line(painted: Iterable[str], plain: Iterable[str], widths: Iterable[int]) -> str:
    """One row: `plain` is what `painted` looks like, for counting."""
    cells = zip(painted, plain, widths, strict=True)
    return (" " * GAP).join(shown + " " * (width - cell_len(text)) for shown, text, width in cells).rstrip()


def _tell(needs: Mapping[str, int], cells: Sequence[Sequence[str]], shown: Mapping[str, int], room: int) -> None:
    """What the reader does not see of the table, in a line, and how to see it."""
    silent = _silent(needs, cells)
    gone = [name for name in needs if name not in shown and name not in silent]
    if gone or any(width < needs[name] for name, width in shown.items()):
        hint = "all of it with | cat" + (f"; left out: {', '.join(gone)}" if gone else "")
        click.echo(click.style(_cut(f"({hint})", room), dim=True), err=True)
