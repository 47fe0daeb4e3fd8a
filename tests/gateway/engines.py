"""Engines to stand behind the gateway: the simulated one as a process, and ones that do what no engine should."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from llmgw.errors import Unreachable
from llmgw.model.route import ProtocolFactory, Upstream
from llmgw.model.secret import Secret

SIM = Path(__file__).resolve().parents[2] / "remote_scripts" / "sim_engine.py"
ENGINE_KEY = "engine-key-canary"


def upstream(port: int, replica: str, *, model: str = "m", attempt: int = 1) -> Upstream:
    async def connect(factory: ProtocolFactory) -> asyncio.Protocol:
        try:
            _, protocol = await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", port)
        except OSError as exc:
            raise Unreachable(f"secret-host:{port} refused", code="engine_port_closed") from exc
        return protocol

    return Upstream(replica=replica, node="node", attempt=attempt, model=model, key=Secret(ENGINE_KEY), connect=connect)


class Sim:
    """A simulated engine in a process of its own."""

    def __init__(self, replica: str, *options: str) -> None:
        self.replica = replica
        argv = [sys.executable, "-B", "-I", "-S", str(SIM), "--port", "0", *options]
        environment = {"SIM_API_KEY": ENGINE_KEY, "LLMGW_REPLICA": replica, "PATH": os.environ["PATH"]}
        self.process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(b":")[2])
        self.process.stdout.close()

    @property
    def upstream(self) -> Upstream:
        return upstream(self.port, self.replica)

    async def stats(self) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /sim/stats HTTP/1.1\r\nconnection: close\r\n\r\n")
        text = await reader.read()
        writer.close()
        return json.loads(text.partition(b"\r\n\r\n")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Request:
    """What an engine was sent."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.line, *lines = head.decode("latin-1").split("\r\n")[:-2]
        self.headers = dict(line.split(": ", 1) for line in lines)
        self.body = body


Handler = Callable[["Fake", asyncio.StreamReader, asyncio.StreamWriter, Request], Awaitable[Any]]


class Fake:
    """An engine that answers with whatever bytes the test wants. `connections` and `requests` are kept."""

    def __init__(self, replica: str, handler: Handler | bytes) -> None:
        self.replica = replica
        self.handler = handler
        self.connections = 0
        self.open = 0
        self.requests: list[Request] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Fake:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def upstream(self) -> Upstream:
        return upstream(self.port, self.replica)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            while True:
                request = await self._read(reader)
                if isinstance(self.handler, bytes):
                    writer.write(self.handler)
                elif await self.handler(self, reader, writer, request) is False:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        head = await reader.readuntil(b"\r\n\r\n")
        request = Request(head, b"")
        request.body = await reader.readexactly(int(request.headers.get("content-length", "0")))
        self.requests.append(request)
        return request

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def plain(body: bytes | dict[str, Any], status: int = 200, *lines: str) -> bytes:
    """A complete, correct answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", "content-type: application/json", *lines, f"content-length: {len(data)}", "", ""]
    return "\r\n".join(head).encode("latin-1") + data


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes, end: bool = True) -> bytes:
    """A complete stream of these events' data."""
    out = STREAM + b"".join(chunk(b"data: %b\n\n" % event) for event in events)
    return out + b"0\r\n\r\n" if end else out
