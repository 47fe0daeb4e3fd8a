"""Everything that is wanted and known at one moment: what decisions are made from and what the faces show."""

from __future__ import annotations

from functools import cached_property

from llmgw.model.base import Record
from llmgw.model.catalog import Model
from llmgw.model.engine import NodeEngine
from llmgw.model.node import Node
from llmgw.model.probe import Probe
from llmgw.model.replica import Replica
from llmgw.model.weights import Weights


class Unclaimed(Record):
    """A tagged engine that this state has never heard of: shown and counted, never signalled."""

    node: str
    replica: str
    rank: int = 0
    attempt: int = 0
    cluster: str | None = None
    foreign: bool = False
    """It carries another cluster's tag: not ours, whatever else."""
    model: str | None = None
    pid: int
    port: int | None = None
    rss: int | None = None


class ModelStatus(Record):
    """`ready`, `loading`, `degraded`, `unplaceable` or `stopped`, with the reason."""

    model: str
    state: str
    reason: str = ""
    ready: int = 0
    wanted: int = 0
    nowhere: bool = False
    """A replica that is wanted, or a replacement, finds no node."""


class Snapshot(Record):
    at: float
    term: int = 0
    nodes: tuple[Node, ...] = ()
    models: tuple[Model, ...] = ()
    replicas: tuple[Replica, ...] = ()
    engines: tuple[NodeEngine, ...] = ()
    probes: dict[str, Probe] = {}
    weights: dict[str, Weights] = {}
    """By source."""
    engine_order: dict[str, tuple[str, ...]] = {}
    """The configured versions of each engine, best first."""
    unclaimed: tuple[Unclaimed, ...] = ()
    inflight: dict[str, int] = {}
    served: dict[str, int] = {}
    status: tuple[ModelStatus, ...] = ()

    @cached_property
    def node_by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def model_by_name(self) -> dict[str, Model]:
        return {model.name: model for model in self.models}

    def replicas_on(self, node: str) -> list[Replica]:
        return [replica for replica in self.replicas if node in replica.nodes]

    def replicas_of(self, model: str) -> list[Replica]:
        return [replica for replica in self.replicas if replica.model == model]
