"""GPUs of any vendor: their health, who holds their memory, who may use them; and the drivers of AMD and Intel."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.core.findings.rules import Facts, Said, arg, listed, many, on_preflight, on_probe, quoted
from llmgw.core.fit import gib
from llmgw.engines.base import MIB
from llmgw.model.gpu import Gpu, GpuProcess
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe

UNLISTED = "does not show it"
"""In the probe's words for a card that is on PCI only."""
HELD = 256 * MIB
"""A desktop holds less than this of its card."""


def gpu_names(gpus: Iterable[Gpu]) -> str:
    """`GPU 0, 3`, by index; by PCI address where the tool shows none."""
    return "GPU " + listed(f"{gpu.index}" if gpu.index is not None else (gpu.pci or "?") for gpu in gpus)


def lost_gpus(probe: Probe) -> list[Gpu]:
    """Those of which the driver says so; a card that it only does not list may just be without it."""
    return [gpu for gpu in probe.gpus if gpu.health == "lost" and UNLISTED not in (gpu.health_detail or "")]


@on_probe(
    "gpu_lost", "error", "Drain the node and reboot it; when it comes again the card, its slot or its power is broken."
)
def gpu_lost(probe: Probe, facts: Facts) -> Said:
    """The driver has lost a card: it fell off the bus or answers no more."""
    lost = lost_gpus(probe)
    if not lost:
        return None
    why = next((gpu.health_detail for gpu in lost if gpu.health_detail), None)
    return f"{gpu_names(lost)} is lost{': ' + quoted(why) if why else ''}"


@on_probe(
    "gpu_unhealthy", "warning", "Look for Xid errors in dmesg; `sudo nvidia-smi --gpu-reset -i N`, or reboot the node."
)
def gpu_unhealthy(probe: Probe, facts: Facts) -> Said:
    """The driver answers ERR! or Unknown Error for a card: part of it does not work."""
    # Where nvidia-smi fails as a whole no single card is to blame.
    failed = probe.nvidia is not None and probe.nvidia.smi_error is not None
    sick = [gpu for gpu in probe.gpus if gpu.health == "error" and not (failed and gpu.index is None)]
    if not sick:
        return None
    why = next((gpu.health_detail for gpu in sick if gpu.health_detail), None)
    return f"{gpu_names(sick)} reports errors{': ' + quoted(why) if why else ''}"


@on_probe(
    "gpu_ecc_errors",
    "warning",
    "Drain the node, `sudo nvidia-smi --gpu-reset`; when they come again have the card replaced.",
)
def gpu_ecc_errors(probe: Probe, facts: Facts) -> Said:
    """Uncorrected memory errors: what was computed with that memory was wrong or was ended."""
    sick = [gpu for gpu in probe.gpus if gpu.ecc_uncorrected]
    if not sick:
        return None
    count = sum(gpu.ecc_uncorrected or 0 for gpu in sick)
    return f"{gpu_names(sick)} had {many(count, 'uncorrected memory error')} since the driver was loaded"


@on_probe("gpu_hot", "warning", "Look at its fans and the air around it.")
def gpu_hot(probe: Probe, facts: Facts) -> Said:
    """A card at 90 °C or more slows itself down, and stops a little above."""
    hot = [gpu for gpu in probe.gpus if gpu.temperature is not None and 90 <= gpu.temperature < 200]
    return f"{gpu_names(hot)} is at {max(gpu.temperature or 0 for gpu in hot):.0f} °C" if hot else None


@on_probe(
    "gpu_link_narrow", "warning", "Seat the card again, look at its slot and riser, and at the BIOS's PCIe settings."
)
def gpu_link_narrow(probe: Probe, facts: Facts) -> Said:
    """A PCIe link narrower than its twin's, or of a quarter of its lanes, or slow under load: loading takes longer."""
    if probe.virtualization not in (None, "none"):
        return None  # what a virtual machine shows of its slots is made up
    narrow = []
    for gpu in probe.gpus:
        link = gpu.pcie
        if link is None:
            continue
        width, most = link.width or 0, link.max_width or 0
        twins = [one.pcie.width or 0 for one in probe.gpus if one.name == gpu.name and one.pcie]
        if 0 < width < max(twins) or 0 < width * 4 <= most:
            narrow.append(f"{gpu_names([gpu])} runs on {width} of {most or max(twins)} PCIe lanes")
        elif (gpu.utilization or 0) >= 10 and 0 < (link.generation or 0) < (link.max_generation or 0):
            # An idle card trains its link down to save power: that is no fault.
            narrow.append(f"{gpu_names([gpu])} runs at PCIe {link.generation} in place of {link.max_generation}")
    return listed(narrow) if narrow else None


def _holding(probe: Probe, owner: str) -> list[GpuProcess]:
    return [use for use in probe.gpu_processes if use.owner == owner and (use.memory or 0) >= HELD]


def _kill(uses: list[GpuProcess], facts: Facts) -> str:
    command = f"kill {' '.join(str(use.pid) for use in uses)}"
    return command if all(use.user == facts.user for use in uses) else facts.root(command)


def _held(probe: Probe, use: GpuProcess) -> str:
    places = {}
    for gpu in probe.gpus:
        places[gpu.uuid] = gpu.index
        places.update({one.uuid: gpu.index for one in gpu.slices})
    where = f" of GPU {places[use.gpu]}" if places.get(use.gpu) is not None else ""
    return f"{use.name or 'a process'} (pid {use.pid}, user {use.user or '?'}) holds {gib(use.memory or 0)}{where}"


@on_probe("gpu_memory_held", "warning", "Ask the user, or end the process: `kill PID`.")
def gpu_memory_held(probe: Probe, facts: Facts) -> Said:
    """Somebody else's process holds memory of a GPU: nothing is placed on that GPU while it does."""
    uses = sorted(_holding(probe, "theirs"), key=lambda use: -(use.memory or 0))
    if not uses:
        return None
    kill = _kill(uses[:4], facts)
    return listed(
        _held(probe, use) for use in uses
    ), f"Ask {listed(sorted({use.user or '?' for use in uses}))}, or `{kill}`."


@on_probe("gpu_memory_orphaned", "warning", "kill PID")
def gpu_memory_orphaned(probe: Probe, facts: Facts) -> Said:
    """A left-over process of an engine of ours holds memory of a GPU: its engine is gone."""
    uses = _holding(probe, "orphan")
    if not uses:
        return None
    return (
        f"left over: {listed(_held(probe, use) for use in uses)}",
        _kill(uses[:8], facts),
    )


@on_probe("gpus_mixed", "note")
def gpus_mixed(probe: Probe, facts: Facts) -> Said:
    """GPUs of several kinds: a replica on several of them goes at the pace of the slowest; gpu_class picks."""
    names = [gpu.name for gpu in probe.gpus if gpu.name and gpu.memory_kind == "dedicated" and not gpu.integrated]
    kinds = {name: names.count(name) for name in names}
    if len(kinds) < 2:
        return None
    return f"its GPUs are of several kinds: {listed(f'{count} × {name}' for name, count in kinds.items())}", ""


@on_probe(
    "amd_no_driver",
    "warning",
    "Run `sudo modprobe amdgpu`; where there is none, install the distribution's newer kernel.",
)
def amd_no_driver(probe: Probe, facts: Facts) -> Said:
    """An AMD card that the amdgpu driver does not hold serves no engine."""
    cards = [card for card in (probe.amd.cards if probe.amd else ()) if card.driver not in ("amdgpu", "vfio-pci")]
    if not cards:
        return None
    held = listed(f"{card.pci} ({card.driver or 'no driver'})" for card in cards)
    return f"the amdgpu driver does not hold the AMD card {held}", facts.root("modprobe amdgpu")


@on_probe("amd_no_rocm", "note", "Install ROCm, or use an engine that runs on Vulkan.")
def amd_no_rocm(probe: Probe, facts: Facts) -> Said:
    """Engines for AMD's data centre cards need ROCm; without it those for Vulkan remain."""
    gpus = [gpu for gpu in probe.gpus if gpu.vendor == "amd" and not gpu.integrated]
    if not gpus or probe.amd is None or probe.amd.rocm is not None or probe.amd.driver_loaded is False:
        return None
    return f"there is no ROCm for {listed(gpu.name or gpu.pci or 'an AMD GPU' for gpu in gpus)}"


@on_probe(
    "intel_no_driver", "note", "Run `sudo modprobe xe || sudo modprobe i915`; where there is none, a newer kernel."
)
def intel_no_driver(probe: Probe, facts: Facts) -> Said:
    """An Intel card that neither i915 nor xe holds serves no engine."""
    cards = probe.intel.cards if probe.intel else ()
    cards = tuple(card for card in cards if card.driver not in ("i915", "xe", "vfio-pci"))
    return f"no driver holds the Intel card {listed(card.pci for card in cards)}" if cards else None


@on_preflight("gpu_no_access", "warning", "Run `sudo usermod -aG render,video USER`, then log in again.")
def gpu_no_access(preflight: Preflight, facts: Facts) -> Said:
    """The GPU is there and this user may not open it: /dev/kfd and /dev/dri belong to the groups render and video."""
    shut = [one for one in preflight.devices if not one.ok and not one.path.startswith("/dev/infiniband")]
    if not shut:
        return None
    wanted = sorted({one.group for one in shut if one.group and one.group != "root"})
    message = f"{facts.user} may not open {listed(one.path for one in shut)}"
    if not wanted:
        return message, _OF_NVIDIA if all(one.path.startswith("/dev/nvidia") for one in shut) else _by_udev(facts)
    join = facts.root(f"usermod -aG {arg(','.join(wanted))} {arg(facts.user)}")
    return message, f"Run `{join}`, then log in again."


_OF_NVIDIA = (
    "Give them to a group of this user's: `options nvidia NVreg_DeviceFileGID=GID NVreg_DeviceFileMode=0660` in "
    "/etc/modprobe.d/nvidia.conf, then reboot."
)


def _by_udev(facts: Facts) -> str:
    """Doors of root's alone are given to the group that has them elsewhere; what chmod did would be undone at boot."""
    rule = arg('KERNEL=="kfd|renderD*", GROUP="render", MODE="0660"')
    steps = (
        f"echo {rule} | {facts.root('tee /etc/udev/rules.d/70-llmgw.rules')}",
        facts.root("udevadm control --reload"),
        facts.root("udevadm trigger"),
        facts.root(f"usermod -aG render {arg(facts.user)}"),
    )
    return f"Run `{' && '.join(steps)}`, then log in again."


@on_probe("igpu_beside", "note")
def igpu_beside(probe: Probe, facts: Facts) -> Said:
    """A GPU in the CPU's package beside a real one: models go to the dedicated one."""
    inside = [gpu for gpu in probe.gpus if gpu.integrated]
    beside = [gpu for gpu in probe.gpus if gpu.integrated is not True and gpu.memory_kind == "dedicated"]
    if not inside or not beside:
        return None
    return (
        f"{inside[0].name or 'an integrated GPU'} is integrated and lies beside {listed(gpu.name for gpu in beside)}",
        "",
    )


@on_probe("gpu_unified", "note")
def gpu_unified(probe: Probe, facts: Facts) -> Said:
    """The GPU has no memory of its own: what an engine takes, the system has less, and the other way round."""
    kinds = ("unified", "shared")
    gpus = [gpu for gpu in probe.gpus if gpu.memory_kind in kinds]
    if not gpus or any(gpu.memory_kind == "dedicated" for gpu in probe.gpus):
        return None
    names = sorted({gpu.name or "its GPU" for gpu in gpus})
    return f"GPU and CPU have one memory: {listed(names)}", ""
