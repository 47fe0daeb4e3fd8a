"""F57: another replica is asked only while no byte of an answer has come, and never for what the client did."""

from __future__ import annotations

import asyncio
import socket

import pytest

from llmgw.gateway.upstream import Connection

from .conftest import until
from .engines import plain, stream, upstream
from .raw import ask


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def hang_up(engine, reader, writer, request) -> bool:
    return False


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_refused_connection_goes_elsewhere(house, sim, streaming: bool) -> None:
    dead, alive = upstream(closed_port(), "dead"), sim("alive")
    home = await house(dead, alive.upstream)
    for _ in range(6):
        answer = await home.ask(ask(stream=streaming))
        assert answer.status == 200
        assert b"sim-alive" in answer.body
    assert {replica for replica, _, _ in home.failures} == {"dead"}
    assert all("secret-host" in why for _, _, why in home.failures)
    assert home.traffic.served == {"alive": 6}


async def test_a_replica_that_refused_rests_and_comes_back(house, fake) -> None:
    port = closed_port()
    alive = await fake(plain({"by": "alive"}), "alive")
    home = await house(upstream(port, "back"), alive.upstream)
    for _ in range(10):
        assert (await home.ask(ask())).status == 200
    assert len(home.failures) == 1, "asked once, then left alone"
    home.clock.advance(1.5)
    back = await fake(plain({"by": "back"}), "back")
    home.publish(upstream(back.port, "back", attempt=1), alive.upstream)
    answers = [(await home.ask(ask())).json()["by"] for _ in range(10)]
    assert answers.count("back") == 0, "its failure still counts as load"
    home.clock.advance(30)
    answers = [(await home.ask(ask())).json()["by"] for _ in range(10)]
    assert answers.count("back") == 5


async def test_the_last_replica_is_asked_however_often_it_failed(house) -> None:
    """F62: the checker itself never empties the choice."""
    home = await house(upstream(closed_port(), "only"))
    for number in range(1, 6):
        answer = await home.ask(ask())
        assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
        assert len(home.failures) == number


async def test_at_most_three_replicas_are_tried(house) -> None:
    home = await house(*(upstream(closed_port(), f"dead{n}") for n in range(5)))
    answer = await home.ask(ask())
    assert answer.status == 502
    assert "secret-host" not in answer.body.decode(), "where engines are is nobody's business"
    assert len({replica for replica, _, _ in home.failures}) == 3
    assert home.traffic.inflight == {}


async def test_death_without_a_byte_is_tried_once_more_and_not_again(house, fake) -> None:
    """The request may be what kills engines: it must not be handed round."""
    engines = [await fake(hang_up, f"f{n}") for n in range(4)]
    home = await house(*(engine.upstream for engine in engines))
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert sum(len(engine.requests) for engine in engines) == 2


async def test_death_without_a_byte_then_an_answer(house, fake) -> None:
    bad, good = await fake(hang_up, "bad"), await fake(plain({"ok": True}), "good")
    home = await house(bad.upstream, good.upstream)
    for _ in range(4):
        assert (await home.ask(ask())).json() == {"ok": True}
    assert [request.body for request in good.requests] == [ask()] * 4


async def test_a_connection_that_died_while_idle_costs_nobody_anything(house, fake) -> None:
    """One transparent retry on a new connection to the same replica, and no failure is counted."""

    async def once(engine, reader, writer, request) -> bool:
        writer.write(plain({"n": len(engine.requests)}))
        await asyncio.sleep(0)
        if len(engine.requests) == 1:
            await engine._read(reader)  # the next request is read, and answered by hanging up
            return False
        return True

    engine = await fake(once)
    home = await house(engine.upstream)
    assert (await home.ask(ask())).json() == {"n": 1}
    assert (await home.ask(ask(n=2))).json() == {"n": 3}
    assert home.failures == []
    assert engine.connections == 2
    assert home.traffic.inflight == {}


async def test_a_request_that_kills_engines_is_not_handed_round_on_kept_connections_either(house, fake) -> None:
    """Each engine answers once, then dies of the next request and listens no more."""

    async def mortal(engine, reader, writer, request) -> bool:
        if b"deadly" in request.body:
            engine._server.close()
            return False
        writer.write(plain({"ok": True}))
        return True

    engines = [await fake(mortal, f"f{n}") for n in range(4)]
    home = await house(*(engine.upstream for engine in engines))
    for _ in engines:
        assert (await home.ask(ask())).status == 200
    assert len(home.gateway.pool) == 4
    answer = await home.ask(ask(word="deadly"))
    assert answer.status == 502
    assert sum(b"deadly" in request.body for engine in engines for request in engine.requests) == 2
    assert (await home.ask(ask())).status == 200
    assert home.traffic.inflight == {}


async def test_engines_may_close_idle_connections(house, fake) -> None:
    async def close_after(engine, reader, writer, request) -> bool:
        writer.write(plain({"ok": True}))
        await writer.drain()
        return False

    engine = await fake(close_after)
    home = await house(engine.upstream)
    for _ in range(5):
        assert (await home.ask(ask())).status == 200
    assert home.failures == []
    await until(lambda: len(home.gateway.pool) == 0)


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_engine_that_still_loads_is_passed_over(house, sim, streaming: bool) -> None:
    loading, ready = sim("loading", "--load-time", "60"), sim("ready")
    home = await house(loading.upstream, ready.upstream)
    for _ in range(4):
        answer = await home.ask(ask(stream=streaming))
        assert answer.status == 200
        assert b"sim-ready" in answer.body
    assert home.failures == [], "it told the truth: nothing to look at"
    assert home.traffic.inflight == {}


async def test_when_all_load_the_engines_own_answer_is_shown(house, sim) -> None:
    home = await house(*(sim(f"r{n}", "--load-time", "60").upstream for n in range(2)))
    answer = await home.ask(ask())
    assert (answer.status, answer.error["message"]) == (503, "Loading model")


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_what_the_client_did_never_counts_against_a_replica(house, fake, status: int) -> None:
    engines = [await fake(plain({"error": {"message": "no"}}, status, "retry-after: 7"), f"f{n}") for n in range(2)]
    home = await house(*(engine.upstream for engine in engines))
    answer = await home.ask(ask())
    assert (answer.status, answer.json()) == (status, {"error": {"message": "no"}})
    assert answer.headers["retry-after"] == "7"
    assert sum(len(engine.requests) for engine in engines) == 1
    assert home.failures == []


async def test_failing_fast_does_not_attract_requests(house, fake) -> None:
    """thushan/olla#144: the replica that answers 500 at once always looks idle."""
    engines = {
        "bad": await fake(plain({"error": {}}, 500), "bad"),
        "good": await fake(plain({"ok": True}), "good"),
    }
    home = await house(*(engine.upstream for engine in engines.values()))
    for _ in range(20):
        await home.ask(ask())
    assert len(engines["bad"].requests) <= 2
    assert home.failures == []


async def test_idle_connections_are_closed_when_their_replica_leaves(house, fake) -> None:
    engine, other = await fake(plain({}), "f1"), await fake(plain({}), "f2")
    home = await house(engine.upstream)
    await home.ask(ask())
    assert len(home.gateway.pool) == 1
    home.publish(other.upstream)
    await until(lambda: engine.open == 0)
    assert len(home.gateway.pool) == 0


async def test_a_connection_in_use_is_not_kept_once_its_replica_has_left(house, fake) -> None:
    go = asyncio.Event()

    async def slow(engine, reader, writer, request) -> None:
        await go.wait()
        writer.write(stream(b"{}", b"[DONE]"))

    engine, other = await fake(slow, "f1"), await fake(plain({}), "f2")
    home = await house(engine.upstream)
    raw = await home.raw()
    raw.send(ask(stream=True))
    await until(lambda: engine.requests)
    home.publish(other.upstream)
    go.set()
    answer = await raw.answer()
    assert answer.whole, "it is let finish"
    await until(lambda: engine.open == 0)


async def test_old_idle_connections_are_closed(house, fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.gateway.pool.SWEEP", 0.01)
    monkeypatch.setattr("llmgw.gateway.pool.IDLE", 0.02)
    engine = await fake(plain({}))
    home = await house(engine.upstream)
    await home.ask(ask())
    assert isinstance(home.gateway.pool.take(engine.upstream), Connection)
    await home.ask(ask())
    await until(lambda: engine.open <= 1 and len(home.gateway.pool) == 0)
