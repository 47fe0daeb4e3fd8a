"""What the keys ask the admin API for, and what is shown of the answer."""

from __future__ import annotations

from llmgw.errors import NotFound, Refused
from llmgw.tui.screens.confirm import Confirm
from llmgw.tui.screens.sheet import Sheet
from tests.tui.looking import dashboard, nodes, text_of, toasts


async def test_keys_ask_for_what_they_say(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("down", "u", "c", "C", "p")
        await until(pilot, lambda: len(plane.asked) == 4)
    assert sorted(plane.asked) == [
        "POST /nodes/borealis/cordon",
        "POST /nodes/borealis/probe",
        "POST /nodes/borealis/uncordon",
        "POST /nodes/borealis/undrain",
    ]


async def test_only_y_drains(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        for no in ("n", "escape"):
            await pilot.press("d")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("enter")
            assert isinstance(app.screen, Confirm)
            await pilot.press(no)
            await until(pilot, lambda: app.screen is app._main)
        assert plane.asked == []
        await pilot.press("d", "y")
        await until(pilot, lambda: plane.asked)
        assert plane.asked == ["POST /nodes/atlas/drain"]
        await until(pilot, lambda: toasts(app))
        assert "\x1b" not in toasts(app)[0]


async def test_in_the_replicas_pane_the_replicas_node_is_meant(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("2", "down", "c", "l")
        await until(pilot, lambda: len(plane.asked) == 2)
        assert plane.asked == ["POST /nodes/cygnus/cordon", "GET /replicas/chat-b2/logs"]
        await until(pilot, lambda: "listening" in text_of(app))
        shown = text_of(app)
        assert "[bold red]boo[/]" in shown
        assert not any(char in shown for char in "\x1b\x07\u202e")


async def test_a_key_that_has_no_object_says_so(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("l", "3", "d")
        await until(pilot, lambda: len(toasts(app)) == 2)
    assert plane.asked == []


async def test_a_refusal_is_shown_in_its_own_words(plane, until):
    plane.answers["/nodes/atlas/cordon"] = Refused("atlas is being removed.", fix="Wait [a bit].")
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["atlas is being removed. Wait [a bit]."]


async def test_details_of_everything(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        for keys, expected in (
            (("1", "enter"), "Debian 12"),
            (("2", "enter"), "server is listening"),
            (("2", "end", "enter"), "left alone"),
            (("3", "enter"), "hf:org/chat/q4.gguf"),
            (("question_mark",), "moves off it"),
        ):
            await pilot.press(*keys)
            await until(pilot, lambda: isinstance(app.screen, Sheet))
            await until(pilot, lambda expected=expected: expected in text_of(app))
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app._main)


async def test_details_that_fail_keep_what_is_known(plane, until):
    plane.answers["/replicas/chat-a1/logs"] = NotFound("There is no replica chat-a1.")
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        await pilot.press("2", "enter")
        await until(pilot, lambda: "There is no replica" in text_of(app))
        assert "revision" in text_of(app)


async def test_panes_by_number_and_tab(plane, until):
    app = dashboard(plane)
    async with app.run_test() as pilot:
        await until(pilot, lambda: nodes(app).row_count)
        seen = []
        for key in ("2", "3", "4", "1", "tab", "tab", "tab", "tab"):
            await pilot.press(key)
            seen.append(app.screen.focused.id)
    assert seen == ["replicas", "models", "events", "nodes", "replicas", "models", "events", "nodes"]
