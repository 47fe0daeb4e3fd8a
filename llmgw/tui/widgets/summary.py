"""The cluster in one line."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from llmgw.model.node import LinkState
from llmgw.model.requests import Whoami
from llmgw.model.snapshot import Snapshot
from llmgw.tui.style import BAD, BRIGHT, GOING, GOOD, QUIET, words


class Summary(Horizontal):
    def __init__(self) -> None:
        super().__init__(id="summary")
        self._counts = Static(Text("…"), id="counts")
        self._where = Static("", id="where")

    def compose(self) -> ComposeResult:
        yield Static(Text(" llmgw "), id="name")
        yield self._counts
        yield self._where

    def show(self, snapshot: Snapshot, rate: float | None) -> None:
        up = sum(1 for node in snapshot.nodes if node.link is LinkState.UP)
        ready = sum(1 for one in snapshot.status if one.state == "ready")
        parts = [
            _count("nodes", up, len(snapshot.nodes), "up"),
            _count("models", ready, len(snapshot.models), "ready"),
            _figure(str(sum(snapshot.inflight.values())), "in flight"),
            _figure("–" if rate is None else f"{rate:.1f}", "req/s"),
        ]
        self._counts.update(Text("   ").join(parts))

    def say_where(self, me: Whoami) -> None:
        endpoint = f"http://{me.listen}/v1" if me.listen else "no endpoint"
        self._where.update(words(f"{endpoint}  {me.version}", QUIET))


def _count(noun: str, some: int, all_: int, state: str) -> Text:
    colour = QUIET if not all_ else GOOD if some == all_ else GOING if some else BAD
    return Text.assemble((f"{noun} ", QUIET), (f"{some}/{all_}", f"bold {colour}"), (f" {state}", QUIET))


def _figure(figure: str, noun: str) -> Text:
    return Text.assemble((figure, f"bold {BRIGHT}"), (f" {noun}", QUIET))
