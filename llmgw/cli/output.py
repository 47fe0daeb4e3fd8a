"""Talk for people, JSON with stable keys for programs, and what an option may hold. Results go to stdout."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import click
from pydantic import BaseModel

from llmgw.admin.text import clean


def show_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=_narrow()))


def show_json_line(value: Any) -> None:
    """One object a line, for what goes on and on."""
    click.echo(json.dumps(plain(value), ensure_ascii=_narrow(), separators=(",", ":")))


def _narrow() -> bool:
    """Whether stdout has letters for a part of the world only: JSON has escapes for the others."""
    return "utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


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
