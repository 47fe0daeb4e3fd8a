"""Everything that is not inference: models, health, metrics, a hello. A small ASGI application off the hot path."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
from uvicorn._types import ASGI3Application

from llmgw.gateway import problems
from llmgw.gateway.auth import Visit
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.metrics import Gauge
from llmgw.gateway.problems import Problem
from llmgw.model.route import Route
from llmgw.protocol.openai import INFERENCE, MODELS, model_entry

log = logging.getLogger("llmgw.gateway")

JSON, TEXT = b"application/json", b"text/plain; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
HELLO = b"llmgw: one OpenAI-compatible endpoint. Models: GET /v1/models. Chat: POST /v1/chat/completions.\n"
LOOPBACK = ("127.", "::1")

Page = tuple[int, bytes, bytes]


def pages(gateway: Gateway) -> ASGI3Application:
    """The application that uvicorn is given: everything but a POST to an inference path, which `door` takes."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await _answer(gateway, scope, send)

    return application


async def _answer(gateway: Gateway, scope: Any, send: Any) -> None:
    headers = dict(scope["headers"])
    visitor = gateway.admit(headers)
    try:
        found = _page(gateway, scope, headers, visitor)
    except Exception:
        log.exception("request %s: %s", visitor.request_id.decode(), scope["path"])
        found = problems.INTERNAL
    lines: list[tuple[bytes, bytes]] = []
    if isinstance(found, Problem):
        gateway.metrics.answered("", found.status)
        status, body = found.status, found.body()
        for line in found.headers(visitor.request_id).split(b"\r\n")[:-1]:
            name, _, value = line.partition(b": ")
            lines.append((name, value))
    else:
        status, kind, body = found
        lines += [(b"content-type", kind), (b"x-request-id", visitor.request_id)]
    lines.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def _page(gateway: Gateway, scope: Any, headers: dict[bytes, bytes], visitor: Visit) -> Page | Problem:
    path, method = scope["path"], scope["method"]
    if path in INFERENCE:
        return problems.wrong_method(method, path, "POST")
    is_model = path == MODELS or path.startswith(MODELS + "/")
    if not is_model and path not in ("/", "/health", "/metrics"):
        return problems.no_such_path(method, path)
    if method not in ("GET", "HEAD"):
        return problems.wrong_method(method, path, "GET")
    if path == "/":
        return 200, TEXT, HELLO
    if path == "/health":
        return _health(gateway)
    if path == "/metrics":
        if visitor.problem is not None and not _is_local(scope, headers):
            return visitor.problem
        return 200, PROMETHEUS, render_metrics(gateway).encode()
    if visitor.problem is not None:
        return visitor.problem
    if path == MODELS:
        return _json(200, {"object": "list", "data": [_entry(route) for route in gateway.models(visitor.key)]})
    return _model(gateway, unquote(path[len(MODELS) + 1 :]), visitor)


def _model(gateway: Gateway, name: str, visitor: Visit) -> Page | Problem:
    route = gateway.router.route(name)
    if route is None:
        return problems.unknown_model(name, gateway.names(visitor.key))
    if visitor.key is not None and not visitor.key.allows(route.model):
        return problems.not_allowed(visitor.key.name, name)
    return _json(200, _entry(route))


def _entry(route: Route) -> dict[str, Any]:
    return model_entry(
        route.model,
        route.created,
        task=str(route.task),
        aliases=list(route.aliases),
        ready=bool(route.upstreams),
        context_length=route.context_length,
        max_output=route.max_output,
    )


def _health(gateway: Gateway) -> Page:
    """Open to everybody, so it counts and names nothing. `degraded`: a served model has no live replica."""
    routes = list(gateway.models(None))
    ready = sum(1 for route in routes if route.upstreams)
    if gateway.closing:
        status = "closing"
    elif gateway.routes.value.adopting:
        status = "starting"
    else:
        status = "ok" if ready == len(routes) else "degraded"
    body = {"status": status, "version": gateway.version, "models": {"ready": ready, "total": len(routes)}}
    return _json(503 if gateway.closing else 200, body)


def render_metrics(gateway: Gateway) -> str:
    """Prometheus text; the admin API shows it too."""
    return gateway.metrics.render([*_gauges(gateway), *gateway.vitals()])


def _gauges(gateway: Gateway) -> Iterator[Gauge]:
    """What is true right now, for /metrics."""
    for route in gateway.models(None):
        yield "llmgw_replicas_ready", "Replicas that can answer.", {"model": route.model}, len(route.upstreams)
    for replica, count in sorted(gateway.traffic.inflight.items()):
        yield "llmgw_inflight", "Requests a replica is working on.", {"replica": replica}, count
    for model, count in sorted(gateway.room.waiting.items()):
        yield "llmgw_waiting", "Requests that wait for a replica.", {"model": model}, count
    yield "llmgw_open_requests", "Requests being answered.", {}, len(gateway.exchanges)
    yield "llmgw_idle_upstream_connections", "Connections kept for the next request.", {}, len(gateway.pool)
    yield "llmgw_request_bytes_held", "Bytes of request bodies in memory.", {}, gateway.bodies


def _is_local(scope: Any, headers: dict[bytes, bytes]) -> bool:
    """Whether the request comes from this machine itself and not through a proxy on it."""
    client = scope.get("client")
    direct = b"x-forwarded-for" not in headers and b"forwarded" not in headers
    return client is not None and direct and client[0].startswith(LOOPBACK)


def _json(status: int, body: Any) -> Page:
    return status, JSON, msgspec.json.encode(body)
