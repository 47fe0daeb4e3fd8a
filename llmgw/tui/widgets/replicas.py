"""Running instances of models, and engines with our tag that this state does not know."""

from __future__ import annotations

from llmgw.admin.views import REPLICAS, replica_rows
from llmgw.model.replica import Replica, ReplicaState
from llmgw.model.snapshot import Snapshot, Unclaimed
from llmgw.tui.style import BRIGHT, QUIET, bar, colour, state, words
from llmgw.tui.widgets.fit import Row
from llmgw.tui.widgets.pane import Pane


class Replicas(Pane):
    NAME = "replicas"
    EMPTY = "Replicas: none"
    SPARE = REPLICAS.spare

    def read(self, snapshot: Snapshot) -> tuple[list[str], list[Row]]:
        columns, rows = replica_rows(snapshot)
        subjects: list[Replica | Unclaimed] = [*snapshot.replicas, *snapshot.unclaimed]
        found = []
        for one, row in zip(subjects, rows, strict=True):
            cells = {name: words(value, QUIET) for name, value in zip(columns, row, strict=True)}
            value = dict(zip(columns, row, strict=True))
            cells["REPLICA"] = words(one.replica if isinstance(one, Unclaimed) else one.id, BRIGHT)
            for name in ("MODEL", "NODE", "IN FLIGHT", "SERVED"):
                cells[name] = words(value[name])
            cells["STATE"] = state(_state(one))
            cells["REASON"] = words(value["REASON"], _reason(one))
            found.append(Row(_key(one), one, cells))
        return columns, found


def _state(one: Replica | Unclaimed) -> str:
    if isinstance(one, Unclaimed):
        return str(ReplicaState.UNCLAIMED)
    return str(one.state) if one.progress is None else f"{one.state} {bar(one.progress)} {one.progress:.0%}"


def _reason(one: Replica | Unclaimed) -> str:
    """Why something is well is no news; why it is not carries the colour of the state."""
    if isinstance(one, Replica) and (one.state.over or one.state is ReplicaState.LOST):
        return colour(str(one.state))
    return QUIET


def _key(one: Replica | Unclaimed) -> str:
    """Two unclaimed engines may carry the same tag; a pid on a node is theirs alone."""
    return f"unclaimed {one.node} {one.pid}" if isinstance(one, Unclaimed) else one.id
