"""Doing without asyncssh's work a packet: it must come to the same, and the names it reaches for must exist."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from llmgw.errors import LinkLost
from llmgw.ssh import lean
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.identity import Login

from .conftest import Sshd
from .test_tunnel import Engine, Recorder, settled

CONNECTION = [
    "_recv_data",
    "_recv_pkthdr",
    "_recv_handler",
    "_recv_encryption",
    "_recv_seq",
    "_packet",
    "_inpbuf",
    "_decompressor",
    "_max_recv_pktlen",
    "_channels",
    "_send_encryption",
    "_loop",
    "_keepalive_interval",
    "_keepalive_timer",
    "_keepalive_timer_callback",
    "_reset_keepalive_timer",
    "_cancel_keepalive_timer",
    "_set_keepalive_timer",
]
CHANNEL = ["_init_recv_window", "_recv_window", "_recv_paused", "_recv_state", "_send_state"]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    made.server.close()
    for end in made.accepted:
        end.transport.abort()


async def opened(link: Connection, engine: Engine) -> tuple[Recorder, Recorder, object]:
    ours = await link.open_stream(engine.port, Recorder)
    assert isinstance(ours, Recorder)
    (channel,) = link._made._channels.values()
    return ours, await engine.first(), channel


async def over(link: Connection, *streams: Recorder) -> None:
    for stream in streams:
        stream.transport.abort()
    await settled(link)
    await link.close()


async def test_the_names_it_reaches_for(shared_sshd: Sshd, login: Login, engine: Engine) -> None:
    link = await connect(shared_sshd.address, login=login, host_key=shared_sshd.host_key)
    ours, theirs, channel = await opened(link, engine)
    assert not [name for name in CONNECTION if not hasattr(link._made, name)]
    assert not [name for name in CHANNEL if not hasattr(channel, name)]
    assert type(link._made._recv_encryption._cipher) is type(link._made._send_encryption._cipher) is lean.Gcm
    await over(link, ours, theirs)


async def test_chunks_go_past_asyncssh(shared_sshd: Sshd, login: Login, engine: Engine) -> None:
    link = await connect(shared_sshd.address, login=login, host_key=shared_sshd.host_key)
    ours, theirs, channel = await opened(link, engine)
    channel._accept_data = lambda *_: pytest.fail("asyncssh was asked")  # type: ignore[attr-defined]
    for number in range(20):
        theirs.transport.write(b"data: %d\n\n" % number)
        await ours.until(lambda number=number: ours.data.endswith(b"data: %d\n\n" % number))
    del channel._accept_data  # type: ignore[attr-defined]
    await over(link, ours, theirs)


async def test_one_packet_a_write(shared_sshd: Sshd, login: Login, engine: Engine) -> None:
    link = await connect(shared_sshd.address, login=login, host_key=shared_sshd.host_key)
    ours, theirs, _ = await opened(link, engine)
    before = link._made._send_seq
    for _ in range(10):
        ours.transport.write(b"x")
    assert link._made._send_seq == before + 10
    await theirs.until(lambda: len(theirs.data) == 10)
    await over(link, ours, theirs)


@pytest.mark.parametrize(
    "options",
    [{}, {"RekeyLimit": "64K"}, {"Ciphers": "chacha20-poly1305@openssh.com"}, {"Ciphers": "aes128-ctr"}],
    ids=["plain", "keys exchanged again and again", "chacha20", "ctr"],
)
async def test_all_bytes_arrive(
    sshd: Callable[..., Sshd], login: Login, engine: Engine, options: dict[str, str]
) -> None:
    server = sshd(**options)
    link = await connect(server.address, login=login, host_key=server.host_key)
    ours, theirs, _ = await opened(link, engine)
    sent = os.urandom(3_000_000)
    theirs.transport.write(sent)
    for start in range(0, len(sent), 50_000):
        ours.transport.write(sent[start : start + 50_000])
    await ours.until(lambda: len(ours.data) == len(sent), timeout=30)
    await theirs.until(lambda: len(theirs.data) == len(sent), timeout=30)
    assert bytes(ours.data) == bytes(theirs.data) == sent
    await over(link, ours, theirs)


async def test_a_paused_reader_loses_nothing(shared_sshd: Sshd, login: Login, engine: Engine) -> None:
    link = await connect(shared_sshd.address, login=login, host_key=shared_sshd.host_key)
    ours, theirs, channel = await opened(link, engine)
    theirs.transport.write(b"one")
    await ours.until(lambda: bytes(ours.data) == b"one")
    ours.transport.pause_reading()
    sent = os.urandom(400_000)
    theirs.transport.write(sent)
    while sum(len(data) for data, _ in channel._recv_buf) < len(sent):  # type: ignore[attr-defined]
        await asyncio.sleep(0.005)
    assert bytes(ours.data) == b"one"
    ours.transport.resume_reading()
    await ours.until(lambda: bytes(ours.data) == b"one" + sent)
    await over(link, ours, theirs)


async def test_a_forged_packet_ends_the_connection(shared_sshd: Sshd, login: Login, engine: Engine) -> None:
    link = await connect(shared_sshd.address, login=login, host_key=shared_sshd.host_key)
    ours, theirs, _ = await opened(link, engine)
    link._made.data_received((48).to_bytes(4, "big") + bytes(64))
    await link.wait_closed()
    assert "MAC" in str(link.lost_error())
    assert not ours.data
    with pytest.raises(LinkLost):
        await link.open_stream(engine.port, Recorder)
    await over(link, theirs)


def test_a_packet_that_was_looked_at_is_still_there() -> None:
    key, iv = os.urandom(16), os.urandom(12)
    ours, theirs = lean.Gcm("aes128-gcm", key, iv), lean.Gcm("aes128-gcm", key, iv)
    packets = [theirs.encrypt_and_sign(b"head", bytes([number]) * 32) for number in range(3)]
    for number, (sealed, mac) in enumerate(packets):
        plain = ours.open(b"head", sealed[4:] + mac)
        ours.put_back(plain)
        assert ours.verify_and_decrypt(b"head", sealed[4:], mac) == plain == bytes([number]) * 32
    sealed, mac = theirs.encrypt_and_sign(b"head", bytes(32))
    assert ours.verify_and_decrypt(b"daeh", sealed[4:], mac) is None


@pytest.mark.parametrize("plain", [b"", b"\x04", b"\x04\x5e", b"\x00\x5e\x00\x00\x00\x00\xff\xff\xff\xff"])
def test_a_packet_too_short_or_lying_is_left_to_asyncssh(plain: bytes) -> None:
    class Made:
        _channels: dict[int, object] = {}

    assert not lean._taken(Made(), plain)
