"""Asks before something that moves work about."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from llmgw.tui.style import BRIGHT, words


class Confirm(ModalScreen[bool]):
    """Only `y` is a yes: not Enter, which may still be on its way from before the question."""

    BINDINGS = [
        Binding("y", "answer(True)", "Yes", id="yes", tooltip="Do it"),
        Binding("n,escape", "answer(False)", "No", id="no", key_display="n", tooltip="Leave everything as it is"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(words(self._question, f"bold {BRIGHT}"))
            yield Static(Text(self._consequence), id="consequence")
            yield Static(Text.assemble(("y", "bold"), " yes    ", ("n", "bold"), " no"), id="choice")
        yield Footer(show_command_palette=False, compact=True)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
