"""Machines that serve."""

from __future__ import annotations

from llmgw.admin.views import NODES, node_rows
from llmgw.model.node import LinkState
from llmgw.model.snapshot import Snapshot
from llmgw.tui.style import BAD, BRIGHT, GOING, QUIET, colour, state, words
from llmgw.tui.widgets.fit import Row
from llmgw.tui.widgets.pane import Pane


class Nodes(Pane):
    NAME = "nodes"
    EMPTY = "Nodes: none yet, `llmgw node add HOST` adds one"
    SPARE = NODES.spare

    def read(self, snapshot: Snapshot) -> tuple[list[str], list[Row]]:
        columns, rows = node_rows(snapshot)
        found = []
        for node, row in zip(snapshot.nodes, rows, strict=True):
            cells = {name: words(value, QUIET) for name, value in zip(columns, row, strict=True)}
            value = dict(zip(columns, row, strict=True))
            down = node.link is LinkState.DOWN
            cells["NODE"] = words(node.id, BRIGHT)
            # `ready` in green on a machine that does not answer would be a lie at a glance.
            cells["STATE"] = state(str(value["STATE"]), dim=down and not node.quarantined)
            cells["LINK"] = words(value["LINK"], colour(str(node.link)))
            cells["REPLICAS"] = words(value["REPLICAS"])
            cells["MEMORY FREE"] = words(value["MEMORY FREE"])
            worst = BAD if down or any(one.severity == "error" for one in node.problems) else GOING
            cells["PROBLEMS"] = words(node.quarantined or value["PROBLEMS"], worst)
            found.append(Row(node.id, node, cells))
        return columns, found
