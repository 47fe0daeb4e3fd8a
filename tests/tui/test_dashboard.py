"""What is kept over a refresh, how states are told, and how the control plane's absence is borne."""

from __future__ import annotations

import time

from llmgw.errors import LlmgwError
from llmgw.model.event import Event, Severity
from llmgw.model.replica import ReplicaState
from llmgw.model.snapshot import Snapshot
from llmgw.tui.style import QUIET, colour
from llmgw.tui.widgets.events import Events
from tests.tui.looking import banner, dashboard, nodes, replicas, toasts
from tests.tui.plane import NOW, Plane, full, node, replica


async def test_a_refresh_keeps_cursor_and_scroll(until):
    many = tuple(node(f"n{number:03}") for number in range(60))
    plane = Plane(Snapshot(at=NOW, nodes=many))
    app = dashboard(plane)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: nodes(app).row_count == 60)
        nodes(app).move_cursor(row=29)
        await pilot.press("down")
        await pilot.pause(0.3)
        scrolled = nodes(app).scroll_offset
        assert nodes(app).subject.id == "n030"
        assert scrolled.y > 0

        plane.snapshot = Snapshot(at=NOW + 1, nodes=(many[0].model_copy(update={"cordoned": True}), *many[1:]))
        await until(pilot, lambda: nodes(app)._snapshot is plane.snapshot)
        assert (nodes(app).subject.id, nodes(app).scroll_offset) == ("n030", scrolled)

        plane.snapshot = Snapshot(at=NOW + 2, nodes=(node("a-new-one"), *many))
        await until(pilot, lambda: nodes(app).row_count == 61)
        await pilot.pause(0.1)
        assert nodes(app).subject.id == "n030"
        assert abs(nodes(app).scroll_offset.y - scrolled.y) <= 1

        plane.snapshot = Snapshot(at=NOW + 3, nodes=many[:30] + many[31:])
        await until(pilot, lambda: nodes(app).row_count == 59)
        assert nodes(app).subject is not None

        plane.snapshot = Snapshot(at=NOW + 4)
        await until(pilot, lambda: nodes(app).row_count == 0)
        await pilot.press("d", "enter", "p")
        assert plane.asked == []


async def test_a_lost_control_plane_greys_the_last_picture_until_it_is_back(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        assert not banner(app).display
        await plane.leave()
        await until(pilot, lambda: banner(app).display)
        assert "The control plane does not answer … trying again" in str(banner(app).content)
        assert app._main.has_class("-stale")
        assert nodes(app).row_count == 6
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))

        plane.gone = False
        plane.past.append(Event(id=9, at=NOW, kind="x", message="meanwhile"))
        await until(pilot, lambda: not banner(app).display)
        assert not app._main.has_class("-stale")
        await until(pilot, lambda: [one.id for one in app._main.query_one(Events)._events] == [1, 2, 3, 9])
        await plane.tell(Event(id=10, at=NOW, kind="x", message="live again"))
        await until(pilot, lambda: app._main.query_one(Events)._events[-1].id == 10)


async def test_another_past_replaces_the_events(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await plane.leave()
        await until(pilot, lambda: banner(app).display)
        plane.past = [Event(id=1, at=NOW, kind="x", message="a new state")]
        plane.gone = False
        await until(pilot, lambda: [one.message for one in app._main.query_one(Events)._events] == ["a new state"])


async def test_an_answer_that_is_an_error_is_told(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        plane.answers["/snapshot"] = LlmgwError("The control plane failed at this: [KeyError].")
        await until(pilot, lambda: banner(app).display)
        assert "failed at this: [KeyError]" in str(banner(app).content)
        plane.answers.clear()
        await until(pilot, lambda: not banner(app).display)


async def test_an_event_and_r_bring_a_new_picture_at_once(plane, until):
    app = dashboard(plane, every=5.0)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("r")
        began = time.monotonic()
        await until(pilot, lambda: plane.pictures == 2)
        await plane.tell(Event(id=4, at=NOW, kind="x", severity=Severity.WARNING, message="news"))
        await until(pilot, lambda: plane.pictures == 3)
        # A fifth of the period each, and not the period.
        assert time.monotonic() - began < 5.0


async def test_states_and_progress_are_told_in_words_and_colour(plane, until):
    app = dashboard(plane)
    async with app.run_test(size=(160, 45)) as pilot:
        await until(pilot, lambda: replicas(app).row_count)
        states = {row.key: row.cells["STATE"] for row in replicas(app)._rows}
        assert states["embed-d4"].plain == "◐ fetching ━━╌╌╌╌ 40%"
        assert states["chat-a1"].plain == "● ready"
        assert states["rerank-d1"].plain == "✗ failed"
        assert len({str(one.style) for one in states.values()}) == 5
        everything = "".join(cell.plain for row in replicas(app)._rows for cell in row.cells.values())
        assert "[bold red]boo[/]" in everything
        assert not any(char in everything for char in "\x1b\x07\u202e\t\n")


async def test_every_state_has_a_colour_of_its_own_kind():
    assert [state for state in ReplicaState if colour(str(state)) == QUIET] == [ReplicaState.STOPPED]


async def test_no_color_leaves_no_colour(plane, until, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        assert app.no_color
        for strip in app.screen._compositor.render_strips():
            for segment in strip.apply_filter(app._filters[-1], app.screen.background_colors[1]):
                for shade in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    if shade is not None and shade.triplet is not None:
                        assert len(set(shade.triplet)) == 1


async def test_the_reader_of_old_events_is_not_pulled_away(plane, until):
    plane.past = [Event(id=number, at=NOW, kind="x", message=f"event {number}") for number in range(1, 101)]
    app = dashboard(plane)
    async with app.run_test(size=(80, 24)) as pilot:
        log = app._main.query_one(Events)
        await until(pilot, lambda: log.max_scroll_y > 50 and log.is_vertical_scroll_end)
        await plane.tell(*[Event(id=number, at=NOW, kind="x", message="more") for number in range(101, 111)])
        await until(pilot, lambda: len(log.lines) == 110 and log.is_vertical_scroll_end)
        await pilot.press("4", "pageup")
        await pilot.pause(0.4)
        place = log.scroll_offset.y
        assert place < log.max_scroll_y
        await plane.tell(Event(id=200, at=NOW, kind="x", message="news"))
        await until(pilot, lambda: len(log.lines) == 111)
        assert log.scroll_offset.y == place


async def test_another_size_shows_other_columns(until):
    plane = Plane(full().model_copy(update={"replicas": (replica("chat-a1", "atlas"),)}))
    app = dashboard(plane)
    async with app.run_test(size=(160, 45)) as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("down", "down")
        wide = len(nodes(app).columns)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: len(nodes(app).columns) < wide)
        assert nodes(app).subject.id == "cygnus"
