"""A table in a terminal of any width, and in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from click import unstyle
from rich.cells import cell_len

from llmgw.admin.fit import Layout
from llmgw.cli.table import table

COLUMNS = ["NODE", "STATE", "LINK", "ADDRESS", "PROBLEMS"]
LAYOUT = Layout(prose="PROBLEMS", spare=("ADDRESS",), scarce=("LINK", "PROBLEMS"))
WHY = "the host key is SHA256:kJ95QV78gOteJ4LtT8iGm8OYfE8f6KtB1543S1vgbq4 and not the one that was pinned. " * 3
ROWS = [
    ["gpu01.rack7.example", "ready", "up 5d", "root@gpu01.rack7.example:2222", ""],
    ["日本語", "quarantined", "down 1m", "root@10.0.0.2", WHY],
]
Shown = Callable[..., tuple[list[str], str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    def show(width: int | None, rows: list[list[object]] = ROWS, layout: Layout = LAYOUT) -> tuple[list[str], str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: width is not None, raising=False)
        monkeypatch.setenv("COLUMNS", str(width or 30))
        table(COLUMNS, rows, layout, empty="There is none.")
        out, err = capsys.readouterr()
        return unstyle(out).splitlines(), unstyle(err)

    return show


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_in_a_terminal_a_row_is_a_line_and_who_and_how_are_whole(shown: Shown, width: int) -> None:
    lines, hint = shown(width)
    assert len(lines) == 3
    assert all(cell_len(line) <= width for line in [*lines, *hint.splitlines()])
    for line, (name, state, *_) in zip(lines[1:], ROWS, strict=True):
        assert line.startswith(name)
        assert state in line
    assert hint.startswith("(all of it with | cat")
    assert len(hint.splitlines()) == 1


def test_where_there_is_no_room_even_for_them_they_are_whole_all_the_same(shown: Shown) -> None:
    lines, _ = shown(12)
    assert lines[1].split() == ["gpu01.rack7.example", "ready"]


def test_what_was_left_out_is_named(shown: Shown) -> None:
    lines, hint = shown(80)
    assert lines[0].split() == ["NODE", "STATE", "LINK", "PROBLEMS"]
    assert lines[2].endswith("…")
    assert "left out: ADDRESS)" in hint
    lines, hint = shown(40)
    assert lines[0].split() == ["NODE", "STATE"]


def test_with_room_for_all_there_is_no_hint(shown: Shown) -> None:
    lines, hint = shown(120, ROWS[:1])
    assert ROWS[0][3] in lines[1]
    assert hint == ""
    lines, hint = shown(72, ROWS[:1])
    assert lines[0].split() == COLUMNS[:4], "a column that says nothing is not missed"
    assert hint == ""


def test_in_a_pipe_everything_is_there_a_line_a_row_and_no_blanks_at_the_end(shown: Shown) -> None:
    lines, hint = shown(None)
    assert lines[0].split() == COLUMNS
    assert lines[2].endswith(WHY.strip())
    assert len(lines) == 3
    assert all(line == line.rstrip() for line in lines)
    assert hint == ""


def test_columns_stand_below_each_other_also_for_wide_letters(shown: Shown) -> None:
    lines, _ = shown(None)
    places = [cell_len(line[: line.index(word)]) for line, word in zip(lines, ("STATE", "ready", "quar"), strict=True)]
    assert len(set(places)) == 1


def test_no_row_is_a_sentence(shown: Shown) -> None:
    assert shown(80, []) == ([], "There is none.\n")


def test_what_comes_from_outside_breaks_no_table(shown: Shown) -> None:
    lines, _ = shown(None, [["a\x1b[2J", "b\nc", "d\te", None, "[red]f"]])
    assert lines[1].split() == ["a\ufffd[2J", "b", "c", "d", "e", "–", "[red]f"]
