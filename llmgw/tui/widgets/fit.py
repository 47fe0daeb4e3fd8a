"""What of a table fits: columns that can be spared go first, and the last one, which is prose, gets the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from llmgw.admin.fit import kept

PADDING = 2
"""What stands around each cell."""
LEAST = 16
"""So much of the prose is shown in any case; a table that is too wide then can be scrolled."""


@dataclass(frozen=True)
class Row:
    key: str
    subject: Any
    """The record that the row is about."""
    cells: dict[str, Text]
    """By column."""


def fit(
    names: Sequence[str], rows: Sequence[Row], spare: Sequence[str], width: int
) -> tuple[tuple[str, ...], list[Row]]:
    """The columns that `width` has room for, and the rows with the last column cut to it, visibly."""
    needs = {name: max([len(name), *(row.cells[name].cell_len for row in rows)]) + PADDING for name in names}
    columns = kept(needs, spare, width)
    prose = columns[-1]
    room = max(LEAST, width - sum(needs[column] for column in columns[:-1]) - PADDING)
    return columns, [_cut(row, prose, room) for row in rows]


def _cut(row: Row, prose: str, room: int) -> Row:
    cell = row.cells[prose]
    if cell.cell_len <= room:
        return row
    cell = cell.copy()
    cell.truncate(room, overflow="ellipsis")
    return replace(row, cells={**row.cells, prose: cell})
