"""What the gateway is fed: an immutable route table and the keys; and what it gives back: traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from llmgw.model.catalog import Task
from llmgw.model.key import ApiKey
from llmgw.model.secret import Secret


class StreamTransport(Protocol):
    """The write side of a byte stream, whether TCP or a direct-tcpip channel: asyncio's own names."""

    def write(self, data: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


ProtocolFactory = Callable[[], asyncio.Protocol]
Connect = Callable[[ProtocolFactory], Awaitable[asyncio.Protocol]]
"""Opens one stream to an engine's HTTP port and gives it to a new protocol (`connection_made` gets a StreamTransport).

Raises errors.Unreachable when the engine's port is closed or the link is down, errors.TimedOut when it does not open.
Cancelling a pending open leaks nothing."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A replica that is ready to answer."""

    replica: str
    node: str
    attempt: int
    model: str
    """The name the engine itself knows the model by."""
    key: Secret
    connect: Connect
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Route:
    """A model as the gateway sees it."""

    model: str
    task: Task = Task.CHAT
    aliases: tuple[str, ...] = ()
    upstreams: tuple[Upstream, ...] = ()
    reason: str = ""
    """Why there is no upstream, in words for the 503: `loading on gpu03, 43 %`."""
    hold: bool = False
    """No upstream yet, but one is known to come (adoption, loading): a request waits at most `queue_wait`."""
    context_length: int | None = None
    max_output: int | None = None
    created: int = 0


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Routes by every name a request may use: canonical names and aliases."""

    routes: Mapping[str, Route] = field(default_factory=dict)
    adopting: bool = False
    """True after a start until every node with known replicas has been looked at once."""


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Keys by their digest (`model.key.digest`). Revoked keys are not in it."""

    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    open: bool = False
    """True lets requests without a key in (the demo on loopback)."""


class Traffic:
    """What the gateway knows of each replica while it runs; read by drain, health and the snapshot.

    One mutable object, written by the gateway only, on the event loop's thread.
    """

    def __init__(self) -> None:
        self.inflight: dict[str, int] = {}
        """Requests a replica is working on right now."""
        self.served: dict[str, int] = {}
        """Requests a replica has answered since the control plane started."""
        self.on_failure: Callable[[str, int, str], None] = lambda replica, attempt, why: None
        """Called with (replica, attempt, why) when an upstream refuses, dies or stalls: a hint to look, not proof."""
        self.on_idle: Callable[[str], None] = lambda replica: None
        """Called with the replica whose last request has just ended."""
