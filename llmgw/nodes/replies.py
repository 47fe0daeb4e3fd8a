"""What the scripts on a node answer, as records: whatever a node says becomes one of these before it is used."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llmgw.errors import BadReply
from llmgw.model.base import Report

R = TypeVar("R", bound=BaseModel)


def typed(cls: type[R], reply: Any, node: str) -> R:
    """A node's reply as a record; a reply that is none is an unknown, not a fact."""
    try:
        return cls.model_validate(reply)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadReply(f"{node} answered with something that is no {cls.__name__}: {where}: {first['msg']}.") from None


class Started(Report):
    already: bool
    attempt: int
    pid: int
    start_ticks: int
    boot_id: str
    port: int


class Stopped(Report):
    was: str
    killed: bool = False
    pids: tuple[int, ...] = ()


class Installed(Report):
    installed: bool = True
    path: str | None = None
    version_text: str | None = None
    python: str | None = None
    reason: str | None = None


class WeightsThere(Report):
    present: bool
    path: str | None = None
    partial: int = 0


class Purged(Report):
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class LogLines(Report):
    lines: tuple[str, ...] = ()


class Sleeper(Report):
    """A process that was started to see whether it outlives its session."""

    pid: int
    start_ticks: int
    boot_id: str


class Outlived(Report):
    alive: bool


class KeyThere(Report):
    """Whether the control plane's line is in authorized_keys, and which files would have to be made for it."""

    present: bool
    path: str
    missing: tuple[str, ...] = ()


class KeyWritten(Report):
    changed: bool
    path: str
    created: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """Files that were made for the line and are empty without it."""


class Mended(Report):
    """A remedy that was taken. Whether it helped is for another look to say."""

    remedy: str
    by: str
    """`root` or `sudo`."""
    command: str
    """What ran, as a person would type it."""
    said: str = ""
    """Its last line."""
    seconds: float = 0.0
