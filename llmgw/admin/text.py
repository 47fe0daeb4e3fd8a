"""How facts are put for people, the same in the tables, the dashboard and the page."""

from __future__ import annotations

import re
import time

from llmgw.model.event import Event, Severity

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: object) -> str:
    """Text from outside, as it is but for what a terminal would obey or could not show: its lines stay lines (F52)."""
    return _CONTROL.sub("\ufffd", str(text))


def clean(text: object) -> str:
    """The same in one line: no escapes, no control characters (F52)."""
    return harmless(text).replace("\n", " ")


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


def clock(at: float) -> str:
    """The time of day where the reader is."""
    return time.strftime("%H:%M:%S", time.localtime(at))


STAMP = len("00:00:00 ! ")
"""Where the sentence of an event begins."""


def event_line(event: Event) -> str:
    """When, how bad, and what, with whom it is about."""
    mark = {Severity.WARNING: "! ", Severity.ERROR: "✗ "}.get(event.severity, "  ")
    return f"{clock(event.at)} {mark}{clean(_named(event))}"


def _named(event: Event) -> str:
    """The sentence, with the name of its subject before it where it does not say whom it is about.

    The steps of a first contact never do: they were told before there was a node.
    """
    names = [name for name in (event.replica, event.node, event.model) if name]
    if names and (event.kind == "node.step" or not any(_says(event.message, name) for name in names)):
        return f"{names[0]} {event.message}"
    return event.message


def _says(sentence: str, name: str) -> bool:
    """Whether it holds the name as a word of its own."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", sentence) is not None
