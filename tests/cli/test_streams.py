"""Closed, full and cut standard streams; names that would lead elsewhere; numbers that are none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import LLMGW, Run
from tests.fleet.plane import Plane


def shell(plane: Plane, command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("llmgw", LLMGW, 1)],
        env={**plane.environ, **environ},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert "This is a bug" not in done.stderr
    return done


def test_closed_and_cut_streams(plane: Plane):
    assert shell(plane, "llmgw ctl events >&-").returncode in (0, 1)
    assert shell(plane, "llmgw ctl nodes <&- >&- 2>&-").returncode in (0, 1)
    assert shell(plane, "llmgw ctl events --json | head -c 1 >/dev/null").returncode in (0, 141)


def test_a_key_that_nobody_has_seen_is_revoked(plane: Plane):
    done = shell(plane, "llmgw key create unseen > /dev/full")
    assert done.returncode == 1
    assert "No space left" in done.stderr
    (key,) = [one for one in plane.json("key", "list")["keys"] if one["name"] == "unseen"]
    assert key["revoked_at"] is not None


def test_a_name_is_never_a_path(plane: Plane):
    plane.key("victim")
    for words in (
        ("model", "remove", "../keys/victim", "--yes"),
        ("node", "remove", "..", "--yes"),
        ("ctl", "drain", ".."),
        ("key", "revoke", "", "--yes"),
    ):
        done = plane.llmgw(*words, check=False)
        assert done.returncode in (2, 3), done.stderr
    (key,) = [one for one in plane.json("key", "list")["keys"] if one["name"] == "victim"]
    assert key["revoked_at"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("node", "add", "x", "--timeout", "nan"), "is no number of seconds"),
        (("node", "add", "x", "--timeout", "-1"), "not in the range"),
        (("node", "add", "x", "--name", "../x"), "names are"),
        (("node", "add", "x", "--root", "relative"), "is no absolute path"),
        (("node", "add", "x", "--engine", "foo=/x"), "there is no such engine"),
        (("node", "add", "[::1"), "the bracket is not closed"),
        (("node", "add", "a\nb"), "is no host"),
        (("model", "add", "/dev/zero"), "it is no plain file"),
    ],
)
def test_values_that_are_none(llmgw: Run, words: tuple[str, ...], said: str):
    done = llmgw(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def test_a_home_that_is_open_to_others_is_left_alone(llmgw: Run, tmp_path: Path):
    place = tmp_path / "open"
    place.mkdir(mode=0o755)
    done = llmgw("key", "create", "x", LLMGW_HOME=str(place))
    assert done.returncode == 4
    assert "may be entered by others" in done.stderr
    assert place.stat().st_mode & 0o777 == 0o755
    assert list(place.iterdir()) == []


def test_a_home_too_long_for_a_socket(llmgw: Run, tmp_path: Path):
    done = llmgw("key", "create", "x", LLMGW_HOME=str(tmp_path / ("h" * 120)))
    assert done.returncode == 4
    assert "107 bytes" in done.stderr
    assert "None" not in done.stderr


def test_letters_that_a_terminal_has_not(plane: Plane):
    plane.llmgw("node", "add", "local", "--name", "here")
    for words in (
        "ctl nodes",
        "ctl events",
        "node show here",
        "ctl nodes --json",
        "ctl events --json",
        "ctl drain größe",
    ):
        done = shell(plane, f"llmgw {words} </dev/null", PYTHONIOENCODING="latin-1:strict", PYTHONUTF8="0")
        assert done.returncode == (3 if "größe" in words else 0), done.stderr


def test_no_stdin_at_all(llmgw: Run, plane: Plane):
    done = shell(plane, "llmgw chat m <&- --url http://127.0.0.1:1/v1")
    assert done.returncode == 5
    assert "does not answer" in done.stderr


def test_no_colour_also_in_a_terminal(plane: Plane):
    plane.environ["NO_COLOR"] = "1"
    _, said = plane.typed("ctl", "nodes", answers=[])
    assert "There is no node yet" in said
    _, said = plane.typed("node", "show", "ghost", answers=[])
    assert "There is no node 'ghost'" in said
    assert "\x1b[" not in said
    del plane.environ["NO_COLOR"]
    assert "\x1b[31mError:" in plane.typed("node", "show", "ghost", answers=[])[1]
