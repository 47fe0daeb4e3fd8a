"""What comes from outside is harmless on a terminal (F52), and ages and sizes read well."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.admin.text import STAMP, age, clean, event_line, harmless, size
from llmgw.model.event import Event, Severity


@given(st.text())
def test_no_control_character_gets_through(text: str) -> None:
    shown = clean(text)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", shown)
    assert not any(
        unicodedata.bidirectional(char) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI") for char in shown
    )


@pytest.mark.parametrize(
    "nasty", ["\x1b[2J", "\x1b]0;title\x07", "a\rb", "\x9b31m", "\u202egnp.exe", "\x00", "one\ntwo", "\u2028"]
)
def test_escapes_are_shown_not_obeyed(nasty: str) -> None:
    assert not set(clean(nasty)) & {"\x1b", "\r", "\x9b", "\u202e", "\x00", "\n", "\x07", "\u2028"}


@pytest.mark.parametrize("fine", ["größe", "日本語", "a b", "→ ✗ •••", ""])
def test_words_stay_as_they_are(fine: str) -> None:
    assert clean(fine) == fine


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h"),
        (86399, "23h"),
        (86400 * 12, "12d"),
        (-500, "0s"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(1000.0, 1000.0 + seconds) == text
    assert age(None) == "–"


@pytest.mark.parametrize(
    ("count", "text"), [(None, "–"), (0, "0 MiB"), (5 << 20, "5 MiB"), (1 << 30, "1.0 GiB"), (3 << 29, "1.5 GiB")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_an_event_is_one_line() -> None:
    event = Event(at=0.0, kind="k", severity=Severity.ERROR, message="m-1 failed:\n\x1b[31mboom")
    assert re.fullmatch(r"\d\d:\d\d:\d\d ✗ m-1 failed:.+boom", event_line(event))


def test_lines_stay_lines_where_that_is_wanted() -> None:
    assert harmless("one\n\ttwo\x1b[2J") == "one\n\ttwo\ufffd[2J"


def test_what_is_no_text_at_all_can_be_printed() -> None:
    assert clean("a\udcffb").encode() == "a\ufffdb".encode()


@pytest.mark.parametrize(
    ("kind", "message", "named"),
    [
        ("node.step", "preflight: 3 notes", "vm preflight: 3 notes"),
        ("node.step", "identify: vm: Debian", "vm identify: vm: Debian"),
        ("node.link", "vm is connected", "vm is connected"),
        ("drain", "the drain of vm was given up", "the drain of vm was given up"),
        ("node.look", "vmware is not vm-2 nor a.vm", "vm vmware is not vm-2 nor a.vm"),
    ],
)
def test_an_event_says_whom_it_is_about(kind: str, message: str, named: str) -> None:
    assert event_line(Event(at=0.0, kind=kind, message=message, node="vm")).endswith(f"  {named}")


def test_of_a_replica_the_replica_is_named() -> None:
    event = Event(at=0.0, kind="k", message="answered", node="vm", model="m", replica="m-1")
    assert event_line(event).endswith("m-1 answered")
    assert event_line(event.model_copy(update={"message": "m is slow"})).endswith("  m is slow")
    assert event_line(Event(at=0.0, kind="k", message="the key is new")).endswith("  the key is new")
    assert event_line(event)[STAMP:] == "m-1 answered"
