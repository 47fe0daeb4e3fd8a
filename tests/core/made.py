"""Records to start from; a test names only what it is about."""

from __future__ import annotations

from typing import Any

from llmgw.engines.base import GIB, MIB
from llmgw.model.catalog import Model
from llmgw.model.engine import InstallState, NodeEngine
from llmgw.model.node import Address, LinkState, Node, NodeState
from llmgw.model.probe import Probe
from llmgw.model.replica import Process, Replica, ReplicaState, Shard
from llmgw.model.snapshot import Snapshot
from llmgw.model.weights import FetchState, Weights

NOW = 1_700_000_000.0
VERSION = "pypi:xllamacpp==1.0"
SOURCE = "pypi:some-model/some/model.gguf"
WEIGHTS = 100 * MIB
NEED = int(WEIGHTS * 1.15) + 150 * MIB
"""What llama.cpp is counted for with these weights."""


def node(name: str = "n1", **fields: Any) -> Node:
    usual: dict[str, Any] = {
        "address": Address(host=name, user="root"),
        "host_key": "ssh-ed25519 AAAA",
        "state": NodeState.READY,
        "link": LinkState.UP,
        "link_since": NOW - 1000,
    }
    return Node(id=name, **{**usual, **fields})


def probe(name: str = "n1", *, memory: dict[str, Any] | None = None, free: int | None = 50 * GIB, **more: Any) -> Probe:
    document: dict[str, Any] = {
        "schema": 1,
        "at": NOW,
        "hostname": name,
        "boot_id": f"boot-{name}",
        "python": {"executable": "/usr/bin/python3", "version": "3.11.2"},
        "user": {"name": "root", "uid": 0},
        "os": {"arch": "x86_64"},
        "libc": {"kind": "glibc", "version": "2.36"},
        "memory": {"total": 8 * GIB, "available": 8 * GIB} if memory is None else memory,
        "root": {"path": "/root/.local/share/llmgw", "free": free},
        **more,
    }
    return Probe.model_validate(document)


def engine(name: str = "n1", **fields: Any) -> NodeEngine:
    usual: dict[str, Any] = {"engine": "llamacpp", "version": VERSION, "state": InstallState.INSTALLED}
    return NodeEngine(node=name, **{**usual, **fields})


def model(name: str = "m", *, want: int = 1, profiles: list[dict[str, Any]] | None = None, **fields: Any) -> Model:
    return Model.model_validate(
        {
            "name": name,
            "source": SOURCE,
            "scaling": {"min": want},
            "profiles": profiles or [{"name": "cpu", "engine": "llamacpp"}],
            **fields,
        }
    )


def replica(
    of: Model, name: str, on: str = "n1", state: ReplicaState = ReplicaState.READY, *, attempt: int = 1, **fields: Any
) -> Replica:
    process = Process(boot_id=f"boot-{on}", pid=100, start_ticks=5) if attempt else None
    usual: dict[str, Any] = {
        "revision": of.revision(VERSION),
        "profile": of.profiles[0].name,
        "engine": "llamacpp",
        "engine_version": VERSION,
        "memory_bytes": NEED,
        "created_at": NOW - 500,
        "state_since": NOW - 400,
        "shards": (Shard(node=on, attempt=attempt, process=process, port=41000 if attempt else None),),
    }
    return Replica(id=name, model=of.name, state=state, **{**usual, **fields})


def weights(size: int | None = WEIGHTS, **fields: Any) -> Weights:
    usual: dict[str, Any] = {"source": SOURCE, "state": FetchState.PRESENT, "size": size, "path": "/mirror/model.gguf"}
    return Weights(**{**usual, **fields})


def snapshot(
    *nodes: Node, models: tuple[Model, ...] = (), replicas: tuple[Replica, ...] = (), **fields: Any
) -> Snapshot:
    """Every node probed and with the engine installed, all weights here, unless the test says otherwise."""
    usual: dict[str, Any] = {
        "probes": {one.id: probe(one.id) for one in nodes},
        "engines": tuple(engine(one.id) for one in nodes),
        "weights": {one.source: weights(source=one.source) for one in models} or {SOURCE: weights()},
        "engine_order": {"llamacpp": (VERSION,)},
    }
    return Snapshot(at=NOW, nodes=nodes, models=models, replicas=replicas, **{**usual, **fields})
