"""Says that the picture below is an old one."""

from __future__ import annotations

import time

from textual.widgets import Static

from llmgw.tui.style import words


class Banner(Static):
    def __init__(self) -> None:
        super().__init__("", id="banner")
        self.display = False
        self._since = ""

    def raise_(self, why: str) -> None:
        if not self.display:
            self._since = time.strftime("%H:%M:%S")
        self.update(words(f"{why}  (since {self._since})"))
        self.display = True

    def lower(self) -> None:
        self.display = False
