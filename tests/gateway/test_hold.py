"""Requests wait for a replica that is known to come, a few of them and not for long; others are told why not."""

from __future__ import annotations

import asyncio

import pytest

from llmgw.gateway.exchange import Exchange

from .conftest import House, table, until
from .engines import plain
from .raw import Raw, ask

REASON = "loading on gpu03, 43 %"


async def waiting(home: House, count: int) -> list[Raw]:
    raws = [await home.raw() for _ in range(count)]
    for raw in raws:
        raw.send(ask())
    await until(lambda: len(home.gateway.exchanges) == count)
    return raws


@pytest.mark.parametrize("held", [{"adopting": True}, {"hold": True}], ids=["adopting", "hold"])
async def test_a_request_waits_until_there_is_a_replica(house, fake, held: dict) -> None:
    home = await house(table=table(**held))
    raws = await waiting(home, 3)
    home.publish(**held)  # news, but not the one they wait for
    await asyncio.sleep(0.02)
    assert len(home.gateway.exchanges) == 3
    engine = await fake(plain({"ok": True}))
    home.publish(engine.upstream, **held)
    assert [(await raw.answer()).json() for raw in raws] == [{"ok": True}] * 3


async def test_those_who_waited_are_spread(house, fake) -> None:
    engines = []
    go = asyncio.Event()

    async def slow(engine, reader, writer, request) -> None:
        await go.wait()
        writer.write(plain({}))

    for number in range(3):
        engines.append(await fake(slow, f"f{number}"))
    home = await house(table=table(hold=True))
    raws = await waiting(home, 9)
    home.publish(*(engine.upstream for engine in engines))
    await until(lambda: sum(home.traffic.inflight.values()) == 9)
    assert home.traffic.inflight == {"f0": 3, "f1": 3, "f2": 3}
    go.set()
    assert all([(await raw.answer()).status == 200 for raw in raws])


async def test_when_the_table_says_none_is_coming_it_ends_at_once(house) -> None:
    home = await house(table=table(adopting=True))
    (raw,) = await waiting(home, 1)
    home.publish(reason="no node has a GPU of 80 GB")
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (503, "unavailable")
    assert "no node has a GPU of 80 GB" in answer.error["message"]
    assert int(answer.headers["retry-after"]) > 0


async def test_when_the_model_is_removed(house) -> None:
    home = await house(table=table(hold=True))
    (raw,) = await waiting(home, 1)
    home.publish(model="other")
    answer = await raw.answer()
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_waiting_has_an_end(house) -> None:
    home = await house(table=table(hold=True, reason=REASON), queue_wait=0.1)
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (503, "loading")
    assert REASON in answer.error["message"]
    assert int(answer.headers["retry-after"]) > 0


async def test_what_nobody_waits_for_is_refused_at_once(house) -> None:
    home = await house(table=table(reason="stopped"))
    answer = await home.ask(ask())
    assert (answer.status, answer.error["code"]) == (503, "unavailable")
    assert "stopped" in answer.error["message"]


async def test_a_queue_of_none(house) -> None:
    home = await house(table=table(hold=True), queue=0)
    assert (await home.ask(ask())).status == 429


async def test_queues_are_apart(house, fake) -> None:
    """A model that nobody can have takes nothing from one that everybody can."""
    from llmgw.model.route import Route, RouteTable

    engine = await fake(plain({"ok": True}))
    routes = RouteTable({"m": Route(model="m", hold=True), "n": Route(model="n", upstreams=(engine.upstream,))})
    home = await house(table=routes, queue=2)
    await waiting(home, 2)
    assert (await home.ask(ask("m"))).status == 429
    assert (await home.ask(ask("n"))).status == 200


async def test_the_place_of_those_who_left_is_free(house) -> None:
    home = await house(table=table(hold=True), queue=2, queue_wait=0.2)
    for raw in await waiting(home, 2):
        raw.abort()
    await home.quiet()
    assert (await home.ask(ask())).status == 503, "it waited: there was room"


async def test_a_replica_that_comes_and_refuses(house, fake) -> None:
    async def hang_up(engine, reader, writer, request) -> bool:
        return False

    home = await house(table=table(hold=True))
    (raw,) = await waiting(home, 1)
    home.publish((await fake(hang_up)).upstream, hold=True)
    assert (await raw.answer()).status == 502
    assert home.traffic.inflight == {}


async def test_a_publication_before_the_waiting_begins_is_not_missed(house, fake, monkeypatch) -> None:
    engine = await fake(plain({"ok": True}))
    home = await house(table=table(hold=True))
    start = Exchange.start

    def start_and_publish(self: Exchange) -> None:
        start(self)  # makes the task that will wait
        home.publish(engine.upstream)  # before that task has run at all

    monkeypatch.setattr(Exchange, "start", start_and_publish)
    assert (await home.ask(ask())).json() == {"ok": True}
