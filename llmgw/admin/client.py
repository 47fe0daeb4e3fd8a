"""A client of the admin API: over the unix socket of this home, or over LLMGW_ADMIN_URL with the admin token."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel
from yarl import URL

from llmgw.config.home import Home
from llmgw.errors import LlmgwError, Unreachable, UsageError, from_dict
from llmgw.model.event import Event

STREAM_SILENCE = 45.0
LONGEST_EVENT = 1 << 20

R = TypeVar("R", bound=BaseModel)


class AdminClient:
    def __init__(self, home: Home, *, url: str | None) -> None:
        """`url` None: over the unix socket of `home`."""
        self.home = home
        headers = {}
        connector: aiohttp.BaseConnector
        if url:
            self._base = url.rstrip("/")
            token = os.environ.get("LLMGW_ADMIN_TOKEN")
            if token:
                headers["authorization"] = f"Bearer {token}"
            connector = aiohttp.TCPConnector()
        else:
            self._base = "http://llmgw"
            connector = aiohttp.UnixConnector(str(home.socket))
        self._where = url or str(home.socket)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        self.alone = False
        """The control plane at the other end is this very command's own: it ends with it."""
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str, cls: type[R], **query: Any) -> R:
        return await self.call("GET", path, cls, query=query)

    async def post(self, path: str, cls: type[R], body: BaseModel | None = None) -> R:
        return await self.call("POST", path, cls, body=body)

    async def delete(self, path: str, cls: type[R], **query: Any) -> R:
        return await self.call("DELETE", path, cls, query=query)

    async def call(
        self,
        method: str,
        path: str,
        cls: type[R],
        *,
        body: BaseModel | None = None,
        query: dict[str, Any] | None = None,
    ) -> R:
        """Raises the error that the control plane answered with; Unreachable when none answers."""
        params = {name: str(value) for name, value in (query or {}).items() if value is not None and value is not False}
        data = body.model_dump_json(by_alias=True).encode() if body is not None else None
        try:
            # Encoded by `part` already: left to itself, the URL would resolve dots and lead to another resource.
            url = URL(f"{self._base}/api/v1{path}", encoded=True)
            async with self._session.request(method, url, params=params, data=data) as answer:
                text = await answer.text()
                if answer.status >= 400:
                    raise _error(answer.status, text)
                return cls.model_validate_json(text)
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise self._unreachable(exc) from None

    async def events(self, after: int | None = None, node: str | None = None) -> AsyncIterator[Event]:
        """Events as they happen, from `after` on (None: from now on)."""
        params = {name: str(value) for name, value in (("after", after), ("node", node)) if value is not None}
        headers = {"accept": "text/event-stream"}
        try:
            # The stream says something every 15 s; one that does not is dead, however open it looks.
            silence = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=STREAM_SILENCE)
            asked = self._session.get(
                f"{self._base}/api/v1/events",
                params=params,
                headers=headers,
                timeout=silence,
                read_bufsize=LONGEST_EVENT,
            )
            async with asked as answer:
                if answer.status >= 400:
                    raise _error(answer.status, await answer.text())
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        yield Event.model_validate_json(line[6:])
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise self._unreachable(exc) from None

    def _unreachable(self, exc: BaseException) -> Unreachable:
        fix = "Start it with `llmgw server run`, or set LLMGW_HOME or LLMGW_ADMIN_URL to where it runs."
        if self._where == str(self.home.socket) and not self.home.socket.exists():
            return Unreachable(f"No control plane runs in {self.home.path}.", fix=fix, code="no_server")
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc) or type(exc).__name__
        return Unreachable(f"The control plane does not answer at {self._where}: {why}.", fix=fix, code="no_server")


def part(name: str) -> str:
    """A name as one part of a path. Raises UsageError for what would be taken for another path."""
    if name in ("", ".", ".."):
        raise UsageError(f"{name!r} is no name.")
    return quote(name, safe="")


def _error(status: int, text: str) -> LlmgwError:
    try:
        return from_dict(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return LlmgwError(f"The control plane answered {status}: {text[:200]}")
