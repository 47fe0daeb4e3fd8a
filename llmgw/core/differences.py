"""What has changed between two probes of a node, in sentences. Only what an operator would want to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from llmgw.core.fit import gib
from llmgw.model.gpu import Gpu
from llmgw.model.probe import Disk, HcaPort, Interface, Probe

MOST = 50
"""More sentences than this are counted, not said: a node may come back as another machine, or lie."""
NOISE = 0.01
"""The kernel counts a per cent of the memory differently after an update."""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """`driver 550.54 → 560.35`, `GPU 3 (H100) gone`. A fact that could not be read this time is no difference.

    Both are documents of `remote_scripts/probe.py`; one that is none (of a version long gone) differs in nothing.
    """
    try:
        old, new = Probe.model_validate(before), Probe.model_validate(after)
    except ValidationError:
        return []
    found = [*_machine(old, new), *_gpus(old, new), *_xids(old, new), *_fabric(old, new), *_places(old, new)]
    return found if len(found) <= MOST else [*found[:MOST], f"and {len(found) - MOST} more differences"]


def _machine(old: Probe, new: Probe) -> Iterator[str]:
    if old.boot_id != new.boot_id:
        yield "was rebooted"
    yield from _change("hostname", old.hostname, new.hostname)
    yield from _change("operating system", old.os.pretty, new.os.pretty)
    yield from _change("kernel", old.os.kernel, new.os.kernel)
    yield from _change("python", old.python.version, new.python.version)
    yield from _change("CPU", old.cpu.model, new.cpu.model)
    yield from _change("CPU threads", old.cpu.threads, new.cpu.threads)
    yield from _change("CPU level", old.cpu.level, new.cpu.level)
    yield from _memory("memory", old.memory.total, new.memory.total)
    if _size(old.memory.cgroup_limit) != _size(new.memory.cgroup_limit) and "memory" not in new.unknown:
        yield f"memory limit {_size(old.memory.cgroup_limit)} → {_size(new.memory.cgroup_limit)}"
    if old.limits and new.limits:
        yield from _change("limit of open files", old.limits.nofile, new.limits.nofile)
        yield from _change("limit of locked memory", old.limits.memlock, new.limits.memlock)
        yield from _change("CPU quota", old.limits.cpu_quota, new.limits.cpu_quota)
    if old.nvidia and new.nvidia:
        yield from _change("driver", old.nvidia.driver, new.nvidia.driver)
        yield from _change("CUDA", old.nvidia.cuda, new.nvidia.cuda)
        yield from _running("fabric manager", old.nvidia.fabric_manager.running, new.nvidia.fabric_manager.running)
        yield from _running("IMEX", old.nvidia.imex.running, new.nvidia.imex.running)
    if old.amd and new.amd:
        yield from _change("ROCm", old.amd.rocm, new.amd.rocm)
    if old.owner and new.owner:
        yield from _change("control plane", old.owner.controller_id, new.owner.controller_id)


# ---- GPUs ----


def _gpus(old: Probe, new: Probe) -> Iterator[str]:
    pairs = [(gpu, _same(gpu, new.gpus)) for gpu in old.gpus]
    unread = {"gpus", "pci"} & new.unknown.keys()
    for gpu, now in pairs:
        if now is not None:
            yield from _gpu(gpu, now)
        elif not unread and f"gpus.{gpu.vendor}" not in new.unknown:
            yield f"{_name(gpu)} gone"
    if not {"gpus", "pci"} & old.unknown.keys():
        met = [now for _, now in pairs]
        for gpu in new.gpus:
            if gpu not in met and f"gpus.{gpu.vendor}" not in old.unknown:
                yield f"{_name(gpu)} is new"


def _same(gpu: Gpu, others: tuple[Gpu, ...]) -> Gpu | None:
    """By its uuid, else by its place: a card that has fallen off the bus does not say who it is."""
    for other in others:
        if gpu.uuid is not None and other.uuid == gpu.uuid:
            return other
    unnamed = (other for other in others if other.uuid is None or gpu.uuid is None)
    return next((other for other in unnamed if gpu.pci is not None and _place(other) == _place(gpu)), None)


def _place(gpu: Gpu) -> str:
    return (gpu.pci or "").lower()[-12:]


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index if gpu.index is not None else gpu.pci} ({gpu.name or gpu.vendor})"


def _gpu(old: Gpu, new: Gpu) -> Iterator[str]:
    name = _name(old)
    if new.health in ("lost", "error") and old.health != new.health:
        told = f": {new.health_detail}" if new.health_detail else ""
        yield f"{name} {'lost' if new.health == 'lost' else 'in error'}{told}"
    elif new.health == "ok" and old.health in ("lost", "error"):
        yield f"{name} is well again"
    if None not in (old.mig, new.mig) and old.mig != new.mig:
        yield f"{name} MIG {'on' if new.mig else 'off'}"
    slices, now = (Counter(part.name or "?" for part in gpu.slices) for gpu in (old, new))
    if new.mig is not None and slices != now:
        yield f"{name} MIG slices {_counted(slices)} → {_counted(now)}"
    yield from _memory(f"{name} memory", old.memory_total, new.memory_total)
    yield from _change(f"{name} NVLink fabric", old.fabric_state, new.fabric_state)
    if old.persistence is not None and new.persistence is not None and old.persistence != new.persistence:
        yield f"{name} persistence mode {'on' if new.persistence else 'off'}"
    if (new.ecc_uncorrected or 0) > (old.ecc_uncorrected or 0) and old.ecc_uncorrected is not None:
        yield f"{name} uncorrected memory errors {old.ecc_uncorrected} → {new.ecc_uncorrected}"


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in sorted(names.items())) or "none"


def _xids(old: Probe, new: Probe) -> Iterator[str]:
    """Since a log is read from its beginning each time, only what it did not have before is new."""
    if old.xid is None or new.xid is None:
        return
    counts = {(one.pci, one.kind, one.xid): one.count for one in old.xid}
    for one in new.xid:
        more = one.count - (counts.get((one.pci, one.kind, one.xid), 0) if old.boot_id == new.boot_id else 0)
        if more > 0:
            kind = "SXid" if one.kind == "sxid" else "Xid"
            times = f" ({more} times)" if more > 1 else ""
            yield f"new {kind} {one.xid} of {one.pci or '?'}{times}: {one.text}".rstrip(": ")


# ---- RDMA, interfaces, disks ----


def _fabric(old: Probe, new: Probe) -> Iterator[str]:
    if old.fabric is not None and new.fabric is not None:
        before, after = ({(port.hca, port.port): port for port in probe.fabric or ()} for probe in (old, new))
        yield from (f"RDMA {hca} port {port} gone" for hca, port in sorted(before.keys() - after.keys()))
        yield from (f"RDMA {hca} port {port} is new" for hca, port in sorted(after.keys() - before.keys()))
        for key in sorted(before.keys() & after.keys()):
            yield from _port(f"RDMA {key[0]} port {key[1]}", before[key], after[key])
    if old.interfaces is not None and new.interfaces is not None:
        links, now = ({each.name: each for each in probe.interfaces or () if _lasting(each)} for probe in (old, new))
        yield from (f"interface {name} gone" for name in sorted(links.keys() - now.keys()))
        yield from (f"interface {name} is new" for name in sorted(now.keys() - links.keys()))
        for name in sorted(links.keys() & now.keys()):
            yield from _interface(links[name], now[name])


def _port(name: str, old: HcaPort, new: HcaPort) -> Iterator[str]:
    if old.state != new.state and None not in (old.state, new.state):
        physical = f" ({new.phys_state})" if new.phys_state and new.state != "ACTIVE" else ""
        yield f"{name} {old.state} → {new.state}{physical}"
    elif new.state == "ACTIVE":  # a port that is down tells a rate too, of no meaning
        yield from _change(f"{name} Gbit/s", old.rate_gbps, new.rate_gbps)
    if old.sm_lid and new.sm_lid == 0:
        yield f"{name} has lost its subnet manager"
    yield from _change(f"{name} subnet", old.subnet_prefix, new.subnet_prefix)


def _lasting(each: Interface) -> bool:
    """Those of containers and tunnels come and go."""
    return each.kind in ("physical", "bond")


def _interface(old: Interface, new: Interface) -> Iterator[str]:
    yield from _change(f"interface {old.name}", old.state, new.state)
    if new.state == "up":
        yield from _change(f"interface {old.name} Mbit/s", old.speed_mbps, new.speed_mbps)
    # Of IPv6 the temporary ones change daily: they are no news.
    before, after = ([text for text in each.addresses if ":" not in text] for each in (old, new))
    if before != after:
        yield f"interface {old.name} address {', '.join(before) or 'none'} → {', '.join(after) or 'none'}"


def _places(old: Probe, new: Probe) -> Iterator[str]:
    before, after = ({disk.path: disk for disk in probe.disks} for probe in (old, new))
    for path in sorted(before.keys() & after.keys()):
        yield from _disk(before[path], after[path])
    if old.root.path == new.root.path and old.root.writable and new.root.writable is False:
        why = f": it {new.root.fault}" if new.root.fault else ""
        yield f"the root {new.root.path} can no longer be written{why}"


def _disk(old: Disk, new: Disk) -> Iterator[str]:
    name = f"disk {old.path}"
    yield from _change(name, old.device, new.device)
    if None not in (old.read_only, new.read_only) and old.read_only != new.read_only:
        yield f"{name} is {'read-only now' if new.read_only else 'writable again'}"
    if None not in (old.noexec, new.noexec) and old.noexec != new.noexec:
        yield f"{name} is mounted {'noexec' if new.noexec else 'without noexec'} now"


# ---- words ----


def _change(name: str, old: object, new: object) -> Iterator[str]:
    if old is not None and new is not None and old != new:
        yield f"{name} {old} → {new}"


def _running(name: str, old: bool | None, new: bool | None) -> Iterator[str]:
    if old is not None and new is not None and old != new:
        yield f"the {name} {'runs again' if new else 'no longer runs'}"


def _memory(name: str, old: int | None, new: int | None) -> Iterator[str]:
    if old and new is not None and abs(new - old) > old * NOISE:
        yield f"{name} {gib(old)} → {gib(new)}"


def _size(limit: int | None) -> str:
    return gib(limit) if limit else "none"
