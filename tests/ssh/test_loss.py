"""A peer that goes silent or away: found in time, and nothing waits on it any longer (F16, F18, F20)."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from llmgw.errors import LinkLost, LlmgwError
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login

from .programs import SLEEP
from .test_tunnel import Engine, Recorder


async def test_a_stopped_sshd_is_found_by_keepalive(sshd, login: Login) -> None:
    """F18: half-open TCP. The connection is aborted, and all that waited ends at once."""
    server = sshd()
    reasons: list[LlmgwError] = []
    link = await connect(server.address, login=login, host_key=server.host_key, keepalive=0.3, on_close=reasons.append)
    engine = Engine()
    await engine.start()
    stream = await link.open_stream(engine.port, Recorder)
    assert isinstance(stream, Recorder)
    calls = [asyncio.create_task(link.run_program("s", SLEEP, {"seconds": 30}, deadline=60)) for _ in range(2)]
    await asyncio.sleep(0.5)
    children = server.children()
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    opening = asyncio.create_task(link.open_stream(engine.port, Recorder))
    try:
        async with asyncio.timeout(5):
            for waiting in (*calls, opening):
                with pytest.raises(LinkLost, match="keepalive"):
                    await waiting
            await link.wait_closed()
    finally:
        for pid in children:
            os.kill(pid, signal.SIGCONT)
    assert 0.5 < time.monotonic() - began < 3
    assert [reason.code for reason in reasons] == ["link_lost"]
    assert stream.log[-1].startswith("lost")
    engine.server.close()
    for end in engine.accepted:
        end.transport.abort()


async def test_a_killed_sshd_child_is_noticed_at_once(sshd, login: Login) -> None:
    server = sshd()
    link = await connect(server.address, login=login, host_key=server.host_key)
    call = asyncio.create_task(link.run_program("s", SLEEP, {"seconds": 30}, deadline=60))
    await asyncio.sleep(0.5)
    server.stop()
    async with asyncio.timeout(2):
        with pytest.raises(LinkLost):
            await call
    assert link.closed


async def test_polite_close_of_a_dead_peer_does_not_hang(sshd, login: Login) -> None:
    server = sshd()
    link = await connect(server.address, login=login, host_key=server.host_key)
    for pid in server.children():
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    await link.close()
    assert time.monotonic() - began < 3
    for pid in server.children():
        os.kill(pid, signal.SIGCONT)
