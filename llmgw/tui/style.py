"""Colours of states, and the one door through which text gets onto the screen.

A state is told by its word and its mark first and by colour second: NO_COLOR and colour-blind eyes lose nothing.
"""

from __future__ import annotations

from rich.text import Text
from textual.theme import Theme

from llmgw.admin.text import clean

GOOD, COMING, GOING, BAD, QUIET = "#7bd88f", "#6cb6ff", "#e5c07b", "#ff7b72", "#8b949e"
BRIGHT = "#e6edf3"

THEME = Theme(
    name="llmgw",
    primary="#4f8fd6",
    secondary="#8b949e",
    accent="#6cb6ff",
    foreground="#c9d1d9",
    background="#0d1117",
    surface="#131a22",
    panel="#1b2430",
    success=GOOD,
    warning=GOING,
    error=BAD,
    dark=True,
    variables={"footer-key-foreground": "#6cb6ff", "footer-background": "#131a22"},
)

_MARKS = {GOOD: "●", COMING: "◐", GOING: "◌", BAD: "✗", QUIET: "○"}
_WORDS = {
    GOOD: ("ready", "up", "installed"),
    COMING: ("adding", "placed", "fetching", "starting", "loading"),
    GOING: ("draining", "drained", "stopping", "cordoned", "degraded", "unclaimed"),
    BAD: ("failed", "lost", "quarantined", "down", "unplaceable"),
    QUIET: ("stopped",),
}
_COLOURS = {word: colour for colour, words in _WORDS.items() for word in words}


def plain(value: object) -> str:
    """One line, harmless, whoever wrote it: no escapes, no control characters, no tabs to break a column."""
    return clean(value).replace("\t", " ")


def words(value: object, style: str = "") -> Text:
    """Text that is never read as markup."""
    return Text(plain(value), style=style, no_wrap=True, end="")


def colour(word: str) -> str:
    return _COLOURS.get(word, QUIET)


def state(text: str, *, dim: bool = False) -> Text:
    """`ready` → a green `● ready`. The first word decides. `dim`: true, but overtaken by something worse."""
    shade = QUIET if dim else colour(text.partition(" ")[0].rstrip(",:;"))
    return words(f"{_MARKS[shade]} {text}", shade)


def bar(part: float, width: int = 6) -> str:
    done = round(max(0.0, min(1.0, part)) * width)
    return "━" * done + "╌" * (width - done)
