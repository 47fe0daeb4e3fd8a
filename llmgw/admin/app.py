"""The admin API as an ASGI app: the endpoint table behind one check of who is asking."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from llmgw import __version__
from llmgw.admin.control import Control, Feed, Metrics
from llmgw.admin.endpoints import ENDPOINTS, Endpoint, number
from llmgw.admin.openapi import BASE, document
from llmgw.errors import LlmgwError, Refused, UsageError
from llmgw.model.event import Event
from llmgw.model.secret import Secret

MAX_BODY = 1 << 20
PING_EVERY = 15.0


class Unauthorized(Refused):
    code = "unauthorized"
    http_status = 401


def app(control: Control, feed: Feed, *, metrics: Metrics, token: Secret | None) -> Starlette:
    """`token` None: whoever reaches the listener may ask (the unix socket, which only its owner can open)."""

    def check(request: Request) -> None:
        if token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), token.reveal().encode()):
            raise Unauthorized(
                "The admin token is missing or wrong.",
                fix="Set LLMGW_ADMIN_TOKEN to what LLMGW_HOME/admin.token holds, or send it as a bearer token.",
            )

    def route(endpoint: Endpoint) -> Route:
        async def handle(request: Request) -> Response:
            check(request)
            if endpoint.path == "/events" and "text/event-stream" in request.headers.get("accept", ""):
                return _stream(control, feed, request)
            body = await _body(request, endpoint.takes) if endpoint.takes is not None else None
            return _json(await endpoint.handle(control, request, body))

        return Route(BASE + endpoint.path, handle, methods=[endpoint.method])

    async def openapi(request: Request) -> Response:
        return JSONResponse(document(__version__))

    async def show_metrics(request: Request) -> Response:
        check(request)
        return PlainTextResponse(metrics(), media_type="text/plain; version=0.0.4")

    routes = [route(endpoint) for endpoint in ENDPOINTS]
    routes += [Route(f"{BASE}/openapi.json", openapi), Route("/metrics", show_metrics)]
    return Starlette(
        routes=routes,
        exception_handlers={LlmgwError: _failed, HTTPException: _http, ClientDisconnect: _left, Exception: _crashed},
    )


def _json(record: BaseModel) -> Response:
    return Response(record.model_dump_json(by_alias=True), media_type="application/json")


async def _body(request: Request, cls: type[BaseModel]) -> BaseModel:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise UsageError("The request is larger than 1 MiB.")
    try:
        return cls.model_validate_json(bytes(data))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where or 'The request'}: {first['msg'].removeprefix('Value error, ')}.") from None


def _stream(control: Control, feed: Feed, request: Request) -> Response:
    """Server-sent events from `after` (or Last-Event-ID) on; without either, from now on."""
    last_id = request.headers.get("last-event-id", "")
    after = int(last_id) if (last_id.isascii() and last_id.isdecimal()) else number(request, "after", None)
    node = request.query_params.get("node")

    async def lines() -> AsyncIterator[bytes]:
        last = after
        if last is None:
            newest = await control.events(after=None, limit=1, node=None)
            last = newest[-1].id if newest else 0
        yield b": llmgw events\n\n"
        while not feed.closed:
            found = await control.events(after=last, limit=500, node=node)
            for event in found:
                last = event.id
                yield _sse(event)
            if not found:
                await feed.wait(PING_EVERY)
                yield b": \n\n"

    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def _sse(event: Event) -> bytes:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode()


def _failed(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, LlmgwError)
    return JSONResponse({"error": exc.as_dict()}, status_code=exc.http_status)


def _http(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    status: int = exc.status_code
    path = request.url.path[:200]
    message = f"There is no {request.method} {path} here." if status in (404, 405) else str(exc.detail)
    fix = f"See {BASE}/openapi.json."
    body: dict[str, Any] = {"code": "no_such_path", "message": message, "fix": fix, "exit_status": 3}
    return JSONResponse({"error": body}, status_code=status)


def _left(request: Request, exc: Exception) -> Response:
    """The client went away before it had said what it wants; nobody reads this."""
    return Response(status_code=400)


def _crashed(request: Request, exc: Exception) -> Response:
    error = LlmgwError(f"The control plane failed at this: {type(exc).__name__}.", fix="Its log says more.")
    return JSONResponse({"error": error.as_dict()}, status_code=500)
