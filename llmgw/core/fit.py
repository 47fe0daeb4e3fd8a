"""Whether one profile of a model fits one node, and if not, why: in numbers and in the node's words."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.engines.base import GIB, MIB
from llmgw.engines.registry import engines
from llmgw.model.catalog import Model, Profile
from llmgw.model.engine import InstallState, NodeEngine
from llmgw.model.node import DrainState, LinkState, Node, NodeState
from llmgw.model.probe import Probe
from llmgw.model.replica import Replica, ReplicaState
from llmgw.model.snapshot import Snapshot

RESERVE = 0.05
"""Part of a node's memory that is never given to engines: the system needs to breathe."""
DISK_HEADROOM = 64 * MIB


@dataclass(frozen=True)
class Refusal:
    node: str
    profile: str
    reason: str


@dataclass(frozen=True)
class Fit:
    node: str
    profile: str
    engine: str
    engine_version: str
    memory_bytes: int
    free_bytes: int
    """What is left on the node once this replica is there."""


def fit(model: Model, profile: Profile, node: Node, snapshot: Snapshot) -> Fit | Refusal:
    """Judges a node as it is now. Anything that is not known refuses, and says what is not known."""

    def refuse(reason: str) -> Refusal:
        return Refusal(node.id, profile.name, reason)

    if (reason := closed(node)) is not None:
        return refuse(reason)
    missing = [f"{key}={value}" for key, value in profile.node_selector.items() if node.labels.get(key) != value]
    if missing:
        return refuse(f"lacks the label {', '.join(missing)}")
    probe = snapshot.probes.get(node.id)
    if probe is None:
        return refuse("has not been probed yet")
    installed = installed_engine(profile.engine, node.id, snapshot)
    if isinstance(installed, str):
        return refuse(installed)
    if (reason := _gpus(profile, node.id, probe, snapshot)) is not None:
        return refuse(reason)
    verdict = _memory(model, profile, installed, probe, snapshot)
    return refuse(verdict) if isinstance(verdict, str) else verdict


def closed(node: Node) -> str | None:
    """Why nothing new may come to a node, whatever it is; None when it is open."""
    if node.quarantined:
        return f"is quarantined: {node.quarantined}"
    if node.drain is not DrainState.NONE:
        return "is drained" if node.drain is DrainState.DRAINED else "is being drained"
    if node.cordoned:
        return "is cordoned"
    if node.link is not LinkState.UP:
        return f"cannot be reached: {node.link_error}" if node.link_error else "cannot be reached"
    if node.state is not NodeState.READY:
        return "is still being added"
    for problem in node.problems:
        if problem.severity == "error":
            return problem.message
    return None


def installed_engine(engine: str, node: str, snapshot: Snapshot) -> NodeEngine | str:
    """The best installed version of an engine on a node, or why there is none."""
    here = [entry for entry in snapshot.engines if entry.node == node and entry.engine == engine]
    order = {version: place for place, version in enumerate(snapshot.engine_order.get(engine, ()))}
    # One named by path on purpose (it is in no list) comes before those that were installed.
    ready = [entry for entry in here if entry.state is InstallState.INSTALLED]
    if ready:
        return min(ready, key=lambda entry: order.get(entry.version, -1))
    for entry in here:
        words = f"{entry.state}: {entry.detail}" if entry.detail else str(entry.state)
        return f"{engine} {entry.version} is not ready there ({words})"
    return f"has no {engine}; `engines:` in llmgw.yaml names none"


def _gpus(profile: Profile, node: str, probe: Probe, snapshot: Snapshot) -> str | None:
    """Whole GPUs: one that a replica of ours was placed on is given to no other."""
    if not profile.gpus:
        return None
    usable = [gpu for gpu in probe.gpus if gpu.health not in ("lost", "error") and gpu.vendor != "other"]
    fitting = [
        gpu
        for gpu in usable
        if profile.gpu_class is None or profile.gpu_class.lower() in (gpu.name or "").lower().replace(" ", "-")
    ]
    wanted = f"{profile.gpus} GPU{'s' if profile.gpus > 1 else ''}"
    kind = f" of class {profile.gpu_class}" if profile.gpu_class else ""
    names = ", ".join(gpu.name or gpu.vendor for gpu in usable) or "none"
    if len(fitting) < profile.gpus:
        return f"needs {wanted}{kind}; it has {names}"
    given = sum(_gpus_of(replica, snapshot) for replica in holding(node, snapshot))
    if len(fitting) - given < profile.gpus:
        return f"needs {wanted}{kind}; it has {names}, and {given} of them are given to replicas already"
    parts = {gpu.uuid for gpu in fitting} | {part.uuid for gpu in fitting for part in gpu.slices} | {None}
    others = [use for use in probe.gpu_processes if use.owner != "ours" and use.gpu in parts]
    strangers = [use for use in others if (use.memory or 0) > 256 * MIB]
    if strangers:
        first = strangers[0]
        return f"its GPU is used by {first.name or 'a process'} (pid {first.pid}, user {first.user or '?'})"
    return None


def _memory(model: Model, profile: Profile, installed: NodeEngine, probe: Probe, snapshot: Snapshot) -> Fit | str:
    node = installed.node
    weights = snapshot.weights.get(model.source)
    size = weights.size if weights else None
    needed = engines()[profile.engine].memory(model, profile, size)
    least = int(profile.min_memory_gb * GIB)
    if needed is None and not least:
        return "cannot be judged: how much memory it needs is not known; set min_memory_gb in the profile"
    need = max(needed or 0, least)
    usable = probe.memory.usable
    if usable is None:
        return f"its memory could not be read ({probe.unknown.get('memory', 'no reason given')})"
    free = free_memory(node, probe, snapshot)
    if need > free:
        return f"needs {gib(need)} of memory, {gib(max(free, 0))} of {gib(usable)} are free"
    disk = probe.root.free
    if size is not None and weights is not None and weights.path is not None and disk is not None:
        held = any(other.model == model.name for other in snapshot.replicas_on(node))
        if not held and size + DISK_HEADROOM > disk:
            return f"needs {gib(size)} of disk in {probe.root.path}, {gib(disk)} are free"
    return Fit(node, profile.name, profile.engine, installed.version, need, free - need)


def free_memory(node: str, probe: Probe, snapshot: Snapshot) -> int:
    """Bytes that a new replica may take: what the machine has, less a reserve, less ours, less what strangers use."""
    usable = probe.memory.usable or 0
    ours = sum(replica.memory_bytes for replica in holding(node, snapshot))
    strangers = 0
    if probe.memory.total is not None and probe.memory.available is not None:
        resident = sum(process.rss or 0 for process in probe.processes)
        strangers = max(0, probe.memory.total - probe.memory.available - resident)
    return int(usable * (1 - RESERVE)) - ours - strangers


def holding(node: str, snapshot: Snapshot) -> list[Replica]:
    """Replicas that keep their place on a node: all but those that are stopped or given up.

    One that has failed and is to be started again keeps it: it would not fit any more when its time comes.
    """
    return [
        replica
        for replica in snapshot.replicas_on(node)
        if not replica.state.over or (replica.state is ReplicaState.FAILED and replica.next_try_at is not None)
    ]


def _gpus_of(replica: Replica, snapshot: Snapshot) -> int:
    model = snapshot.model_by_name.get(replica.model)
    profiles = model.profiles if model is not None else ()
    return next((profile.gpus for profile in profiles if profile.name == replica.profile), 0)


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / MIB:.0f} MiB"
