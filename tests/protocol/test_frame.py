"""Frames: found in any noise, however it is cut; never half (F48-F51, F53)."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.errors import BadReply
from llmgw.protocol.frame import MAX_NOISE, FrameReader, block, new_token, request

TOKEN = "0123456789abcdef" * 2
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
bodies = st.dictionaries(
    st.text(), st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
)


def framed(body: Any, token: str = TOKEN) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return b"\n#%s %d %s\n%s\n" % (token.encode(), len(text), hashlib.sha256(text).hexdigest()[:32].encode(), text)


def read(data: bytes, cuts: list[int] | None = None, **more: Any) -> tuple[list[dict[str, Any]], FrameReader]:
    reader = FrameReader(TOKEN, **more)
    frames: list[dict[str, Any]] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    for start, end in itertools.pairwise(edges):
        frames += reader.feed(data[start:end])
    reader.close()
    return frames, reader


@given(bodies, st.binary(max_size=200), st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=20))
def test_found_in_any_noise_and_chunking(body: dict[str, Any], before: bytes, after: bytes, cuts: list[int]) -> None:
    if TOKEN.encode() in before + after:
        return
    frames, reader = read(before + framed(body) + after, cuts)
    assert frames == [body]
    assert bytes(reader.noise) == before + b"\n\n" + after


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=5))
def test_cut_at_every_byte_it_is_whole_or_nothing(body: dict[str, Any]) -> None:
    whole = framed(body)
    for cut in range(len(whole)):
        reader = FrameReader(TOKEN)
        frames = list(reader.feed(whole[:cut]))
        if cut < len(whole) - 1:  # the last newline says nothing more
            assert frames == []
        else:
            assert frames == [body]
        frames += reader.feed(whole[cut:])
        reader.close()
        assert frames == [body]


@given(st.lists(bodies, min_size=1, max_size=5), st.lists(st.integers(0, 100_000), max_size=30))
def test_many_frames_in_order(sent: list[dict[str, Any]], cuts: list[int]) -> None:
    assert read(b"".join(framed(body) for body in sent), cuts)[0] == sent


@given(st.binary(max_size=2000))
def test_bytes_of_any_kind_never_become_a_frame(noise: bytes) -> None:
    try:
        frames, _ = read(noise)
    except BadReply:
        return
    assert frames == []


@given(bodies, st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_never_believed(body: dict[str, Any], position: int, change: int) -> None:
    whole = bytearray(framed(body))
    whole[position % len(whole)] ^= change
    try:
        frames, _ = read(bytes(whole))
    except BadReply:
        return
    assert frames in ([], [body])


def code(data: bytes, **more: Any) -> str:
    with pytest.raises(BadReply) as caught:
        read(data, **more)
    return caught.value.code


def test_what_is_refused() -> None:
    assert code(framed({"a": 1})[:-10]) == "truncated"
    assert code(framed(b'{"a":NaN}')) == "damaged"
    assert code(framed(b'{"a":Infinity}')) == "damaged"
    assert code(framed(b'{"a":1,"a":1}')) == "damaged"
    assert code(framed(b"[1]")) == "damaged"
    assert code(framed(b"")) == "damaged"
    assert code(framed(b"\xff")) == "damaged"
    assert code(framed(b'{"a":' + b"9" * 10_000 + b"}")) == "damaged"
    assert code(framed(b'{"a":' + b"[" * 65 + b"]" * 65 + b"}")) == "damaged"
    assert code(framed(b'{"a":' + b"[" * 500_000)) == "damaged"
    assert code(b"#" + TOKEN.encode() + b" 1 " + b"0" * 32 + b"\nx") == "digest"
    assert code(b"#" + TOKEN.encode() + b" 99999999 " + b"0" * 32 + b"\n") == "oversized"
    assert code(b"#" + TOKEN.encode() + b" 999999999 " + b"0" * 32 + b"\n") == "damaged"
    assert code(b"#" + TOKEN.encode() + b" " + b"1" * 200) == "damaged"
    assert code(bytes(1001), limit=1000) == "oversized"


def test_depth_counts_no_brackets_in_strings() -> None:
    body = {"a": "[" * 1000 + '\\"' + "{" * 1000, "b": [[[[1]]]]}
    assert read(framed(body))[0] == [body]


def test_another_calls_frame_is_noise() -> None:
    """F53, F55: a late or forged reply carries another token."""
    other = framed({"result": {"evil": 1}}, new_token())
    assert read(other + framed({"result": {}}) + other)[0] == [{"result": {}}]


def test_noise_is_kept_within_bounds() -> None:
    frames, reader = read(b"n" * 100_000 + framed({"a": 1}) + b"n" * 100_000, cuts=list(range(0, 200_000, 777)))
    assert frames == [{"a": 1}]
    assert len(reader.noise) == MAX_NOISE
    assert len(reader._buffer) < 100


def test_a_big_reply_in_small_chunks_is_quick() -> None:
    """Eight megabytes in 4 KiB chunks: what is searched must not grow with what is buffered."""
    import time

    body = {"text": "x" * (7 << 20)}
    whole = framed(body)
    began = time.perf_counter()
    assert read(whole, cuts=list(range(0, len(whole), 4096)))[0] == [body]
    assert time.perf_counter() - began < 2


@given(st.binary(max_size=1000))
def test_blocks(data: bytes) -> None:
    made = block(data)
    assert int(made[:8]) == len(data)
    assert made[8:] == data


def test_a_request_is_four_blocks() -> None:
    rest = request(b"prelude", "x.py", b"program", {"a": 1}, token=TOKEN, deadline=5, payload=7)
    parts = []
    while rest:
        size = int(rest[:8])
        parts.append(rest[8 : 8 + size])
        rest = rest[8 + size :]
    assert parts[:3] == [b"prelude", b"x.py", b"program"]
    assert json.loads(parts[3]) == {"a": 1, "_token": TOKEN, "_deadline": 5, "_payload": 7}


def test_tokens_are_random() -> None:
    assert len({new_token() for _ in range(1000)}) == 1000
    assert len(new_token()) == 32


@pytest.mark.parametrize(
    "number", ["1e999", "-1e400", "9223372036854775808", "-9223372036854775809", "1" * 5000, "9" * 400 + ".0"]
)
def test_a_number_that_nobody_can_store_or_tell_again_is_no_reply(number: str) -> None:
    with pytest.raises(BadReply, match="too large a number"):
        read(framed(b'{"at": [%s]}' % number.encode()))


@pytest.mark.parametrize(
    "number", ["9223372036854775807", "-9223372036854775807", "1e300", "1E+299", "0.12345678901234567890123"]
)
def test_large_numbers_that_fit_are_read(number: str) -> None:
    assert read(framed(b'{"at": %s}' % number.encode()))[0] == [{"at": json.loads(number)}]


def test_digits_in_a_text_are_no_number() -> None:
    body = {"serial": "1" * 5000, "note": "1e999"}
    assert read(framed(body))[0] == [body]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (r"\ud800 x", "\ufffd x"),
        (r"caf\udce9", "caf\ufffd"),
        (r"\ud83d\ude00", "\N{GRINNING FACE}"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
    ],
)
def test_half_a_surrogate_pair_becomes_a_mark(told: str, kept: str) -> None:
    """A name that is no UTF-8 is told so by Python's own json; a hostile node tells it anywhere."""
    (frame,) = read(framed(b'{"a": ["%s"], "%s": 1}' % (told.encode(), told.encode())))[0]
    assert frame == {"a": [kept], kept: 1}
    json.dumps(frame, ensure_ascii=False).encode()


def test_keys_that_become_the_same_are_no_reply() -> None:
    with pytest.raises(BadReply, match="twice"):
        read(framed(rb'{"\ud800": 1, "\ud801": 2}'))
