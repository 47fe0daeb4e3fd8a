"""A table that is shown again and again and keeps its reader's place."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.content import Content
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from llmgw.model.snapshot import Snapshot
from llmgw.tui.widgets.fit import Row, fit

SCROLLBAR = 1


class Pane(DataTable[Text]):
    NAME: ClassVar[str]
    EMPTY: ClassVar[str]
    SPARE: ClassVar[tuple[str, ...]]
    """Columns that are left out where there is no room for all, the first one first: the details show them anyway."""
    BINDINGS = [
        Binding(
            "enter",
            "select_cursor",
            "Details",
            id="details",
            key_display="⏎",
            tooltip="Everything about what the cursor is on",
        ),
        # The table itself means columns by these two; in rows a person means the first and the last.
        Binding("home", "scroll_top", "First", id="first", show=False, tooltip="To the first row"),
        Binding("end", "scroll_bottom", "Last", id="last", show=False, tooltip="To the last row"),
    ]

    def __init__(self, number: int) -> None:
        super().__init__(
            id=self.NAME, cursor_type="row", fixed_columns=1, cursor_foreground_priority="renderable", cell_padding=1
        )
        self._number = number
        self._columns: tuple[str, ...] = ()
        self._rows: tuple[Row, ...] = ()
        self._snapshot: Snapshot | None = None
        self._head(0)

    def read(self, snapshot: Snapshot) -> tuple[list[str], list[Row]]:
        """Columns, all of them, and rows of this pane."""
        raise NotImplementedError

    @property
    def subject(self) -> Any:
        """The record under the cursor; None in an empty pane."""
        return self._rows[self.cursor_row].subject if self.cursor_row < len(self._rows) else None

    def show(self, snapshot: Snapshot) -> None:
        """Cells that changed are written in place; only when rows come, go or move is the table filled anew."""
        self._snapshot = snapshot
        columns, rows = fit(*self.read(snapshot), self.SPARE, self.app.size.width - SCROLLBAR)
        before, self._rows = self._rows, tuple(rows)
        if columns == self._columns and [row.key for row in rows] == [row.key for row in before]:
            for old, new in zip(before, rows, strict=True):
                for column in columns:
                    if new.cells[column] != old.cells[column] or new.cells[column].style != old.cells[column].style:
                        self.update_cell(new.key, column, new.cells[column], update_width=True)
        else:
            self._fill(columns, before)
        self._head(len(rows))

    def on_resize(self) -> None:
        if self._snapshot is not None:
            self.show(self._snapshot)

    def _fill(self, columns: tuple[str, ...], before: tuple[Row, ...]) -> None:
        """The cursor stays on its record; where that is gone, on its place. The view stays where it was scrolled."""
        place = self.cursor_row
        key = before[place].key if place < len(before) else None
        scrolled = self.scroll_offset
        with self.prevent(DataTable.RowHighlighted):
            self.clear(columns=columns != self._columns)
            if columns != self._columns:
                self._columns = columns
                for name in columns:
                    self.add_column(name, key=name)
            for row in self._rows:
                self.add_row(*(row.cells[name] for name in columns), key=row.key)
            keys = [row.key for row in self._rows]
            place = keys.index(key) if key in keys else max(0, min(place, len(keys) - 1))
            self.cursor_coordinate = Coordinate(place, 0)
        # How far the table can be scrolled is only known again once it was laid out.
        self.call_after_refresh(self.scroll_to, scrolled.x, scrolled.y, animate=False, force=True)

    def _head(self, count: int) -> None:
        title = f"{self.NAME.capitalize()} · {count}" if count else self.EMPTY
        self.border_title = Content(f" {self._number} {title} ")
        self.set_class(not count, "-empty")
