"""The table of the admin API: method, path, what goes in, what comes out. Routes and openapi.json are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from llmgw.admin.control import Control
from llmgw.errors import UsageError
from llmgw.model.catalog import Model
from llmgw.model.requests import (
    AuditList,
    Checked,
    EventList,
    Join,
    Joined,
    KeyList,
    Logs,
    MadeKey,
    NewKey,
    NodeDetail,
    Removal,
    Said,
    Whoami,
)
from llmgw.model.snapshot import Snapshot

MAX_LIST = 1000
Handle = Callable[[Control, Request, Any], Awaitable[BaseModel]]


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    summary: str
    gives: type[BaseModel]
    handle: Handle
    takes: type[BaseModel] | None = None
    query: tuple[str, ...] = ()


def _node(request: Request) -> str:
    return str(request.path_params["node"])


def number(request: Request, name: str, default: int | None, highest: int = 1 << 62) -> int | None:
    """A whole number out of the query. Raises UsageError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{name}={text!r} is not a whole number.")
    return min(int(text), highest)


def flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "") in ("1", "true", "yes")


async def _remove(control: Control, request: Request, _: Any) -> Removal:
    return await control.remove(_node(request), purge=flag(request, "purge"), force=flag(request, "force"))


async def _logs(control: Control, request: Request, _: Any) -> Logs:
    lines = number(request, "lines", 200, MAX_LIST) or 200
    return await control.logs(request.path_params["replica"], lines=lines)


async def _events(control: Control, request: Request, _: Any) -> EventList:
    found = await control.events(
        after=number(request, "after", None),
        limit=number(request, "limit", 100, MAX_LIST) or 100,
        node=request.query_params.get("node"),
    )
    return EventList(events=tuple(found))


async def _audit(control: Control, request: Request, _: Any) -> AuditList:
    limit = number(request, "limit", 100, MAX_LIST) or 100
    return AuditList(audit=tuple(await control.audit(limit=limit, node=request.query_params.get("node"))))


ENDPOINTS = (
    Endpoint("GET", "/whoami", "Who this control plane is", Whoami, lambda c, r, b: c.whoami()),
    Endpoint("GET", "/snapshot", "Everything wanted and known, at one moment", Snapshot, lambda c, r, b: c.snapshot()),
    Endpoint("POST", "/nodes", "Take in a node after first contact", Joined, lambda c, r, b: c.join(b), takes=Join),
    Endpoint("GET", "/nodes/{node}", "A node, its engines, its probe", NodeDetail, lambda c, r, b: c.node(_node(r))),
    Endpoint("DELETE", "/nodes/{node}", "Remove a node", Removal, _remove, query=("purge", "force")),
    Endpoint("POST", "/nodes/{node}/probe", "Look at a node now", NodeDetail, lambda c, r, b: c.probe(_node(r))),
    Endpoint("POST", "/nodes/{node}/check", "Look a node over", Checked, lambda c, r, b: c.check(_node(r))),
    Endpoint("POST", "/nodes/{node}/cordon", "Take no new replicas", Said, lambda c, r, b: c.cordon(_node(r))),
    Endpoint("POST", "/nodes/{node}/uncordon", "Take them again", Said, lambda c, r, b: c.uncordon(_node(r))),
    Endpoint("POST", "/nodes/{node}/drain", "Move the replicas off", Said, lambda c, r, b: c.drain(_node(r))),
    Endpoint("POST", "/nodes/{node}/undrain", "End a drain", Said, lambda c, r, b: c.undrain(_node(r))),
    Endpoint("POST", "/models", "Add or change a model", Said, lambda c, r, b: c.add_model(b), takes=Model),
    Endpoint(
        "DELETE",
        "/models/{model:path}",
        "Take a model out of the catalog",
        Said,
        lambda c, r, b: c.remove_model(r.path_params["model"]),
    ),
    Endpoint("GET", "/replicas/{replica}/logs", "The end of an engine's log", Logs, _logs, query=("lines",)),
    Endpoint(
        "GET",
        "/events",
        "What happened; a stream with Accept: text/event-stream",
        EventList,
        _events,
        query=("after", "limit", "node"),
    ),
    Endpoint("GET", "/audit", "Every remote command", AuditList, _audit, query=("limit", "node")),
    Endpoint("GET", "/keys", "API keys and what they used", KeyList, lambda c, r, b: c.keys()),
    Endpoint("POST", "/keys", "Create an API key", MadeKey, lambda c, r, b: c.create_key(b), takes=NewKey),
    Endpoint("DELETE", "/keys/{key}", "Revoke an API key", Said, lambda c, r, b: c.revoke_key(r.path_params["key"])),
)
