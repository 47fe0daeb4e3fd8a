"""What a person sees: tables, ages, progress; and JSON with stable keys for everybody else. Results go to stdout."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgw.admin.text import clean

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


LEAST = 32
"""Columns that the last one keeps: it is where reasons stand."""


def console() -> Console:
    wide = None if sys.stdout.isatty() else 200
    return Console(highlight=False, soft_wrap=False, width=wide, no_color="NO_COLOR" in os.environ or None)


def show_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table, or the sentence `empty` on stderr when there is no row."""
    found = list(rows)
    if not found:
        click.echo(empty, err=True)
        return
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for place, column in enumerate(columns):
        last = place == len(columns) - 1
        made.add_column(
            column, overflow="fold" if last else "ellipsis", no_wrap=not last, min_width=LEAST if last else None
        )
    for row in found:
        made.add_row(*(_cell(value) for value in row))
    console().print(made)


def _cell(value: object) -> str:
    text = clean("–" if value is None else value)
    colour = _COLOURS.get(text.split(" ")[0].rstrip(":"))
    return f"[{colour}]{escape(text)}[/{colour}]" if colour else escape(text)


class Seconds(click.FloatRange):
    """A number of seconds above zero; `nan` and `inf` are none."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return found


def say(text: str) -> None:
    """Talk, as opposed to results."""
    click.echo(clean(text), err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Asks before something is destroyed. Never asks when nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: add --yes to do it.")
    click.confirm(question, abort=True, err=True)
