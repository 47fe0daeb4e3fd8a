"""Events in a terminal: whole words, a column of their own, and not endless; in a pipe a line each."""

from __future__ import annotations

import json
import sys

import pytest

from llmgw.admin.text import STAMP, event_line
from llmgw.cli.events import HIGHEST, Printer, broken
from llmgw.model.event import Event

SHORT = Event(at=0.0, kind="node.link", message="vm is connected", node="vm")
COMMAND = "llmgw node add root@127.0.0.1:60593 --trust-key SHA256:kJ95"
LONG = Event(at=0.0, kind="node.quarantined", message=f"vm is quarantined. {COMMAND} " + "and on " * 60, node="vm")


@pytest.mark.parametrize("width", [10, 60, 80, 120])
def test_a_long_one_is_broken_between_words_below_its_beginning(width: int) -> None:
    lines = broken(event_line(LONG), width).split("\n")
    assert 1 < len(lines) <= HIGHEST
    assert all(len(line) <= max(width, 2 * STAMP) for line in lines)
    assert all(line.startswith(" " * STAMP) and line[STAMP] != " " for line in lines[1:])
    assert lines[-1].endswith(" …")
    if width > 30:
        assert "--trust-key" in " ".join(lines), "no break at a hyphen"


def test_a_short_one_is_as_it_is() -> None:
    assert broken(event_line(SHORT), 60) == event_line(SHORT)


@pytest.mark.parametrize(("terminal", "cut"), [(True, True), (False, False)])
def test_that_something_was_cut_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, cut: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    printer = Printer(as_json=False)
    for event in (SHORT, LONG, LONG):
        printer.show(event)
    printer.tell()
    out, err = capsys.readouterr()
    assert ("| cat" in err) == cut
    assert err.count("\n") == cut
    assert (event_line(LONG).rstrip() in out.splitlines()) != cut or not cut


def test_what_ends_in_dots_by_itself_was_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    printer = Printer(as_json=False)
    printer.show(SHORT.model_copy(update={"message": "vm says …"}))
    printer.tell()
    assert capsys.readouterr().err == ""


def test_for_programs_an_event_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(as_json=True).show(LONG)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == LONG.model_dump(mode="json")
