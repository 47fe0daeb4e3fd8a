"""What comes from outside is harmless on a terminal (F52), and ages and sizes read well."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.admin.text import age, clean, event_line, size
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
