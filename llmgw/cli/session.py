"""How a command gets to a control plane: the one that runs, or the same wiring in its own process until it is done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from llmgw.admin.client import AdminClient
from llmgw.config.home import Home, find_home
from llmgw.config.load import load_settings
from llmgw.errors import Unreachable, UsageError
from llmgw.model.requests import Whoami

SETTLE_LIMIT = 20.0
"""Seconds a command without a server waits for its connections to the nodes."""


def home() -> Home:
    """The home this user means. A root-owned server's socket, when there is one, is where a plain user is sent."""
    found = find_home()
    if os.environ.get("LLMGW_HOME") or os.geteuid() == 0 or found.socket.exists():
        return found
    roots = Home(find_home({}, 0).path)
    if roots.socket.exists():
        raise Unreachable(
            f"The control plane of this machine belongs to root ({roots.path}).",
            fix="Use sudo, or set LLMGW_ADMIN_URL and LLMGW_ADMIN_TOKEN.",
            code="foreign_home",
        )
    return found


def _admin_url() -> str | None:
    url = os.environ.get("LLMGW_ADMIN_URL")
    if url and not url.startswith(("http://", "https://")):
        raise UsageError(f"LLMGW_ADMIN_URL is {url!r}.", fix=f"It begins with http:// or https://: http://{url}")
    return url or None


async def running(client: AdminClient) -> bool:
    """Whether a control plane answers."""
    if not os.environ.get("LLMGW_ADMIN_URL") and not client.home.socket.exists():
        return False
    try:
        await client.get("/whoami", Whoami)
    except Unreachable:
        return False
    return True


@contextlib.asynccontextmanager
async def reading() -> AsyncIterator[AdminClient]:
    """For commands that look, or that only make sense with a server running. Raises Unreachable without one."""
    client = AdminClient(home(), url=_admin_url())
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def acting(purpose: str) -> AsyncIterator[AdminClient]:
    """For commands that change something. Without a server the lease is taken and the wiring runs here meanwhile.

    Raises Refused when another command holds the lease.
    """
    from llmgw.server import ControlPlane

    place = home()
    client = AdminClient(place, url=_admin_url())
    try:
        if await running(client):
            yield client
            return
        plane = ControlPlane(place, load_settings(place), gateway=False, purpose=purpose)
        await plane.start()
        client.alone = True
        try:
            await plane.settled(SETTLE_LIMIT)
            yield client
        finally:
            await client.close()
            await plane.stop()
    finally:
        await client.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's coroutine; on the fast loop where it is installed.

    SIGTERM and SIGHUP (the terminal was closed) end it as Ctrl-C does: what it has begun is undone first. Exits with
    128 and the signal's number then.
    """
    ended: list[int] = []
    try:
        import uvloop

        uvloop.run(_until_ended(work, ended))
    except ImportError:
        asyncio.run(_until_ended(work, ended))
    except asyncio.CancelledError:
        if not ended:
            raise
        sys.exit(128 + ended[0])


async def _until_ended(work: Coroutine[Any, Any, None], ended: list[int]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(number: int) -> None:
        ended.append(number)
        if number == signal.SIGHUP:
            _mute_terminal()
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it is ignored, and stays so
            loop.add_signal_handler(number, end, number)
    await work


def _mute_terminal() -> None:
    """Nothing can be told to a terminal that is closed, and no attempt to shall keep the end from being reached."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if os.isatty(descriptor):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
