"""Rows for tables, made from a snapshot or a list, and how each table gives way. The dashboard shows the same ones.

Ages are counted to `snapshot.at`: the clock is the control plane's, also when another machine looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmgw.admin.fit import Layout
from llmgw.admin.text import age, clock, size
from llmgw.model.event import Audit
from llmgw.model.node import DrainState, Node
from llmgw.model.replica import Replica
from llmgw.model.requests import KeyList, NodeDetail
from llmgw.model.snapshot import Snapshot

Rows = tuple[list[str], list[list[object]]]

NODES = Layout(
    prose="PROBLEMS",
    spare=("ADDRESS", "ENGINES", "GPUS"),
    scarce=("MEMORY FREE", "REPLICAS", "LINK", "PROBLEMS"),
)
REPLICAS = Layout(
    prose="REASON",
    spare=("PID", "ATTEMPT", "ENGINE", "MODEL", "SERVED"),  # the model is where a replica's name begins
    scarce=("IN FLIGHT", "AGE", "REASON", "NODE"),
)
MODELS = Layout(prose="REASON", spare=("SOURCE", "CONTEXT", "TASK"), scarce=("REASON", "READY"))
AUDIT = Layout(prose="OUTCOME", scarce=("EXIT", "TOOK", "TIME"))
KEYS = Layout(
    prose="MODELS",
    spare=("AGE", "BEGINS WITH"),
    scarce=("TOKENS OUT", "TOKENS IN", "MODELS", "REQUESTS"),
)


def node_rows(snapshot: Snapshot) -> Rows:
    columns = ["NODE", "STATE", "LINK", "REPLICAS", "MEMORY FREE", "GPUS", "ENGINES", "ADDRESS", "PROBLEMS"]
    rows: list[list[object]] = []
    for node in snapshot.nodes:
        probe = snapshot.probes.get(node.id)
        engines = [f"{one.engine} {one.state}" for one in snapshot.engines if one.node == node.id]
        gpus = "–" if probe is None else str(len(probe.gpus))
        free = "–"
        if probe is not None and probe.memory.available is not None:
            free = f"{size(probe.memory.available)} of {size(probe.memory.usable)}"
        problems = "; ".join(one.message for one in node.problems if one.severity != "note")
        rows.append(
            [
                node.id,
                node_state(node),
                f"{node.link} {age(node.link_since, snapshot.at)}",
                len([one for one in snapshot.replicas_on(node.id) if not one.state.over]),
                free,
                gpus,
                ", ".join(engines) or "–",
                node.address,
                node.quarantined or problems or node.link_error or "",
            ]
        )
    return columns, rows


def node_state(node: Node) -> str:
    if node.quarantined:
        return "quarantined"
    if node.drain is not DrainState.NONE:
        return str(node.drain)
    return "cordoned" if node.cordoned else str(node.state)


def replica_rows(snapshot: Snapshot) -> Rows:
    columns = ["REPLICA", "MODEL", "NODE", "STATE", "AGE", "ATTEMPT", "PID", "IN FLIGHT", "SERVED", "ENGINE", "REASON"]
    rows: list[list[object]] = [_replica(replica, snapshot) for replica in snapshot.replicas]
    for one in snapshot.unclaimed:
        rows.append(
            [
                one.replica,
                one.model or "?",
                one.node,
                "unclaimed",
                "–",
                one.attempt,
                one.pid,
                "–",
                "–",
                "–",
                f"of another control plane (cluster {one.cluster})"
                if one.foreign
                else "tagged as ours, unknown to this state",
            ]
        )
    return columns, rows


def _replica(replica: Replica, snapshot: Snapshot) -> list[object]:
    process = replica.lead.process
    state = str(replica.state)
    if replica.progress is not None:
        state += f" {replica.progress:.0%}"
    return [
        replica.id,
        replica.model,
        ", ".join(replica.nodes),
        state,
        age(replica.state_since, snapshot.at),
        replica.lead.attempt,
        process.pid if process else "–",
        snapshot.inflight.get(replica.id, 0),
        snapshot.served.get(replica.id, 0),
        f"{replica.engine} {replica.engine_version.rpartition('==')[2]}",
        replica.reason,
    ]


def model_rows(snapshot: Snapshot) -> Rows:
    columns = ["MODEL", "STATE", "READY", "TASK", "CONTEXT", "SOURCE", "REASON"]
    rows: list[list[object]] = []
    status = {one.model: one for one in snapshot.status}
    for model in snapshot.models:
        now = status.get(model.name)
        ready = f"{now.ready}/{now.wanted}" if now else "–"
        state, reason = (now.state, now.reason) if now else ("–", "")
        rows.append([model.name, state, ready, model.task, model.context_length or "–", model.source, reason])
    return columns, rows


def audit_rows(records: Iterable[Audit]) -> Rows:
    columns = ["TIME", "NODE", "COMMAND", "EXIT", "OUTCOME", "TOOK"]
    return columns, [
        [clock(one.at), one.node, one.command, one.exit_status, one.outcome, f"{one.seconds:.2f} s"] for one in records
    ]


def key_rows(found: KeyList) -> Rows:
    columns = ["KEY", "BEGINS WITH", "STATE", "AGE", "MODELS", "REQUESTS", "TOKENS IN", "TOKENS OUT"]
    used = {key.name: [0, 0, 0] for key in found.keys}
    for row in found.usage:
        sums = used.setdefault(row["key"], [0, 0, 0])
        for place, field in enumerate(("requests", "prompt_tokens", "completion_tokens")):
            sums[place] += row[field]
    rows: list[list[object]] = [
        [
            one.name,
            one.hint,
            "revoked" if one.revoked_at else "active",
            age(one.created_at),
            ", ".join(one.models) or "all",
            *used[one.name],
        ]
        for one in found.keys
    ]
    return columns, rows


def _gpu(gpu: Mapping[str, Any]) -> str:
    index = gpu.get("index")
    words = [f"{gpu.get('name') or gpu.get('vendor')}", f"{size(gpu.get('memory_total'))} {gpu.get('memory_kind')}"]
    if gpu.get("driver"):
        words.append(f"driver {gpu['driver']}")
    if gpu.get("slices"):
        words.append(f"MIG, {len(gpu['slices'])} slices")
    if gpu.get("health") not in (None, "ok"):
        words.append(f"{gpu['health']}: {gpu.get('health_detail')}")
    return f"{gpu.get('pci') if index is None else index}: {', '.join(words)}"


def _holder(use: Mapping[str, Any]) -> str:
    whose = f"replica {use['replica']}" if use.get("replica") else use.get("owner")
    return f"pid {use.get('pid')} ({use.get('name')}, user {use.get('user')}), {size(use.get('memory'))}, {whose}"


def _port(port: Mapping[str, Any]) -> str:
    rate = f", {port['rate_gbps']:g} Gb/s" if port.get("rate_gbps") else ""
    return f"{port.get('hca')} port {port.get('port')}: {port.get('state')} {port.get('link_layer')}{rate}"


def node_detail(detail: NodeDetail, now: float | None = None) -> list[tuple[str, object]]:
    """Key and value, in the order a person asks for them. `now`: as in `age`."""
    node, probe = detail.node, detail.probe or {}
    # What a node is quarantined for stands in a line of its own.
    error = f": {node.link_error}" if node.link_error and node.link_error != node.quarantined else ""
    lines: list[tuple[str, object]] = [
        ("node", node.id),
        ("state", node_state(node)),
        ("address", node.address),
        ("link", f"{node.link} since {age(node.link_since, now)}{error}"),
    ]
    lines += [(one.name, f"{one.value}  ({one.source})") for one in detail.ssh]
    if detail.data_path:
        lines.append(("data path", detail.data_path))
    if node.quarantined:
        lines.append(("quarantined", node.quarantined))
    if probe:
        os_, cpu, memory = probe.get("os", {}), probe.get("cpu", {}), probe.get("memory", {})
        lines += [
            ("system", f"{os_.get('pretty')}, kernel {os_.get('kernel')}, {os_.get('arch')}"),
            ("cpu", f"{cpu.get('model')}, {cpu.get('threads')} threads, {cpu.get('level')}"),
            ("memory", f"{size(memory.get('available'))} free of {size(memory.get('total'))}"),
            ("python", f"{probe.get('python', {}).get('version')} ({probe.get('python', {}).get('executable')})"),
            ("root", f"{node.root}, {size((probe.get('root') or {}).get('free'))} free"),
        ]
        lines += [("gpu", _gpu(gpu)) for gpu in probe.get("gpus") or ()]
        lines += [("gpu use", _holder(use)) for use in probe.get("gpu_processes") or ()]
        lines += [("fabric", _port(port)) for port in probe.get("fabric") or ()]
        lines += [("unknown", f"{key}: {why}") for key, why in probe.get("unknown", {}).items()]
    lines += [(f"{one.engine}", f"{one.version} {one.state} {one.detail}") for one in detail.engines]
    lines += [("label", f"{key}={value}") for key, value in node.labels.items()]
    for one in node.problems:
        lines.append(("problem", f"{one.severity}: {one.message}"))
        if one.fix:
            lines.append(("", f"↳ {one.fix}"))
    lines.append(("probed", f"{age(node.probed_at, now)} ago" if node.probed_at else "not yet"))
    return lines
