"""The pool: every node's link is kept up for ever, and nobody is hammered (F18-F20, F25-F27)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncssh
import pytest
import pytest_asyncio

from llmgw.clock import SystemClock
from llmgw.errors import LinkLost, TimedOut, Unreachable
from llmgw.model.node import Address
from llmgw.pki.sshkey import ensure_key, public_key
from llmgw.ssh import pool as pool_module
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import HostKeys, Login, public_text
from llmgw.ssh.pool import LinkStatus, Pool
from llmgw.ssh.run import CommandRecord

from .conftest import at, free_port
from .programs import ECHO, SLEEP
from .test_tunnel import Recorder

Changes = list[tuple[str, LinkStatus]]


@pytest.fixture
def changes() -> Changes:
    return []


@pytest_asyncio.fixture
async def make(changes: Changes, login: Login) -> AsyncIterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def pool(**more: object) -> Pool:
        options = {"login": login, "clock": SystemClock(), "on_change": lambda n, s: changes.append((n, s)), **more}
        made.append(Pool(**options))  # type: ignore[arg-type]
        return made[-1]

    yield pool
    for one in made:
        await one.close()


async def test_up_down_and_up_again(sshd, make, changes: Changes) -> None:
    server = sshd()
    records: list[CommandRecord] = []
    pool = make(audit=records.append)
    link = pool.add("n1", server.address, server.host_key)
    with pytest.raises(Unreachable) as caught:
        await link.run_script("probe", {}, deadline=5)
    assert caught.value.code == "link_down"
    await link.wait_up(5)
    assert link.status.up
    assert link.status.error is None
    assert await link.connection.run_program("echo", ECHO, {}, deadline=10)
    assert (records[-1].node, records[-1].outcome) == ("n1", "ok")

    call = asyncio.create_task(link.connection.run_program("s", SLEEP, {"seconds": 30}, deadline=60))
    await asyncio.sleep(0.3)
    server.stop()
    with pytest.raises(LinkLost):
        await call
    await asyncio.sleep(0.3)
    assert not link.status.up
    with pytest.raises(Unreachable, match="the link to n1 is down"):
        await link.open_stream(1, Recorder)
    with pytest.raises(TimedOut, match=r"n1 could not be reached in 0\.01 s: ") as late:
        await link.wait_up(0.01)
    assert late.value.exit_status == 6

    server.start()
    link.kick()
    await link.wait_up(10)
    assert await link.connection.run_program("echo", ECHO, {}, deadline=10)
    ups = [status.up for _, status in changes]
    assert ups[0] is True
    assert ups[1] is False
    assert ups[-1] is True
    assert [status.failures for _, status in changes[1:-1]] == list(range(1, len(changes) - 1))
    assert changes[1][1].since == changes[-2][1].since


async def test_a_changed_key_is_not_hammered_and_harms_nobody_else(sshd, make, changes: Changes) -> None:
    """F26."""
    good, bad = sshd(), sshd(LogLevel="DEBUG1")
    pool = make()
    other = public_text(asyncssh.generate_private_key("ssh-ed25519"))
    pool.add("bad", bad.address, other)
    await pool.add("good", good.address, good.host_key).wait_up(5)
    while "bad" not in dict(changes):
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    status = pool.link("bad").status
    assert (status.up, status.failures, status.host_key_ok) == (False, 1, False)
    assert status.error.code == "host_key_changed"
    assert bad.log.read_text().count("Connection from") == 2  # the fixture's own look, and ours
    # The operator says that it is right: the new key is tried at once.
    await pool.add("bad", bad.address, bad.host_key).wait_up(5)
    assert pool.link("bad").status.host_key_ok


def test_pauses() -> None:
    from llmgw.errors import Refused

    class Some(pool_module.Link):
        def __init__(self) -> None:
            pass

    link = Some()
    for _ in range(50):
        for failures in range(1, 40):
            assert 0 <= link._pause(Unreachable("x"), failures) <= 60
            assert 60 <= link._pause(Refused("x", code="login_refused"), failures) <= 600


async def test_a_refused_login_is_not_hammered(sshd, make, tmp_path: Path, changes: Changes) -> None:
    """F27."""
    server = sshd()
    pool = make(login=Login(client_keys=(ensure_key(tmp_path / "other"),)))
    pool.add("n", server.address, server.host_key)
    await asyncio.sleep(1.5)
    assert [(status.error.code, status.failures) for _, status in changes] == [("login_refused", 1)]


async def test_a_closed_port_is_tried_again_with_growing_pauses(make, changes: Changes, monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "BASE", 0.01)
    pool = make()
    link = pool.add(
        "n",
        Address(host="127.0.0.1", port=free_port(), user="x"),
        public_text(asyncssh.generate_private_key("ssh-ed25519")),
    )
    await asyncio.sleep(0.8)
    assert 3 <= link.status.failures <= 30
    assert {status.error.code for _, status in changes} == {"port_closed"}


async def test_handshakes_are_limited(embedded: EmbeddedServer, make, monkeypatch) -> None:
    """F25: fifty nodes come back together."""
    now = most = 0
    real = pool_module.connect

    async def counting(*args: object, **more: object) -> object:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await real(*args, **more)  # type: ignore[arg-type]
        finally:
            now -= 1

    monkeypatch.setattr(pool_module, "connect", counting)
    pool = make(handshakes=5, connect_timeout=30)
    links = [pool.add(f"n{n}", at(embedded), embedded.host_key) for n in range(50)]
    for link in links:
        await link.wait_up(30)
    assert most == 5


async def test_removing_and_closing_end_what_waits(embedded: EmbeddedServer, make) -> None:
    pool = make()
    for how in ("remove", "close"):
        link = pool.add("n", at(embedded), embedded.host_key)
        await link.wait_up(5)
        call = asyncio.create_task(link.connection.run_program("s", SLEEP, {"seconds": 30}, deadline=60))
        await asyncio.sleep(0.2)
        await (pool.remove("n") if how == "remove" else pool.close())
        with pytest.raises(LinkLost):
            await call
        assert pool.link("n") is None
        with pytest.raises(Unreachable):
            await link.open_stream(1, Recorder)
    await pool.remove("nobody")


async def test_the_same_node_twice_is_one_link(embedded: EmbeddedServer, make) -> None:
    pool = make()
    link = pool.add("n", at(embedded), embedded.host_key)
    assert pool.add("n", at(embedded), embedded.host_key) is link
    await link.wait_up(5)
    moved = pool.add("n", at(embedded).model_copy(update={"user": "else"}), embedded.host_key)
    assert moved is not link
    await moved.wait_up(5)


async def test_pins_are_kept_as_a_file(embedded: EmbeddedServer, make, tmp_path: Path) -> None:
    keys = HostKeys(tmp_path / "known_hosts")
    pool = make(host_keys=keys)
    await pool.add("n", at(embedded), embedded.host_key).wait_up(5)
    assert HostKeys(tmp_path / "known_hosts").lookup(at(embedded)) == embedded.host_key
    await pool.remove("n")
    assert (tmp_path / "known_hosts").read_text() == ""


async def test_the_local_node(embedded: EmbeddedServer, make, home: Path, tmp_path: Path) -> None:
    pool = make(local=embedded)
    link = pool.add("here", Address(host="local", user="me"), "")
    await link.wait_up(5)
    result = await link.connection.run_program("echo", ECHO, {}, deadline=10)
    assert result["pid"] != os.getpid()
    pool.local = None
    link.connection.abort()
    await asyncio.sleep(0.1)
    link.kick()
    await asyncio.sleep(0.1)
    assert link.status.error.code == "port_closed"
    # A new server, with another port and another key, is found again.
    again = EmbeddedServer(public_key(home), tmp_path / "another")
    await again.start()
    pool.local = again
    link.kick()
    await link.wait_up(5)
    await pool.close()
    await again.close()


async def test_a_listener_that_raises_does_not_end_the_link(embedded: EmbeddedServer, make) -> None:
    def broken(node: str, status: LinkStatus) -> None:
        raise ValueError("bug")

    pool = make(on_change=broken)
    await pool.add("n", at(embedded), embedded.host_key).wait_up(5)


async def test_a_stopped_node_comes_back_without_help(sshd, make, monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "BASE", 0.05)
    server = sshd()
    pool = make(keepalive=0.2)
    link = pool.add("n", server.address, server.host_key)
    await link.wait_up(5)
    for pid in server.children():
        os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 5
    first = link.connection
    while link.connection is first and time.monotonic() < end:
        await asyncio.sleep(0.02)
    await link.wait_up(5)
    assert link.connection is not first
