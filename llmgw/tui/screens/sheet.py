"""Something to read, laid over the dashboard: details, a log, the keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from llmgw.errors import LlmgwError
from llmgw.tui.style import BAD, plain

Load = Callable[[], Awaitable[Text]]


class Sheet(ModalScreen[None]):
    """Shows `first` at once and what `load` gives as soon as it is there. A log is read from its `end`."""

    BINDINGS = [
        Binding("escape,q,enter", "dismiss", "Close", id="close", key_display="esc", tooltip="Back to the dashboard"),
        Binding("r", "reload", "Refresh", id="reload", tooltip="Ask again"),
    ]

    def __init__(self, title: str, load: Load | None = None, *, first: Text | None = None, end: bool = False) -> None:
        super().__init__()
        self._title = title
        self._load = load
        self._first = first or Text("One moment …")
        self._end = end

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box") as box:
            box.border_title = Content(plain(self._title))
            yield Static(self._first, id="text", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#box").focus()
        self.action_reload()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "reload" or self._load is not None

    def action_reload(self) -> None:
        if self._load is not None:
            self.run_worker(self._ask(self._load), exclusive=True)

    async def _ask(self, load: Load) -> None:
        try:
            text = await load()
        except LlmgwError as exc:
            text = Text.assemble(self._first, "\n\n", (plain(exc), BAD))
        self.query_one("#text", Static).update(text)
        if self._end:
            self.query_one("#box").scroll_end(animate=False)
