"""A real HTTP server on loopback that serves files with ranges and validators, and misbehaves as it is told to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from llmgw.mirror import fetch
from llmgw.mirror.library import Library


@dataclass
class File:
    data: bytes
    etag: str | None = '"v1"'
    ranges: bool = True


@dataclass
class Origin:
    """The server. `asked` holds (path, Range, If-Range) of each request."""

    files: dict[str, File] = field(default_factory=dict)
    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    faults: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """By path, in turn: (`cut` | `hang`, after so many bytes)."""
    url: str = ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, path: str, data: bytes, **fields: object) -> str:
        self.files[path] = File(data, **fields)  # type: ignore[arg-type]
        return self.url + path

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append((path, request.headers.get("Range"), request.headers.get("If-Range")))
        self.headers.append(dict(request.headers))
        if self.statuses.get(path):
            status = self.statuses[path].pop(0)
            if status in (301, 302):
                return web.Response(status=status, headers={"location": self.files[path].data.decode()})
            return web.Response(status=status)
        if path in self.pages:
            kind, text = self.pages[path]
            return web.Response(text=text, content_type=kind)
        file = self.files.get(path)
        if file is None:
            return web.Response(status=404)
        start, status = 0, 200
        wanted = request.headers.get("Range")
        if file.ranges and wanted and request.headers.get("If-Range") in (None, file.etag):
            start, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
        body = file.data[start:]
        headers = {"content-length": str(len(body))} | ({"etag": file.etag} if file.etag else {})
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        fault, count = (self.faults.get(path) and self.faults[path].pop(0)) or ("", 0)
        if fault:
            await response.write(body[:count])
            if fault == "hang":
                await self.gate.wait()
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(body)
        return response


@pytest_asyncio.fixture
async def origin() -> AsyncIterator[Origin]:
    made = Origin()
    app = web.Application()
    app.router.add_get("/{tail:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.gate.set()
    await runner.cleanup()


@pytest_asyncio.fixture
async def library(tmp_path: Path) -> AsyncIterator[Library]:
    made = Library(tmp_path / "mirror")
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between tries, and none of this machine's own settings of a package index."""
    monkeypatch.setattr(fetch, "FIRST_PAUSE", 0.0)
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
