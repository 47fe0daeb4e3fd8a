"""Snapshot tests: how it looks. After a change that is meant: `pytest tests/tui --snapshot-update`, and look at it."""

from __future__ import annotations

import pytest

from llmgw.model.snapshot import Snapshot
from llmgw.tui.app import Dashboard
from tests.tui.plane import NOW, Plane

SIZES = [(80, 24), (140, 30), (160, 45)]


def _ready(*keys: str):
    async def before(pilot) -> None:
        while not pilot.app.screen.query("#nodes") or pilot.app.screen.query_one("#nodes")._snapshot is None:
            await pilot.pause(0.02)
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await pilot.pause(0.1)

    return before


@pytest.mark.parametrize("size", SIZES)
def test_everything(snap_compare, size):
    assert snap_compare(Dashboard(Plane()), terminal_size=size, run_before=_ready("2"))


@pytest.mark.parametrize("size", SIZES)
def test_nothing_yet(snap_compare, size):
    plane = Plane(Snapshot(at=NOW))
    plane.past = []
    assert snap_compare(Dashboard(plane), terminal_size=size, run_before=_ready())


def test_node_details(snap_compare):
    assert snap_compare(Dashboard(Plane()), terminal_size=(80, 24), run_before=_ready("enter"))


def test_the_question_before_a_drain(snap_compare):
    assert snap_compare(Dashboard(Plane()), terminal_size=(80, 24), run_before=_ready("d"))


def test_help(snap_compare):
    assert snap_compare(Dashboard(Plane()), terminal_size=(80, 24), run_before=_ready("question_mark"))
