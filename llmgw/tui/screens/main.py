"""The dashboard. What the keys do is asked of the admin API; what comes of it is seen in the next picture."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import DataTable

from llmgw.admin.client import part
from llmgw.admin.views import node_detail
from llmgw.errors import LlmgwError
from llmgw.model.catalog import Model
from llmgw.model.event import Event
from llmgw.model.node import Node
from llmgw.model.replica import Replica
from llmgw.model.requests import Logs, NodeDetail, Said, Whoami
from llmgw.model.snapshot import Snapshot, Unclaimed
from llmgw.tui.facts import log, model_facts, replica_facts, sheet, unclaimed_facts
from llmgw.tui.feed import Client
from llmgw.tui.screens.confirm import Confirm
from llmgw.tui.screens.help import keys
from llmgw.tui.screens.sheet import Sheet
from llmgw.tui.style import QUIET, plain
from llmgw.tui.widgets.banner import Banner
from llmgw.tui.widgets.events import Events
from llmgw.tui.widgets.keys import Keys
from llmgw.tui.widgets.models import Models
from llmgw.tui.widgets.nodes import Nodes
from llmgw.tui.widgets.pane import Pane
from llmgw.tui.widgets.replicas import Replicas
from llmgw.tui.widgets.summary import Summary

LOG_LINES = 200


class Main(Screen[None]):
    BINDINGS = [
        Binding("d", "drain", "Drain", id="drain", tooltip="Drain the node: everything moves off it"),
        Binding("u", "tell('undrain')", "Undrain", id="undrain", tooltip="End the drain of the node"),
        Binding("c", "tell('cordon')", "Cordon", id="cordon", tooltip="Let the node take no new replicas"),
        Binding("C", "tell('uncordon')", "Uncordon", id="uncordon", tooltip="Let the node take new replicas again"),
        Binding("l", "logs", "Logs", id="logs", tooltip="The end of the replica's log"),
        Binding("p", "probe", "Probe", id="probe", tooltip="Look at the node now"),
        Binding("r", "refresh_now", "Refresh", id="refresh", show=False, tooltip="Ask the control plane now"),
        Binding("1", "pane('nodes')", "Nodes", id="pane-nodes", show=False, tooltip="To the nodes"),
        Binding("2", "pane('replicas')", "Replicas", id="pane-replicas", show=False, tooltip="To the replicas"),
        Binding("3", "pane('models')", "Models", id="pane-models", show=False, tooltip="To the models"),
        Binding("4", "pane('events')", "Events", id="pane-events", show=False, tooltip="To the events"),
        Binding("tab", "app.focus_next", "Next", id="next", show=False, tooltip="To the next pane"),
        Binding("question_mark", "help", "Help", id="help", key_display="?", tooltip="These keys"),
        Binding("q", "app.quit", "Quit", id="quit", tooltip="Leave; everything goes on without you"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (36, "-high")]

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._snapshot: Snapshot | None = None
        # By hand and not by query: the last news may come while the screen is being taken down.
        self._summary = Summary()
        self._banner = Banner()
        self._tables: tuple[Pane, ...] = (Nodes(1), Replicas(2), Models(3))
        self._events = Events(4)

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._banner
        yield Vertical(*self._tables, self._events, id="panes")
        yield Keys()

    def on_mount(self) -> None:
        self.action_pane("nodes")

    # What the feed brings

    def connected(self, me: Whoami) -> None:
        self._summary.say_where(me)

    def picture(self, snapshot: Snapshot, rate: float | None) -> None:
        self._snapshot = snapshot
        self.remove_class("-stale")
        self._banner.lower()
        self._summary.show(snapshot, rate)
        for pane in self._tables:
            pane.show(snapshot)

    def happened(self, events: tuple[Event, ...], *, anew: bool) -> None:
        self._events.add(events, anew=anew)

    def lost(self, why: str) -> None:
        """The last picture stays, greyed: it is what was true, and it is better than nothing."""
        self.add_class("-stale")
        self._banner.raise_(why)

    # Keys

    def on_descendant_focus(self) -> None:
        """On a low terminal the pane that is worked in gets the room; the class outlives a modal, focus does not."""
        for pane in (*self._tables, self._events):
            pane.set_class(pane is self.focused, "-chosen")

    def action_pane(self, name: str) -> None:
        self.query_one(f"#{name}", Widget).focus()

    def action_refresh_now(self) -> None:
        self.app.poke()  # type: ignore[attr-defined]

    def action_help(self) -> None:
        own = [binding for binding in self.BINDINGS if isinstance(binding, Binding)]
        details = [binding for binding in Pane.BINDINGS if isinstance(binding, Binding)]
        self.app.push_screen(Sheet("Keys", first=keys(details + own)))

    def action_drain(self) -> None:
        node = self._node()
        if node is None:
            return
        count = len([one for one in self._snapshot.replicas_on(node) if not one.state.over]) if self._snapshot else 0
        runs = {0: "Nothing runs there", 1: "One replica runs there"}.get(count, f"{count} replicas run there")
        there = f"{runs}." if not count else f"{runs}; each stops only when its replacement is ready elsewhere."
        question = Confirm(f"Drain {node}?", f"{there} It takes nothing new until it is undrained.")

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._tell(node, "drain"))

        self.app.push_screen(question, answered)

    def action_tell(self, what: str) -> None:
        node = self._node()
        if node is not None:
            self.run_worker(self._tell(node, what))

    def action_probe(self) -> None:
        node = self._node()
        if node is not None:
            self._say(f"Looking at {node} …")
            self.run_worker(self._probe(node))

    def action_logs(self) -> None:
        subject = self._subject()
        if isinstance(subject, Replica):
            self.app.push_screen(Sheet(f"Log of {subject.id}", lambda: self._log(subject.id), end=True))
        else:
            self._say("A log is a replica's: choose one with 2 first.", "warning")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        subject, snapshot = self._subject(), self._snapshot
        if snapshot is None:
            return
        if isinstance(subject, Node):
            self.app.push_screen(Sheet(f"Node {subject.id}", lambda: self._node_sheet(subject.id)))
        elif isinstance(subject, Replica):
            facts = sheet(replica_facts(subject, snapshot))

            async def with_log() -> Text:
                heading = Text(f"\n\nThe last {LOG_LINES} lines of its log:\n\n", QUIET)
                return Text.assemble(facts, heading, await self._log(subject.id))

            self.app.push_screen(Sheet(f"Replica {subject.id}", with_log, first=facts))
        elif isinstance(subject, Unclaimed):
            self.app.push_screen(Sheet(f"Engine {subject.replica}", first=sheet(unclaimed_facts(subject))))
        elif isinstance(subject, Model):
            self.app.push_screen(Sheet(f"Model {subject.name}", first=sheet(model_facts(subject, snapshot))))

    # Asking

    async def _tell(self, node: str, what: str) -> None:
        try:
            said = await self._client.post(f"/nodes/{part(node)}/{what}", Said)
        except LlmgwError as exc:
            self._say(str(exc), "error")
        else:
            self._say(said.message)
        self.action_refresh_now()

    async def _probe(self, node: str) -> None:
        try:
            await self._client.post(f"/nodes/{part(node)}/probe", NodeDetail)
        except LlmgwError as exc:
            self._say(str(exc), "error")
        else:
            self._say(f"{node} was looked at.")
        self.action_refresh_now()

    async def _node_sheet(self, node: str) -> Text:
        detail = await self._client.get(f"/nodes/{part(node)}", NodeDetail)
        return sheet(node_detail(detail, self._snapshot.at if self._snapshot else None))

    async def _log(self, replica: str) -> Text:
        return log((await self._client.get(f"/replicas/{part(replica)}/logs", Logs, lines=LOG_LINES)).lines)

    def _subject(self) -> object:
        return self.focused.subject if isinstance(self.focused, Pane) else None

    def _node(self) -> str | None:
        """The node that is meant: the one under the cursor, or the one that the replica under the cursor runs on."""
        subject = self._subject()
        if isinstance(subject, Node):
            return subject.id
        if isinstance(subject, Replica):
            return subject.lead.node
        if isinstance(subject, Unclaimed):
            return subject.node
        self._say("That is done to a node: choose one with 1 first.", "warning")
        return None

    def _say(self, message: str, severity: str = "information") -> None:
        self.notify(plain(message), severity=severity, markup=False, timeout=4)  # type: ignore[arg-type]
