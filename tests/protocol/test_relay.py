"""The relay's frames: the same however they are cut, and nothing else gets through."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import BadReply
from llmgw.protocol.relay import CREDIT, DATA, FRAME, FROM_NODE, HEAD, OPEN, PING, Frame, Reader

numbers = st.integers(0, 2**32 - 1)
frames = st.lists(
    st.tuples(st.just(DATA), numbers, st.binary(min_size=1, max_size=300))
    | st.tuples(st.sampled_from(sorted(FROM_NODE - {DATA})), numbers, numbers)
)


def wire(frame: Frame) -> bytes:
    kind, stream, value = frame
    if isinstance(value, bytes):
        return HEAD.pack(kind, stream, len(value)) + value
    return HEAD.pack(kind, stream, value)


def joined(found: list[Frame]) -> list[Frame]:
    """Neighbouring pieces of the same stream as one."""
    made: list[Frame] = []
    for kind, stream, value in found:
        if kind == DATA and made and made[-1][:2] == (DATA, stream):
            made[-1] = (DATA, stream, made[-1][2] + value)  # type: ignore[operator]
        else:
            made.append((kind, stream, value))
    return made


@given(sent=frames, cuts=st.lists(st.integers(0, 10_000)))
def test_frames_are_the_same_however_they_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(wire(frame) for frame in sent)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = Reader()
    found: list[Frame] = []
    for start, end in itertools.pairwise(edges):
        found += reader.feed(data[start:end])
        assert len(reader._cut) < HEAD.size
    assert joined(found) == joined(sent)


def test_every_single_byte() -> None:
    sent: list[Frame] = [(DATA, 7, b"hello"), (CREDIT, 7, 5), (DATA, 8, b"x")]
    reader = Reader()
    found = [frame for byte in b"".join(map(wire, sent)) for frame in reader.feed(bytes([byte]))]
    assert joined(found) == sent


def test_the_largest_frame() -> None:
    assert Reader().feed(HEAD.pack(DATA, 1, FRAME) + bytes(FRAME)) == [(DATA, 1, bytes(FRAME))]


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ((DATA, 1, FRAME + 1), "oversized"),
        ((DATA, 1, 2**32 - 1), "oversized"),
        ((DATA, 1, 0), "oversized"),
        ((0, 0, 0), "damaged"),
        ((255, 1, 1), "damaged"),
        ((OPEN, 1, 80), "damaged"),
        ((PING, 0, 0), "damaged"),
    ],
)
def test_what_no_relay_sends(head: tuple[int, int, int], code: str) -> None:
    with pytest.raises(BadReply) as caught:
        Reader().feed(HEAD.pack(*head))
    assert caught.value.code == code


@given(data=st.binary(max_size=2000))
def test_noise_is_refused_or_frames_and_never_kept(data: bytes) -> None:
    reader = Reader()
    try:
        found = reader.feed(data)
    except BadReply:
        return
    assert sum(len(value) for kind, _, value in found if isinstance(value, bytes)) <= len(data)
    assert len(reader._cut) < HEAD.size


def test_a_text_in_between_is_noticed() -> None:
    with pytest.raises(BadReply):
        Reader().feed(b"Connection to the mail server lost.\n")
