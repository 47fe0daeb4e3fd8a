"""Which RDMA adapters of a node reach one another: what can be read off them before anybody is asked for a name."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from llmgw.model.probe import HcaPort, Probe


@dataclass(frozen=True)
class Group:
    """Active adapters on one network: under one subnet manager, or in one RoCE network."""

    kind: str
    """`InfiniBand` or `RoCE`."""
    network: str
    """`subnet manager at LID 1`, `10.0.7.0/24`."""
    adapters: tuple[str, ...]
    """`mlx5_0`; `mlx5_0:1` where the ports of one adapter are on several networks."""

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(self.adapters)} ({self.network})"


def groups(probe: Probe) -> list[Group]:
    """The groups of a node, InfiniBand first. Ports that are down belong to none."""
    found: dict[tuple[str, str], list[HcaPort]] = {}
    networks: dict[str, set[tuple[str, str]]] = {}
    for port in probe.fabric or ():
        if (port.state or "").upper() == "ACTIVE":
            kind = "RoCE" if port.link_layer == "Ethernet" else "InfiniBand"
            place = (kind, _roce(port, probe) if kind == "RoCE" else _infiniband(port))
            found.setdefault(place, []).append(port)
            networks.setdefault(port.hca, set()).add(place)

    def name(port: HcaPort) -> str:
        return port.hca if len(networks[port.hca]) == 1 else f"{port.hca}:{port.port}"

    return [Group(*place, tuple(dict.fromkeys(map(name, ports)))) for place, ports in sorted(found.items())]


def _infiniband(port: HcaPort) -> str:
    """Ports of one subnet share its prefix and its manager's LID (InfiniBand Architecture, 14.2.5.6 PortInfo)."""
    manager = f"subnet manager at LID {port.sm_lid}" if port.sm_lid else "no subnet manager"
    return f"{manager}, subnet {port.subnet_prefix}" if port.subnet_prefix else manager


def _roce(port: HcaPort, probe: Probe) -> str:
    for interface in probe.interfaces or ():
        if interface.name in port.nets:
            for address in interface.addresses:
                try:
                    here = ipaddress.ip_interface(address)
                except ValueError:
                    continue
                if not here.ip.is_link_local:
                    return str(here.network)
    return "no address"
