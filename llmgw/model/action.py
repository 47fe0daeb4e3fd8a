"""What reconcile decides: data with a reason. `act` is the only one that carries these out."""

from __future__ import annotations

from typing import Literal

from llmgw.model.base import Record


class Place(Record):
    """Create a replica of `model` on `nodes` (one node a rank)."""

    kind: Literal["place"] = "place"
    model: str
    revision: str
    profile: str
    engine: str
    engine_version: str
    nodes: tuple[str, ...]
    memory_bytes: int
    reason: str


class Launch(Record):
    """Start a placed or failed replica (again)."""

    kind: Literal["launch"] = "launch"
    replica: str
    reason: str


class Retire(Record):
    """Take a replica out of routing, let it finish what it is doing, then stop it."""

    kind: Literal["retire"] = "retire"
    replica: str
    reason: str


class Forget(Record):
    """Delete the record of a replica of which nothing is left."""

    kind: Literal["forget"] = "forget"
    replica: str
    reason: str


class MarkDrained(Record):
    """The last replica has left a draining node."""

    kind: Literal["mark_drained"] = "mark_drained"
    node: str
    reason: str


Action = Place | Launch | Retire | Forget | MarkDrained
