"""Fabrics: the adapters by which nodes that hold one model together talk. Judged where fabrics are declared."""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.core.findings.rules import Facts, Said, listed, on_preflight, on_probe, raised, rule
from llmgw.core.packages import VERBS
from llmgw.model.preflight import Preflight
from llmgw.model.probe import HcaPort, Probe

LEAST_ADAPTERS = 2
LEAST_MEMLOCK = 1 << 30
"""Bytes: RDMA pins what it sends. Distributions allow 64 KiB to an eighth of the memory."""


def _ports(facts: Facts, adapter: str) -> list[HcaPort]:
    hca, _, port = adapter.partition(":")
    there = facts.probe.fabric or () if facts.probe else ()
    return [one for one in there if one.hca == hca and (not port or str(one.port) == port)]


def _declared(facts: Facts) -> Iterator[tuple[str, HcaPort]]:
    for name, adapters in facts.outside.fabrics.items():
        for adapter in adapters:
            for port in _ports(facts, adapter):
                yield name, port


def _name(port: HcaPort) -> str:
    return f"{port.hca} port {port.port}"


@rule(
    "fabric_adapter_missing", "warning", "Name the adapters that are there with --fabric; `ls /sys/class/infiniband`."
)
def fabric_adapter_missing(facts: Facts) -> Said:
    """An adapter that was declared for a fabric is not on the node."""
    if facts.probe is None or facts.probe.fabric is None:
        return None
    fabrics = facts.outside.fabrics.items()
    absent = [f"{one} ({name})" for name, adapters in fabrics for one in adapters if not _ports(facts, one)]
    there = listed(sorted({port.hca for port in facts.probe.fabric})) or "none"
    return f"the adapter {listed(absent)} is declared and not there; it has {there}" if absent else None


@rule("fabric_one_adapter", "note", "Declare the others with --fabric NAME:HCA,HCA, when there are others.")
def fabric_one_adapter(facts: Facts) -> Said:
    """A fabric with a single adapter a node has half the width, and no other way when it fails."""
    if facts.probe is None:
        return None
    few = [name for name, adapters in facts.outside.fabrics.items() if len(adapters) < LEAST_ADAPTERS]
    return f"the fabric {listed(few)} has fewer than {LEAST_ADAPTERS} adapters of this node" if few else None


@rule("fabric_port_down", "warning", "Look at the cable and the switch, then at `ibstat`.")
def fabric_port_down(facts: Facts) -> Said:
    """A port of a declared fabric carries nothing."""
    down = []
    for name, port in _declared(facts):
        if port.state in (None, "ACTIVE") or (port.state in ("INIT", "ARMED") and port.link_layer == "InfiniBand"):
            continue  # INIT on InfiniBand: the link is up and waits for a subnet manager, which is said below
        down.append(f"{_name(port)} of {name} is {port.state} ({port.phys_state or '?'})")
    if not down:
        return None
    return listed(down), "Look at the cable and the switch; `ip link set IF up` where the interface is down."


@rule("fabric_no_subnet_manager", "warning", "Start one on a node or a switch: `sudo systemctl enable --now opensm`.")
def fabric_no_subnet_manager(facts: Facts) -> Said:
    """An InfiniBand port that has seen no subnet manager (SM lid 0) gets no address and carries nothing."""
    lost = [
        f"{_name(port)} ({name})"
        for name, port in _declared(facts)
        if port.link_layer == "InfiniBand" and port.sm_lid == 0 and port.state in ("INIT", "ARMED", "ACTIVE", None)
    ]
    if not lost:
        return None
    steps = (facts.install("opensm"), facts.root("systemctl enable --now opensm"))
    fix = f"On one node of the fabric, unless a switch does it: `{' && '.join(filter(None, steps))}`."
    return f"no subnet manager is seen by {listed(lost)}", fix


@rule("fabric_split", "warning", "Declare adapters of one subnet as one fabric.")
def fabric_split(facts: Facts) -> Said:
    """Adapters declared as one fabric that are on different subnets or of different kinds do not reach one another."""
    split = []
    for name in facts.outside.fabrics:
        ports = [port for each, port in _declared(facts) if each == name]
        kinds = {port.link_layer for port in ports if port.link_layer}
        subnets = {port.subnet_prefix for port in ports if port.link_layer == "InfiniBand" and port.subnet_prefix}
        if len(kinds) > 1:
            split.append(f"{name} mixes {listed(sorted(kinds))}")
        elif len(subnets) > 1:
            split.append(f"{name} lies on the subnets {listed(sorted(subnets))}")
    return f"the fabric {listed(split)}" if split else None


@rule("fabric_rates_differ", "note", "Look at the cable of the slower one with `ibstat`.")
def fabric_rates_differ(facts: Facts) -> Said:
    """One port of a fabric runs slower than the others and sets the pace of all."""
    for name in facts.outside.fabrics:
        ports = [port for each, port in _declared(facts) if each == name and port.rate_gbps]
        rates = sorted({port.rate_gbps or 0.0 for port in ports})
        if len(rates) > 1:
            slow = listed(_name(port) for port in ports if port.rate_gbps == rates[0])
            return f"{slow} of {name} runs at {rates[0]:g} Gbit/s, others at {rates[-1]:g}"
    return None


@rule("fabric_no_address", "warning", "Give the interface an address: RoCE goes over IP.")
def fabric_no_address(facts: Facts) -> Said:
    """A RoCE port whose interface has no address: no other node finds it."""
    interfaces = (facts.probe.interfaces or ()) if facts.probe else ()
    addressed = {one.name for one in interfaces if one.addresses}
    bare = [
        f"{_name(port)} ({listed(port.nets)})"
        for _, port in _declared(facts)
        if port.link_layer == "Ethernet" and interfaces and port.nets and not set(port.nets) & addressed
    ]
    return f"no address on the interface of {listed(bare)}" if bare else None


@rule("fabric_no_peermem", "warning", "sudo modprobe nvidia-peermem")
def fabric_no_peermem(facts: Facts) -> Said:
    """Without GPUDirect RDMA what goes over the fabric is copied through the machine's memory.

    The module nvidia-peermem does it, or DMA-BUF with the open kernel modules from Linux 5.12 on: NVIDIA's GPU Operator
    documentation, "GPUDirect RDMA".
    """
    probe = facts.probe
    if probe is None or probe.nvidia is None or probe.nvidia.peermem is not False or not facts.outside.fabrics:
        return None
    message = (
        "GPUDirect RDMA is off: the module nvidia-peermem is not loaded (NVIDIA's open kernel modules do without it "
        "from Linux 5.12 on, by DMA-BUF)"
    )
    return message, facts.root("modprobe nvidia-peermem")


@rule("fabric_tools_missing", "note", "Install infiniband-diags.")
def fabric_tools_missing(facts: Facts) -> Said:
    """ibstat and its like show what is wrong with an InfiniBand fabric; they are missed when it is."""
    if facts.preflight is None or facts.preflight.tools.get("ibstat", "?") is not None:
        return None
    if not any(port.link_layer == "InfiniBand" for _, port in _declared(facts)):
        return None
    return "infiniband-diags is not installed", facts.install("infiniband-diags") or "Install infiniband-diags there."


@on_preflight("fabric_no_verbs", "warning", "Install libibverbs with the driver of the adapters.")
def fabric_no_verbs(preflight: Preflight, facts: Facts) -> Said:
    """Without libibverbs NCCL finds no adapter and says nothing of it: it uses plain sockets, many times slower."""
    if not facts.outside.fabrics or preflight.libraries.get(VERBS) is not False:
        return None
    fix = facts.install("libibverbs") or "Install libibverbs with the driver of the adapters there."
    return f"{VERBS} is not found: NCCL would use plain sockets in place of the fabric", fix


@on_probe("memlock_low", "warning", "Raise `memlock` in /etc/security/limits.conf, then log in again.")
def memlock_low(probe: Probe, facts: Facts) -> Said:
    """RDMA pins the memory it sends from; with a low limit engines fail as soon as they talk over the fabric."""
    limit = probe.limits.memlock if probe.limits else None
    active = any(port.state == "ACTIVE" for port in probe.fabric or ())
    if limit is None or not 0 <= limit < LEAST_MEMLOCK or not (facts.outside.fabrics or active) or probe.user.uid == 0:
        return None
    fix = raised(facts, "memlock", "unlimited", "soft", "hard")
    return f"{facts.user} may lock {limit >> 10} KiB of memory, RDMA needs it unlimited", fix
