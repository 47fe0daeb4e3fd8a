"""Slots and shielded opens: MaxSessions is respected, and nothing that was cancelled stays open (F21, F24)."""

from __future__ import annotations

import asyncio
import time

import pytest

from llmgw.errors import TimedOut
from llmgw.ssh.channels import RECOVER, Slots
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.identity import Login

from .programs import ECHO, SLEEP


async def test_one_slot_is_kept_for_urgent_calls() -> None:
    slots = Slots(4)
    order: list[str] = []
    leave = asyncio.Event()

    async def hold(name: str, urgent: bool = False) -> None:
        async with slots.slot(urgent=urgent, timeout=5):
            order.append(name)
            await leave.wait()

    tasks = [asyncio.create_task(hold(f"n{n}")) for n in range(5)]
    await asyncio.sleep(0.01)
    assert order == ["n0", "n1", "n2"]
    tasks.append(asyncio.create_task(hold("urgent", urgent=True)))
    tasks.append(asyncio.create_task(hold("urgent2", urgent=True)))
    await asyncio.sleep(0.01)
    assert order[3:] == ["urgent"]
    leave.set()
    await asyncio.gather(*tasks)
    assert order[4] == "urgent2"
    assert slots.used == 0


async def test_a_wait_ends_in_time_and_takes_nothing_with_it() -> None:
    slots = Slots(1)
    async with slots.slot(urgent=False, timeout=1):
        with pytest.raises(TimedOut) as caught:
            async with slots.slot(urgent=True, timeout=0.02):
                raise AssertionError
        assert caught.value.code == "busy"
        waiting = asyncio.create_task(slots.slot(urgent=False, timeout=5).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    assert slots.used == 0
    async with slots.slot(urgent=False, timeout=0):
        assert slots.used == 1


async def test_a_slot_given_and_cancelled_in_the_same_moment_is_passed_on() -> None:
    slots = Slots(1)
    got: list[int] = []

    async def take(name: int) -> None:
        async with slots.slot(urgent=False, timeout=5):
            got.append(name)

    async with slots.slot(urgent=False, timeout=5):
        first = asyncio.create_task(take(1))
        second = asyncio.create_task(take(2))
        await asyncio.sleep(0)
    first.cancel()  # its future is resolved already, its task has not run yet
    await asyncio.gather(first, second, return_exceptions=True)
    assert got == [2]
    assert slots.used == 0


async def test_the_limit_is_learnt_and_forgotten_slowly() -> None:
    now = 0.0
    slots = Slots(4, now=lambda: now)
    async with slots.slot(urgent=True, timeout=1), slots.slot(urgent=True, timeout=1):
        slots.refused()
        assert slots.limit == 1
    slots.refused()
    assert slots.limit == 1
    for expected in (2, 3, 4, 4):
        now += RECOVER
        async with slots.slot(urgent=True, timeout=1):
            assert slots.limit == expected


@pytest.mark.parametrize("most", [1, 10])
async def test_max_sessions(sshd, login: Login, most: int) -> None:
    """F21: twenty scripts at once over a connection that allows one session; a stop goes ahead of them."""
    server = sshd(MaxSessions=most)
    link = await connect(server.address, login=login, host_key=server.host_key)
    done: list[str] = []

    async def run(name: str, urgent: bool = False) -> None:
        await link.run_program("echo", ECHO, {"name": name}, deadline=30, urgent=urgent)
        done.append(name)

    tasks = [asyncio.create_task(run(f"n{n}")) for n in range(20)]
    await asyncio.sleep(0.2)
    before = len(done)
    tasks.append(asyncio.create_task(run("stop", urgent=True)))
    await asyncio.gather(*tasks)
    assert len(done) == 21
    assert done.index("stop") - before <= 4
    # Two leaves one session to everybody but a stop, which finds out by itself that there is no second.
    assert link.slots.limit <= 2 if most == 1 else link.slots.limit == 4
    await link.close()


async def test_busy_slots_are_said_to_be_busy(link: Connection) -> None:
    long = [asyncio.create_task(link.run_program("s", SLEEP, {"seconds": 2}, deadline=10)) for _ in range(3)]
    await asyncio.sleep(0.2)
    with pytest.raises(TimedOut) as caught:
        await link.run_program("echo", ECHO, {}, deadline=0.2)
    assert caught.value.code == "busy"
    assert await link.run_program("echo", ECHO, {}, deadline=5, urgent=True)
    await asyncio.gather(*long)


async def test_200_cancelled_sessions_leave_no_channel(sshd, login: Login) -> None:
    """F24, for sessions: at every moment of an open, and over a real sshd."""
    server = sshd(MaxSessions=10)
    link = await connect(server.address, login=login, host_key=server.host_key)
    for n in range(200):
        task = asyncio.create_task(link.run_program("echo", ECHO, {}, deadline=20))
        await asyncio.sleep(n % 20 / 4000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    end = time.monotonic() + 10
    while link.channels and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert link.channels == 0
    assert not link._made._channels
    assert link.slots.used == 0
    assert await link.run_program("echo", ECHO, {}, deadline=20)
    await link.close()
