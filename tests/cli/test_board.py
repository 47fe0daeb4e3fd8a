"""The checklist as a person sees it, and the lines where nobody looks."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from llmgw.cli.board import LOOK, STEPS, Checklist, JsonLines, Lines
from llmgw.errors import Unreachable

WARNING = {"code": "low_disk", "severity": "warning", "fix": "Free some space."}
NOTE = {"code": "dns_broken", "severity": "note", "fix": "Look at resolv.conf."}


def seen(checklist: Checklist, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(checklist)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def marks(checklist: Checklist) -> dict[str, str]:
    return {line.split()[1]: line[0] for line in seen(checklist) if line[:1] in "✔✘·!" and len(line.split()) > 1}


def test_everything_is_ahead_at_first() -> None:
    lines = seen(Checklist(["gpu1"], tuple(STEPS)))
    assert lines[0] == "gpu1"
    assert [line.split()[1] for line in lines[1:]] == [step for step in STEPS if step != "mend"]


def test_what_is_done_what_is_going_on_and_what_is_ahead() -> None:
    checklist = Checklist(["gpu1"], tuple(STEPS))
    checklist.tell("gpu1", "reach", "gpu1 answers")
    checklist.tell("gpu1", "preflight", "only 900 MB free", **WARNING)
    checklist.tell("gpu1", "preflight", "it resolves no names", **NOTE)
    checklist.tell("gpu1", "key", "the key is there")
    found = marks(checklist)
    assert found["reach"] == "✔"
    assert found["preflight"] == "!"
    assert found["ready"] == "·"
    assert "key" not in found  # it turns
    text = "\n".join(seen(checklist))
    assert "only 900 MB free" in text
    assert "↳ Free some space." in text
    assert "resolves no names" not in text


def test_where_it_failed() -> None:
    """Why is the command's last word, below the list; of several machines each has it in its line."""
    why = Unreachable("nothing listens at port 22", code="port_closed", fix="Start it.")
    checklist = Checklist(["gpu1"], tuple(STEPS))
    checklist.tell("gpu1", "reach", "connecting")
    checklist.failed("gpu1", why)
    assert marks(checklist)["reach"] == "✘"
    assert seen(checklist)[-1].split() == ["✘", "reach", "port", "closed"]
    several = Checklist(["gpu1", "gpu2"], tuple(STEPS))
    several.failed("gpu1", why)
    assert "nothing listens at port 22" in "\n".join(seen(several))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_sentence_pushes_nothing_out_of_the_line_of_one_of_many(width: int) -> None:
    names = ["gpu1", "root@a-very-long-name.of-a-machine.example.org:2222"]
    checklist = Checklist(names, tuple(STEPS))
    for name in names:
        checklist.tell(name, "join", "taken in")
        checklist.failed(name, Unreachable("there is a node vm already, " * 8, code="x"))
    for line, name in zip(seen(checklist, width), names, strict=True):
        assert line.startswith(f"✘ {name[:20]}")
        assert " join " in line
        assert line.endswith("…")


def test_the_end() -> None:
    checklist = Checklist(["gpu1"], tuple(STEPS))
    checklist.tell("gpu1", "ready", "gpu1 is ready")
    assert set(marks(checklist).values()) == {"✔"}
    looked = Checklist(["gpu1"], LOOK)
    looked.tell("gpu1", "preflight", "no findings")
    looked.tell("gpu1", "done", "nothing was written")
    assert marks(looked) == dict.fromkeys(LOOK, "✔")


def test_many_hosts_are_a_line_each() -> None:
    checklist = Checklist(["gpu1", "gpu2"], tuple(STEPS))
    checklist.tell("gpu1", "engines", "downloading 3 of 33 MB")
    checklist.tell("gpu1", "preflight", "only 900 MB free", **WARNING)
    checklist.failed("gpu2", Unreachable("nothing listens", code="port_closed", fix="Start it."))
    one, two = seen(checklist, width=100)
    assert "gpu1" in one
    assert "engines" in one
    assert "3 of 33 MB (1 finding)" in one
    assert two.startswith("✘ gpu2")


def test_what_a_node_says_moves_no_cursor() -> None:
    checklist = Checklist(["gpu1"], tuple(STEPS))
    checklist.tell("gpu1", "identify", "evil\x1b[2J[bold]name[/bold]\nnext")
    text = "\n".join(seen(checklist))
    assert "\x1b" not in text
    assert "[bold]name[/bold]" in text


def test_lines_tell_warnings_with_their_fix_and_count_notes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(["gpu1"])
    lines.tell("gpu1", "preflight", "only 900 MB free", **WARNING)
    lines.tell("gpu1", "preflight", "it resolves no names", **NOTE)
    lines.tell("gpu1", "preflight", "1 warning, 1 note")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "gpu1  preflight  warning: only 900 MB free",
        "                 ↳ Free some space.",
        "gpu1  preflight  1 warning, 1 note",
    ]


def test_json_is_one_object_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().tell("gpu1", "preflight", "only 900 MB free", **WARNING)
    JsonLines().failed("gpu1", Unreachable("no", code="port_closed", fix="Start it."))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"host": "gpu1", "step": "preflight", "message": "only 900 MB free", **WARNING}
    about = {"code": "port_closed", "fix": "Start it.", "exit_status": 5}
    assert second == {"host": "gpu1", "step": "failed", "message": "no", **about}
