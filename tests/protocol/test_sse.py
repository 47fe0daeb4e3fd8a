"""Streams of events, cut anywhere."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.protocol.sse import Reader, TooLong, error_event

STREAM = b'data: {"a":1}\n\n: comment\n\ndata:tight\r\n\r\nevent: x\ndata: one\ndata: two\n\nid: 7\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a":1}', b"tight", b"one\ntwo", b"[DONE]"]


def test_events() -> None:
    assert list(Reader().feed(STREAM)) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_cut_anywhere(cuts: list[int]) -> None:
    reader, found = Reader(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        found += reader.feed(STREAM[start:end])
    assert found == EVENTS


def test_an_event_without_end() -> None:
    reader = Reader(limit=100)
    assert list(reader.feed(b"data: " + b"x" * 90)) == []
    with pytest.raises(TooLong):
        list(reader.feed(b"x" * 90))


@given(st.binary(max_size=20))
def test_the_error_event_is_read_whatever_came_before(before: bytes) -> None:
    event = error_event("The engine broke.", "upstream_failed", clean=before.endswith(b"\n\n") or not before)
    last = list(Reader().feed(before + event))[-1]
    assert json.loads(last)["error"]["code"] == "upstream_failed"
