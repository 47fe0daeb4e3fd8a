"""The report over several machines: what mends a thing is said once."""

from __future__ import annotations

import json

import pytest
from click import unstyle

from llmgw.cli.check import Finding, report
from llmgw.errors import LlmgwError, Refused, Unreachable
from llmgw.model.node import Problem

REFUSED = Refused("The login was refused.", fix="Put the key there.", code="login_refused")
CLOSED = Unreachable("Nothing listens there.", fix="Start sshd there.", code="port_closed")
GOOD = Finding("good", (Problem(code="c", severity="note", message="a note"),), None)
BAD = Finding("bad", (Problem(code="c", severity="error", message="no memory", fix="Buy some."),), None)


def shown(capsys: pytest.CaptureFixture[str], *found: Finding) -> tuple[str, LlmgwError | None]:
    """What stands on stdout, and the error that ends the command."""
    try:
        report(found, as_json=False)
    except LlmgwError as exc:
        return unstyle(capsys.readouterr().out), exc
    return unstyle(capsys.readouterr().out), None


def test_the_only_one_that_could_not_be_seen_is_the_error_of_the_command(capsys) -> None:
    assert shown(capsys, Finding("one", (), REFUSED)) == ("", REFUSED)


def test_among_others_it_stands_in_the_report(capsys) -> None:
    out, end = shown(capsys, Finding("one", (), REFUSED), GOOD)
    assert "could not be looked at: The login was refused.\n           Put the key there.\n" in out
    assert "it can serve" in out
    assert isinstance(end, Refused)
    assert "one could not be looked at" in end.message
    assert "Put the key" not in str(end)


def test_where_none_could_be_seen_the_status_is_that_of_the_first(capsys) -> None:
    out, end = shown(capsys, Finding("one", (), CLOSED), Finding("two", (), REFUSED))
    assert out.count("Put the key") == out.count("Start sshd") == 1
    assert end is not None
    assert (end.exit_status, end.code) == (5, "port_closed")
    assert end.message == "one, two could not be looked at."


def test_what_cannot_serve_is_a_refusal(capsys) -> None:
    out, end = shown(capsys, GOOD, BAD)
    assert "Buy some." in out
    assert isinstance(end, Refused)
    assert end.message == "bad cannot serve as it is."
    assert shown(capsys, GOOD)[1] is None


def test_for_programs_every_failure_is_in_the_document(capsys) -> None:
    with pytest.raises(Refused):
        report([Finding("one", (), REFUSED)], as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["host"], found["ok"], found["failed"]["fix"]) == ("one", False, "Put the key there.")
