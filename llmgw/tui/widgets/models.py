"""The catalog, and how much of it can be had just now."""

from __future__ import annotations

from llmgw.admin.views import MODELS, model_rows
from llmgw.model.snapshot import Snapshot
from llmgw.tui.style import BRIGHT, QUIET, colour, state, words
from llmgw.tui.widgets.fit import Row
from llmgw.tui.widgets.pane import Pane


class Models(Pane):
    NAME = "models"
    EMPTY = "Models: none yet, `llmgw model add FILE` adds one"
    SPARE = MODELS.spare

    def read(self, snapshot: Snapshot) -> tuple[list[str], list[Row]]:
        columns, rows = model_rows(snapshot)
        found = []
        for model, row in zip(snapshot.models, rows, strict=True):
            cells = {name: words(value, QUIET) for name, value in zip(columns, row, strict=True)}
            value = dict(zip(columns, row, strict=True))
            cells["MODEL"] = words(model.name, BRIGHT)
            cells["STATE"] = state(str(value["STATE"]))
            cells["READY"] = words(value["READY"])
            cells["REASON"] = words(value["REASON"], colour(str(value["STATE"])))
            found.append(Row(model.name, model, cells))
        return columns, found
