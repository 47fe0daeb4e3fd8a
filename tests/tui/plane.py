"""A control plane in a few lines: snapshots, answers and events that a test sets, and a list of what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from llmgw.errors import LlmgwError, Unreachable
from llmgw.model.catalog import Model, Profile, Scaling
from llmgw.model.event import Event, Severity
from llmgw.model.node import Address, DrainState, LinkState, Node, NodeState, Problem
from llmgw.model.replica import Process, Replica, ReplicaState, Shard
from llmgw.model.requests import EventList, Logs, NodeDetail, Said, Whoami
from llmgw.model.snapshot import ModelStatus, Snapshot, Unclaimed

NOW = 1_700_000_000.0
HOSTILE = "\x1b[31m[bold red]boo[/] \x07\u202e\ttab"
ME = Whoami(
    version="0.1.0",
    cluster_id="c",
    controller_id="k",
    term=3,
    public_key="ssh-ed25519 AAAA",
    key_line="",
    listen="127.0.0.1:8000",
    admin_listen=None,
)


def node(name: str, **more: Any) -> Node:
    given = {"link": LinkState.UP, "link_since": NOW - 7200, "state": NodeState.READY, "added_at": NOW - 9000}
    return Node(id=name, address=Address(host=f"{name}.lan", user="ops"), host_key="", **{**given, **more})


def replica(name: str, on: str, state: ReplicaState = ReplicaState.READY, **more: Any) -> Replica:
    process = Process(boot_id="b", pid=4321, start_ticks=7)
    return Replica(
        id=name,
        model=name.rpartition("-")[0],
        revision="abcdef012345",
        profile="cpu",
        engine="llamacpp",
        engine_version="pypi:xllamacpp==2026.10.11549",
        state=state,
        shards=(Shard(node=on, attempt=1, process=process, port=40001),),
        memory_bytes=3 << 30,
        state_since=NOW - 95,
        **more,
    )


def model(name: str, **more: Any) -> Model:
    return Model(name=name, source=f"hf:org/{name}/q4.gguf", profiles=(Profile(name="cpu", engine="llamacpp"),), **more)


def full() -> Snapshot:
    """Something of every kind, most of it in trouble."""
    ram = Problem(code="ram", severity="warning", message=f"Swap is on. {HOSTILE}")
    return Snapshot(
        at=NOW,
        nodes=(
            node("atlas"),
            node("borealis", link=LinkState.DOWN, link_since=NOW - 180, link_error="no route to host"),
            node("cygnus", drain=DrainState.DRAINING, cordoned=True),
            node("draco", quarantined="its host key changed", link=LinkState.DOWN),
            node("eridanus", cordoned=True, problems=(ram,)),
            node("fornax", state=NodeState.ADDING, link_since=NOW - 4),
        ),
        models=(model("chat", scaling=Scaling(min=2, max=4)), model("embed"), model("rerank")),
        status=(
            ModelStatus(model="chat", state="ready", ready=2, wanted=2),
            ModelStatus(model="embed", state="loading", ready=0, wanted=1, reason="weights 40 % fetched"),
            ModelStatus(model="rerank", state="unplaceable", wanted=1, reason="finds no node: 8.0 GiB needed"),
        ),
        replicas=(
            replica("chat-a1", "atlas"),
            replica("chat-b2", "cygnus", ReplicaState.DRAINING, reason="cygnus is drained", wanted=False),
            replica("chat-c3", "eridanus", reason=HOSTILE),
            replica("embed-d4", "atlas", ReplicaState.FETCHING, progress=0.4),
            replica("embed-e5", "atlas", ReplicaState.LOADING, progress=0.85),
            replica("embed-f6", "atlas", ReplicaState.PLACED),
            replica("embed-a7", "atlas", ReplicaState.STARTING),
            replica("chat-b8", "cygnus", ReplicaState.STOPPING),
            replica("chat-c9", "cygnus", ReplicaState.STOPPED),
            replica("rerank-d1", "atlas", ReplicaState.FAILED, reason="exit status 1: out of memory", failures=3),
            replica("chat-e2", "borealis", ReplicaState.LOST, reason="the link to borealis is down"),
        ),
        unclaimed=(Unclaimed(node="atlas", replica="other-ffff", pid=999),),
        inflight={"chat-a1": 3, "chat-c3": 2},
        served={"chat-a1": 1200, "chat-c3": 34},
    )


def story() -> list[Event]:
    return [
        Event(id=1, at=NOW - 60, kind="node.link", message="atlas is up", node="atlas"),
        Event(id=2, at=NOW - 30, kind="node.link", severity=Severity.WARNING, message="The link to borealis is down"),
        Event(id=3, at=NOW - 5, kind="replica.state", severity=Severity.ERROR, message=f"rerank-d1 failed: {HOSTILE}"),
    ]


class Plane:
    """Stands where `AdminClient` stands."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot or full()
        self.past = story()
        self.asked: list[str] = []
        self.gone = False
        self.answers: dict[str, LlmgwError] = {}
        """By path: errors instead of answers."""
        self.pictures = 0
        self._news: list[Event] = []
        self._stir = asyncio.Condition()

    async def get(self, path: str, cls: Any, **query: Any) -> Any:
        self._check(path)
        if path == "/snapshot":
            self.pictures += 1
            return self.snapshot
        if path == "/whoami":
            return ME
        if path == "/events":
            return EventList(events=tuple(self.past))
        self.asked.append(f"GET {path}")
        if path.endswith("/logs"):
            return Logs(replica=path.split("/")[2], lines=("loading model", HOSTILE, "server is listening"))
        return self._detail(path)

    async def post(self, path: str, cls: Any) -> Any:
        self.asked.append(f"POST {path}")
        self._check(path)
        return self._detail(path) if path.endswith("/probe") else Said(message=f"done [{HOSTILE}]")

    async def events(self, after: int | None = None) -> AsyncIterator[Event]:
        while True:
            self._check("/events")
            for event in self._news:
                if after is None or event.id > after:
                    after = event.id
                    yield event
            async with self._stir:
                await self._stir.wait()

    async def tell(self, *events: Event) -> None:
        async with self._stir:
            self._news += events
            self.past += events
            self._stir.notify_all()

    async def leave(self) -> None:
        async with self._stir:
            self.gone = True
            self._stir.notify_all()

    def _check(self, path: str) -> None:
        if self.gone:
            raise Unreachable("The control plane does not answer.")
        if path in self.answers:
            raise self.answers[path]

    def _detail(self, path: str) -> NodeDetail:
        found = self.snapshot.node_by_id[path.split("/")[2]]
        cpu = {"model": HOSTILE, "threads": 8, "level": "x86-64-v3"}
        probe = {"os": {"pretty": "Debian 12", "kernel": "6.1", "arch": "x86_64"}, "cpu": cpu, "memory": {}}
        return NodeDetail(node=found, engines=(), probe=probe)
