"""What is shown where there is little room: columns, rows and keys."""

from __future__ import annotations

import pytest
from rich.text import Text

from llmgw.model.catalog import Model
from llmgw.model.snapshot import ModelStatus, Snapshot
from llmgw.tui.facts import model_facts, sheet
from llmgw.tui.style import state
from llmgw.tui.widgets.events import Events
from llmgw.tui.widgets.fit import LEAST, Row, fit
from llmgw.tui.widgets.models import Models
from tests.tui.looking import dashboard, nodes, replicas
from tests.tui.plane import NOW, Plane, full, model, node, replica

LONG = (
    "exit status 1: the weights do not fit into the memory of the GPU: 41.2 GiB of 39.4 GiB, so fewer layers go there"
)


def shown(app) -> list[str]:
    return [strip.text for strip in app.screen._compositor.render_strips()]


def rows(**cells: str) -> list[Row]:
    return [Row("k", None, {name: Text(value) for name, value in cells.items()})]


def test_what_can_be_spared_goes_first_and_in_order() -> None:
    table = rows(A="aaaa", B="bbbb", C="cccc", WHY="w" * 20)
    found = {width: fit(["A", "B", "C", "WHY"], table, ("C", "B"), width)[0] for width in (40, 39, 33, 27, 5)}
    assert found == {
        40: ("A", "B", "C", "WHY"),
        39: ("A", "B", "WHY"),
        33: ("A", "WHY"),
        27: ("A", "WHY"),
        5: ("A", "WHY"),
    }


def test_the_prose_gets_the_rest_and_ends_visibly() -> None:
    table = rows(A="aaaa", WHY="word " * 20)
    for width in (30, 60):
        _, (row,) = fit(["A", "WHY"], table, (), width)
        assert row.cells["WHY"].cell_len == width - 8
        assert row.cells["WHY"].plain.endswith("…")
    _, (row,) = fit(["A", "WHY"], table, (), 5)
    assert row.cells["WHY"].cell_len == LEAST
    assert table[0].cells["WHY"].plain == "word " * 20


@pytest.mark.parametrize(("width", "ending"), [(140, "…"), (190, "fewer layers go there")])
async def test_a_long_reason_is_worth_more_than_a_pid(until, width: int, ending: str) -> None:
    one = replica("chat-a1", "atlas", reason=LONG)
    app = dashboard(Plane(Snapshot(at=NOW, nodes=(node("atlas"),), replicas=(one,))))
    async with app.run_test(size=(width, 24)) as pilot:
        await until(pilot, lambda: replicas(app).row_count)
        (line,) = [text for text in shown(app) if "chat-a1" in text]
        assert line.rstrip().endswith(ending)
        assert len(line.rstrip()) > 120
        assert not {"PID", "ATTEMPT"} & {str(column.label) for column in replicas(app).columns.values()}


async def test_on_a_low_terminal_the_events_take_what_the_tables_do_not_need(until) -> None:
    all_ = full()
    few = all_.model_copy(update={"nodes": all_.nodes[:2], "replicas": all_.replicas[:1], "models": all_.models[:1]})
    app = dashboard(Plane(few))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        tables = (nodes(app), replicas(app), app._main.query_one(Models))
        assert [table.outer_size.height for table in tables] == [table.row_count + 2 for table in tables]
        assert app._main.query_one(Events).outer_size.height == 22 - 4 - 4 - 3
    app = dashboard(Plane(full()))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("2")
        await pilot.pause()
        assert replicas(app).outer_size.height > nodes(app).outer_size.height
        assert app._main.query_one(Events).outer_size.height >= 4


@pytest.mark.parametrize("width", [40, 60, 80])
async def test_help_and_quit_stay_in_sight(until, width: int) -> None:
    app = dashboard(Plane())
    async with app.run_test(size=(width, 24)) as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await until(pilot, lambda: shown(app)[-1].rstrip().endswith("? Help q Quit"))
        await pilot.click("#always FooterKey")
        await until(pilot, lambda: app.screen is not app._main)


def test_a_state_with_more_behind_it_keeps_its_mark() -> None:
    assert state("ready, 2 of 2 ready").plain == "● ready, 2 of 2 ready"
    assert state("failed: why").plain.startswith("✗")
    chat: Model = model("chat")
    status = ModelStatus(model="chat", state="ready", ready=2, wanted=2)
    page = sheet(model_facts(chat, Snapshot(at=NOW, models=(chat,), status=(status,))))
    assert "● ready, 2 of 2 ready" in page.plain
