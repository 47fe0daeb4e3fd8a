"""How facts are put for people, the same in the tables, the dashboard and the page."""

from __future__ import annotations

import re
import time

from llmgw.model.event import Event, Severity

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean(text: object) -> str:
    """Text from outside, harmless on a terminal: no escapes, no control characters (F52)."""
    return _CONTROL.sub("\ufffd", str(text)).replace("\n", " ")


def age(since: float | None, now: float | None = None) -> str:
    """`42s`, `7m`, `3h`, `12d`; `–` when it is not known. A clock that went back makes no negative age.

    `now` is the clock `since` was read from, where that is another machine's; None: this one's.
    """
    if since is None:
        return "–"
    seconds = max(0, int((time.time() if now is None else now) - since))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def size(count: int | None) -> str:
    if count is None:
        return "–"
    if count >= 1 << 30:
        return f"{count / (1 << 30):.1f} GiB"
    return f"{count >> 20} MiB"


def event_line(event: Event) -> str:
    stamp = time.strftime("%H:%M:%S", time.localtime(event.at))
    mark = {Severity.WARNING: "! ", Severity.ERROR: "✗ "}.get(event.severity, "  ")
    return f"{stamp} {mark}{clean(event.message)}"
