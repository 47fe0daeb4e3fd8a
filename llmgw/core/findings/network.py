"""The node's ports and its ways out. The internet is not needed: engines and weights come over SSH from the mirror."""

from __future__ import annotations

from llmgw.core.findings.rules import Facts, Said, listed, on_preflight, rule
from llmgw.model.preflight import Preflight

FEW_PORTS = 16
FAR = 0.25
"""Seconds of round trip."""


def _free(facts: Facts) -> tuple[int, int] | None:
    """(free ports, ports in the range); None where it is not known."""
    if facts.preflight is not None and facts.preflight.ports is not None:
        return facts.preflight.ports.free, facts.preflight.ports.of
    if facts.ports is None or facts.probe is None or facts.probe.ports_in_use is None:
        return None
    low, high = facts.ports
    taken = [port for port in facts.probe.ports_in_use if low <= port <= high]
    return high - low + 1 - len(taken), high - low + 1


@rule("ports_none", "error", "Set engine_ports in llmgw.yaml to another range, or stop what listens there: `ss -ltnp`.")
def ports_none(facts: Facts) -> Said:
    """Every engine listens on a port of the range engine_ports, on 127.0.0.1."""
    free = _free(facts)
    return f"none of the {free[1]} ports for engines is free" if free is not None and free[0] == 0 else None


@rule(
    "ports_few", "warning", "Set engine_ports in llmgw.yaml to another range, or stop what listens there: `ss -ltnp`."
)
def ports_few(facts: Facts) -> Said:
    """Hardly any port of engine_ports is free: replicas will find none."""
    free = _free(facts)
    if free is None or not 0 < free[0] < min(FEW_PORTS, free[1]):
        return None
    return f"only {free[0]} of the {free[1]} ports for engines are free"


@on_preflight("dns_broken", "note", "Look at /etc/resolv.conf.")
def dns_broken(preflight: Preflight, facts: Facts) -> Said:
    """No name is resolved there. llmgw does not need it; an engine that fetches something itself would."""
    out = preflight.outbound
    return "it resolves no names" if out is not None and out.dns is False else None


@on_preflight("outbound_none", "note", "Nothing: engines and weights come through SSH from the control plane's mirror.")
def outbound_none(preflight: Preflight, facts: Facts) -> Said:
    """The node reaches nothing outside. That is enough; an engine that fetches something itself would fail."""
    out = preflight.outbound
    if out is None or not out.hosts or any(one.ok for one in out.hosts):
        return None
    proxy = f" directly (a proxy is set: {listed(out.proxies)})" if out.proxies else ""
    return f"it reaches nothing outside{proxy}: tried {listed(one.host for one in out.hosts)}"


@on_preflight("outbound_some", "note", "Nothing: engines and weights come through SSH from the control plane's mirror.")
def outbound_some(preflight: Preflight, facts: Facts) -> Said:
    """The node reaches some hosts outside and others not."""
    out = preflight.outbound
    if out is None:
        return None
    shut = [one for one in out.hosts if not one.ok]
    if not shut or len(shut) == len(out.hosts):
        return None
    return f"it does not reach {listed(f'{one.host} ({one.error})' if one.error else one.host for one in shut)}"


@rule("far_away", "note", "Nothing; the first byte of every answer takes that much longer.")
def far_away(facts: Facts) -> Said:
    """The way to the node is long: each request pays its round trip."""
    trip = facts.outside.round_trip
    return f"a round trip to it takes {trip * 1000:.0f} ms" if trip is not None and trip > FAR else None


@rule("management_slow", "note", "Add it by an address on a faster network.")
def management_slow(facts: Facts) -> Said:
    """Weights travel over the interface by which we come in: under 1 Gbit/s a large model takes hours."""
    probe = facts.probe
    if probe is None or probe.management is None or probe.interfaces is None:
        return None
    name = probe.management.interface
    ours = next((one for one in probe.interfaces if one.name == name and one.kind == "physical"), None)
    if ours is None or not ours.speed_mbps or ours.speed_mbps >= 1000:
        return None
    return f"we come in by {ours.name}, which runs at {ours.speed_mbps} Mbit/s"
