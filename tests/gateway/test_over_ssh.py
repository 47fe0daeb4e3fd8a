"""The same through an SSH channel or a relay: a stream is a stream, and a client that leaves closes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
import pytest_asyncio

from llmgw.model.node import Address
from llmgw.model.route import ProtocolFactory, Upstream
from llmgw.pki.sshkey import ensure_key, public_key
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.embedded import EmbeddedServer, Server
from llmgw.ssh.identity import Login

from .conftest import eventually, until
from .raw import ask


class Deaf(Server):
    """Forwards nothing."""

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "forwarding is off")


@pytest_asyncio.fixture(params=["direct-tcpip", "relay"])
async def node(
    leaks: None, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Connection]:
    ensure_key(tmp_path)
    server = EmbeddedServer(public_key(tmp_path), tmp_path / "host_key")
    if request.param == "relay":
        monkeypatch.setattr(server, "serve", lambda: Deaf(server._authorized, server._connections))
    await server.start()
    login = Login(client_keys=(tmp_path / "id_ed25519",))
    address = Address(host="127.0.0.1", port=server.port, user="somebody")
    connection = await connect(address, login=login, host_key=server.host_key)
    yield connection
    assert connection.data_path == request.param
    await connection.close()
    await server.close()


def through(node: Connection, engine) -> Upstream:
    async def open_stream(factory: ProtocolFactory) -> asyncio.Protocol:
        return await node.open_stream(engine.port, factory)

    return replace(engine.upstream, connect=open_stream)


def channels(node: Connection) -> int:
    relay = node.relays.relay
    return node.channels if relay is None else relay.streams


async def test_answers_and_streams(house, sim, node: Connection) -> None:
    home = await house(through(node, sim("r1", "--max-tokens", "4")))
    for _ in range(3):
        assert (await home.ask(ask())).json()["choices"][0]["message"]["content"] == "The quick brown fox"
        assert (await home.ask(ask(stream=True))).body.endswith(b"[DONE]\n\n")
    assert channels(node) == 1, "one channel, kept for the next request"


async def test_large_bodies_both_ways(house, fake, node: Connection) -> None:
    from .engines import plain

    engine = await fake(plain(b"[" + b"1," * 1_000_000 + b"1]"))
    home = await house(through(node, engine))
    body = ask(pad="x" * 3_000_000)
    answer = await home.ask(body)
    assert answer.whole
    assert len(answer.body) == 2_000_003
    assert engine.requests[0].body == body


@pytest.mark.parametrize("streaming", [True, False])
async def test_clients_that_leave(house, sim, node: Connection, streaming: bool) -> None:
    engine = sim("r1", "--tokens-per-second", "20")
    home = await house(through(node, engine))
    raws = [await home.raw() for _ in range(30)]
    for raw in raws:
        raw.send(ask(stream=streaming, max_tokens=100_000))

    async def active() -> bool:
        return len((await engine.stats())["active"]) == 30

    await eventually(active)
    for raw in raws:
        raw.abort()

    async def aborted() -> bool:
        return len((await engine.stats())["aborted"]) == 30

    await eventually(aborted, within=1.0)
    assert home.traffic.inflight == {}
    await until(lambda: channels(node) == 0)


async def test_a_refused_port_is_the_engine_and_not_the_node(house, sim, node: Connection) -> None:
    engine = sim()
    home = await house(through(node, engine))
    engine.kill()
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert len(home.failures) == 1
    assert channels(node) == 0


async def test_the_link_is_lost_in_the_middle(house, sim, node: Connection) -> None:
    home = await house(through(node, sim("r1", "--tokens-per-second", "20")))
    raw = await home.raw()
    raw.send(ask(stream=True, max_tokens=1000))
    await raw.answer_head()
    node.abort()
    body = b"".join([piece async for piece in raw.chunks()])
    assert not raw.ended
    assert b'"code":"upstream_failed"' in body
    assert (await home.ask(ask())).status == 502


async def test_a_slow_reader_holds_up_its_channel_and_no_other(house, sim, node: Connection) -> None:
    home = await house(through(node, sim()), idle=5.0)
    slow = await home.raw()
    slow.writer.transport.pause_reading()
    slow.send(ask(stream=True, max_tokens=60_000))
    await until(lambda: home.traffic.inflight)
    for _ in range(10):
        assert (await home.ask(ask())).status == 200
    slow.writer.transport.resume_reading()
    answer = await slow.answer()
    assert answer.whole
    assert answer.body.count(b'"content":') == 60_000
