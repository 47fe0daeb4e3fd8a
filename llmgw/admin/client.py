"""A client of the admin API: over the unix socket of this home, or over LLMGW_ADMIN_URL with the admin token."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from aiohttp.http import HttpProcessingError
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError
from yarl import URL

from llmgw import __version__
from llmgw.config.home import Home
from llmgw.errors import BadReply, LlmgwError, Unreachable, UsageError, from_dict
from llmgw.model.event import Event

STREAM_SILENCE = 45.0
LOOK_LIMIT = 40.0
"""Seconds for what only looks: the longest, an engine's log, asks its node for 30. What changes something may wait for
a drain, and has no limit of its own."""
LONGEST_LINE = 1 << 20

R = TypeVar("R", bound=BaseModel)


class AdminClient:
    def __init__(self, home: Home, *, url: str | None) -> None:
        """`url` None: over the unix socket of `home`."""
        self.home = home
        headers = {}
        connector: aiohttp.BaseConnector
        if url:
            self._base = _address(url)
            token = os.environ.get("LLMGW_ADMIN_TOKEN")
            if token:
                headers["authorization"] = f"Bearer {secret_word('LLMGW_ADMIN_TOKEN', token)}"
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
        return await self.call("GET", path, cls, query=query, limit=LOOK_LIMIT)

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
        limit: float | None = None,
    ) -> R:
        """Raises the error that the control plane answered with; Unreachable when none answers within `limit`."""
        data = _json(body) if body is not None else None
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=5)
        try:
            # Encoded by `part` already: left to itself, the URL would resolve dots and lead to another resource.
            url = URL(f"{self._base}/api/v1{path}", encoded=True)
            params = _query(query or {})
            async with self._session.request(method, url, params=params, data=data, timeout=timeout) as answer:
                reply = await answer.read()
                if answer.status >= 400:
                    raise self._error(answer.status, reply)
                return self._understood(cls, reply)
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise self._unreachable(exc) from None

    async def events(self, after: int | None = None, node: str | None = None) -> AsyncIterator[Event]:
        """Events as they happen, from `after` on (None: from now on)."""
        headers = {"accept": "text/event-stream"}
        try:
            # The stream says something every 15 s; one that does not is dead, however open it looks.
            silence = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=STREAM_SILENCE)
            asked = self._session.get(
                f"{self._base}/api/v1/events",
                params=_query({"after": after, "node": node}),
                headers=headers,
                timeout=silence,
                read_bufsize=LONGEST_LINE,
            )
            async with asked as answer:
                if answer.status >= 400:
                    raise self._error(answer.status, await answer.read())
                async for line in lines(answer):
                    if line.startswith(b"data: "):
                        yield self._understood(Event, line[6:])
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise self._unreachable(exc) from None

    def _unreachable(self, exc: BaseException) -> Unreachable:
        fix = "Start it with `llmgw server run`, or set LLMGW_HOME or LLMGW_ADMIN_URL to where it runs."
        if self._where == str(self.home.socket) and not self.home.socket.exists():
            return Unreachable(f"No control plane runs in {self.home.path}.", fix=fix, code="no_server")
        if isinstance(exc, TimeoutError):
            return Unreachable(
                f"The control plane at {self._where} takes the connection and does not answer.",
                fix="It is stopped or overloaded: `llmgw doctor` looks at its process, its log says more.",
                code="no_answer",
            )
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc) or type(exc).__name__
        return Unreachable(f"The control plane does not answer at {self._where}: {why}.", fix=fix, code="no_server")

    def _understood(self, cls: type[R], reply: bytes) -> R:
        """The record that a reply is. Raises BadReply for what this version does not know."""
        try:
            return cls.model_validate_json(reply)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            if first["type"] == "json_invalid":
                raise self._stranger() from None
            where = ".".join(str(step) for step in (cls.__name__, *first["loc"]))
            raise BadReply(
                f"The control plane at {self._where} says what this command does not know ({where}: {first['msg']}).",
                fix=f"It is another version than this llmgw, {__version__}: use its own, or restart it with this one.",
                code="other_version",
            ) from None

    def _error(self, status: int, reply: bytes) -> LlmgwError:
        try:
            error = json.loads(reply)["error"]
            int(error["exit_status"])  # the endpoint's own errors look much the same, and have none
            return from_dict(error)
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._stranger(status)

    def _stranger(self, status: int = 200) -> Unreachable:
        """None of our replies: of another program, or of a proxy before a control plane that is down."""
        who = "a proxy" if status in (502, 503, 504) else "something that is no control plane of llmgw"
        return Unreachable(
            f"At {self._where} answers {who}, with status {status}.",
            fix="Does LLMGW_ADMIN_URL lead to its admin port, and does it run?",
            code="no_server",
        )


def part(name: str) -> str:
    """A name as one part of a path. Raises UsageError for what would be taken for another path, or is no text."""
    if name in ("", ".", ".."):
        raise UsageError(f"{name!r} is no name.")
    return quote(utf8(name), safe="")


def utf8(value: str) -> str:
    """Raises UsageError for what was typed and is not UTF-8: the shell hands it over, and no request can carry it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{value[:80]!r} is not UTF-8 text.") from None
    return value


def secret_word(name: str, value: str) -> str:
    """A secret out of the variable `name`, fit for a header. Raises UsageError, without repeating it."""
    value = value.strip()
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise UsageError(
            f"{name} is no single word: there is a line break, a blank or another character in it that no key has.",
            fix=f"Set it to the key alone: export {name}=…",
        )
    return value


def _address(url: str) -> str:
    try:
        return str(URL(utf8(url))).rstrip("/")
    except ValueError as exc:
        raise UsageError(f"LLMGW_ADMIN_URL is {url!r}: {exc}.") from None


def _json(body: BaseModel) -> bytes:
    try:
        return body.model_dump_json(by_alias=True).encode()
    except PydanticSerializationError:
        raise UsageError("Something in what was given is not UTF-8 text.") from None


def _query(asked: dict[str, Any]) -> dict[str, str]:
    return {name: utf8(str(value)) for name, value in asked.items() if value is not None and value is not False}


async def lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Those of a stream. Raises BadReply for one that is longer than the reader takes."""
    try:
        async for line in answer.content:
            yield line
    except (HttpProcessingError, ValueError):  # which of them depends on aiohttp
        raise BadReply("A line of the answer is longer than 1 MiB.") from None
