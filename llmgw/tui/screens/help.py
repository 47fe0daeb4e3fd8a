"""The keys, taken from the bindings themselves: what is listed is what works."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.binding import Binding

from llmgw.tui.style import BRIGHT, QUIET, state

_KEYS = {"question_mark": "?", "enter": "⏎"}
_MOVING = (
    ("1 – 4", "To the nodes, replicas, models, events; tab goes to the next"),
    ("↑ ↓", "Move, home and end too; ← → shows columns that do not fit"),
)
_STATES = (
    ("ready", "works"),
    ("loading", "on its way"),
    ("draining", "on its way out, held back, or reduced"),
    ("failed", "broken, or out of reach"),
    ("stopped", "at rest"),
)


def keys(bindings: Iterable[Binding]) -> Text:
    """What each key does, then what the marks and colours mean."""
    text = Text()
    for binding in bindings:
        if binding.id in ("first", "last", "next") or (binding.id or "").startswith("pane-"):
            continue
        key = binding.key_display or _KEYS.get(binding.key, binding.key)
        text.append(f"{key:>5}  ", f"bold {BRIGHT}")
        text.append(f"{binding.tooltip or binding.description}\n")
    for key, meaning in _MOVING:
        text.append(f"{key:>5}  ", f"bold {BRIGHT}")
        text.append(f"{meaning}\n")
    text.append("\n")
    for word, meaning in _STATES:
        text.append_text(state(f"{word:<10}"))
        text.append(f" {meaning}\n", QUIET)
    text.rstrip()
    return text
