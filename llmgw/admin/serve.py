"""Serves the admin app on a unix socket and, where configured, on a TCP address. Binding is ours, not uvicorn's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import uvicorn

from llmgw.errors import Refused

POLITE = 0.5
"""Seconds that requests under way have to end by themselves."""


class Served:
    """A listener that serves until it is stopped."""

    def __init__(self, server: uvicorn.Server, task: asyncio.Task[None], listener: socket.socket) -> None:
        self._server = server
        self._task = task
        self.listener = listener

    async def stop(self) -> None:
        """Ends at once, open event streams too: whoever follows one sees it break and asks again later."""
        self._server.should_exit = True
        self._server.force_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=POLITE)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        self.listener.close()


def unix_listener(path: Path) -> socket.socket:
    """A socket that only its owner can open: uvicorn would make it 0666. What a dead process left is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as exc:
        raise Refused(
            f"{path} cannot be bound: {exc.strerror or exc}.",
            fix="A socket's path may have 107 bytes at most; set LLMGW_HOME to a shorter one if that is it.",
            code="socket",
        ) from None
    finally:
        os.umask(before)
    listener.listen(128)
    return listener


def tcp_listener(host: str, port: int, option: str) -> socket.socket:
    """Raises Refused (`port_in_use`) naming the option that chose the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise Refused(
            f"Cannot listen on {host}:{port}: {exc.strerror}.",
            fix=f"Stop what uses it, or set {option} in llmgw.yaml to another address.",
            code="port_in_use",
        ) from None
    listener.listen(128)
    return listener


async def serve(app: Any, listener: socket.socket) -> Served:
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve(sockets=[listener]), name="admin api")
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    return Served(server, task, listener)
