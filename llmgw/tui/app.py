"""The application: a feed, a screen, and messages from the one to the other."""

from __future__ import annotations

from textual.app import App

from llmgw.tui.feed import Client, Feed
from llmgw.tui.messages import Connected, Happened, Lost, Pictured
from llmgw.tui.screens.main import Main
from llmgw.tui.style import THEME


class Dashboard(App[None]):
    CSS_PATH = "llmgw.tcss"
    TITLE = "llmgw"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, client: Client, *, every: float = 1.0) -> None:
        """`every`: seconds between pictures while nothing happens."""
        super().__init__()
        self.register_theme(THEME)
        self.theme = THEME.name
        self._main = Main(client)
        self._feed = Feed(client, self.post_message, every=every)

    async def on_mount(self) -> None:
        await self.push_screen(self._main)
        self.run_worker(self._feed.run(), group="feed")

    def poke(self) -> None:
        """A new picture now, please."""
        self._feed.poke()

    def on_connected(self, message: Connected) -> None:
        self._main.connected(message.me)

    def on_pictured(self, message: Pictured) -> None:
        self._main.picture(message.snapshot, message.rate)

    def on_happened(self, message: Happened) -> None:
        self._main.happened(message.events, anew=message.anew)

    def on_lost(self, message: Lost) -> None:
        self._main.lost(message.why)
