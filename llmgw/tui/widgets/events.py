"""What happens, as it happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rich.text import Text
from textual.content import Content
from textual.events import Resize
from textual.widgets import RichLog

from llmgw.admin.text import event_line
from llmgw.model.event import Event, Severity
from llmgw.tui.style import BAD, GOING, QUIET, plain

KEPT = 1000
_COLOURS = {Severity.WARNING: GOING, Severity.ERROR: BAD}
_STAMP = len("00:00:00")


class Events(RichLog):
    """Follows the newest line, unless the reader has scrolled up."""

    def __init__(self, number: int) -> None:
        super().__init__(id="events", max_lines=KEPT, min_width=0, wrap=True, markup=False, highlight=False)
        self.border_title = Content(f" {number} Events ")
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._width = 0
        self._following = True

    def add(self, events: tuple[Event, ...], *, anew: bool = False) -> None:
        if anew:
            self._events.clear()
            self.clear()
        self._events.extend(events)
        self._write(events)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self.is_vertical_scroll_end:
            self._following = True
        elif new_value < old_value:
            self._following = False

    def on_resize(self, event: Resize) -> None:
        """The log keeps lines as they were broken; a new width means to break them again."""
        following = self._following
        if self._width not in (0, event.size.width):
            self.clear()
            self._write(self._events)
        self._width = event.size.width
        if following:
            self._following = True
            self.scroll_end(animate=False)

    def _write(self, events: Iterable[Event]) -> None:
        following = self._following
        for event in events:
            self.write(_line(event), scroll_end=following)


def _line(event: Event) -> Text:
    text = Text(plain(event_line(event)), style=_COLOURS.get(event.severity, ""))
    text.stylize(QUIET, 0, _STAMP)
    return text
