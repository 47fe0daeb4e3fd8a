"""The line of keys. The way out and the way to the rest stay in sight, however narrow the terminal is."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Footer

ALWAYS = ("help", "app.quit")


class Keys(Footer):
    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)

    def compose(self) -> ComposeResult:
        always: list[Widget] = []
        for key in super().compose():
            if getattr(key, "action", "") in ALWAYS:
                always.append(key)
            else:
                yield key
        if always:
            yield Horizontal(*always, id="always")
