"""What happened, in order, with a reason. `ctl events`, the dashboard and the log print the same sentence."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from llmgw.model.base import Record


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Event(Record):
    """`id` rises by one an event and is what a resumed stream starts from. `at` is Unix seconds."""

    id: int = 0
    at: float
    kind: str
    """Dotted and stable for programs: `node.link`, `replica.state`, `engine.install`, `node.add`, `drain`, …"""
    severity: Severity = Severity.INFO
    message: str
    node: str | None = None
    model: str | None = None
    replica: str | None = None
    data: dict[str, Any] = {}


class Audit(Record):
    """One remote command: what ran where, how it ended, how long it took."""

    id: int = 0
    at: float
    node: str
    command: str
    """The script and its action, `engine.py start`; arguments are kept without their secrets in `detail`."""
    detail: str = ""
    exit_status: int | None = None
    """None when it is not known: a lost link, a deadline."""
    outcome: str = "ok"
    seconds: float = 0.0
