"""NVIDIA's driver and what it needs around it: the module, the tool, the fabric manager, IMEX, persistence, MIG."""

from __future__ import annotations

from llmgw.core.findings.cards import gpu_names, lost_gpus
from llmgw.core.findings.rules import Facts, Said, arg, listed, many, on_probe, quoted, version
from llmgw.model.gpu import Card, Gpu
from llmgw.model.probe import Probe

GIVEN_AWAY = frozenset({"vfio-pci", "pci-stub", "xen-pciback"})
CUDA_12, CUDA_13 = 525, 580
"""The first drivers that serve every CUDA 12.x and 13.x: NVIDIA, "CUDA Compatibility", minor version compatibility."""
_NEEDS_DRIVER = "Install the NVIDIA driver, or say where nvidia-smi is with --nvidia-smi."


def _cards(probe: Probe) -> tuple[Card, ...]:
    """Those on PCI that are not handed to a virtual machine and not held by nouveau."""
    cards = probe.nvidia.cards if probe.nvidia else ()
    return tuple(card for card in cards if card.driver not in GIVEN_AWAY and card.driver != "nouveau")


def _gpus(probe: Probe) -> list[Gpu]:
    return [gpu for gpu in probe.gpus if gpu.vendor == "nvidia"]


@on_probe("gpu_driver_mismatch", "error", "Reboot the node, or unload and reload the nvidia modules.")
def gpu_driver_mismatch(probe: Probe, facts: Facts) -> Said:
    """The driver's library and its kernel module are of two versions: it was updated under a running module."""
    nvidia = probe.nvidia
    if nvidia is None or nvidia.smi_error is None or nvidia.smi_error.code != "mismatch":
        return None
    new = f" to {nvidia.library}" if nvidia.library else ""
    old = nvidia.kernel_module or "?"
    message = f"the NVIDIA driver was updated{new} while its old kernel module ({old}) is still loaded"
    return message, facts.root("reboot")


@on_probe("gpu_tool_hangs", "error", "Look for Xid errors in dmesg; a hanging GPU needs a reboot.")
def gpu_tool_hangs(probe: Probe, facts: Facts) -> Said:
    """nvidia-smi gives no answer in time: mostly a card that has stopped answering its driver."""
    nvidia = probe.nvidia
    if nvidia is None or nvidia.smi_error is None or nvidia.smi_error.code != "hangs":
        return None
    return quoted(nvidia.smi_error.text) or "nvidia-smi does not answer"


@on_probe("gpu_error", "error", "Install or repair the NVIDIA driver, then probe again.")
def gpu_error(probe: Probe, facts: Facts) -> Said:
    """nvidia-smi fails although there is a card or a loaded module."""
    nvidia = probe.nvidia
    if nvidia is None or nvidia.smi_error is None or nvidia.smi_error.code not in ("failed", "nothing"):
        return None
    if (not _cards(probe) and not nvidia.kernel_module) or lost_gpus(probe):
        return None
    message = f"nvidia-smi: {quoted(nvidia.smi_error.text) or 'printed nothing'}"
    if probe.container and "NVML: Unknown Error" in message:
        # NVIDIA Container Toolkit, "Troubleshooting": containers losing access to GPUs.
        return message, "Restart the container: systemd's daemon-reload has taken the GPUs away from it."
    return message


@on_probe("gpu_no_driver", "error", _NEEDS_DRIVER)
def gpu_no_driver(probe: Probe, facts: Facts) -> Said:
    """A card of NVIDIA is on PCI and its driver is not installed."""
    cards = _cards(probe)
    if probe.nvidia is None or not cards or probe.nvidia.smi is not None:
        return None
    message = f"{many(len(cards), 'NVIDIA card')} on PCI, but no nvidia-smi was found"
    if probe.os.id == "ubuntu":
        install = facts.root("ubuntu-drivers install")
        return message, f"Run `{install}`, then reboot; or say where it is with --nvidia-smi."
    return message, _NEEDS_DRIVER


@on_probe("gpu_nouveau", "error", "Install the NVIDIA driver (it bars nouveau), then reboot.")
def gpu_nouveau(probe: Probe, facts: Facts) -> Said:
    """The kernel's own driver nouveau holds the card: no engine can use it, and NVIDIA's driver cannot take it."""
    held = [card.pci for card in (probe.nvidia.cards if probe.nvidia else ()) if card.driver == "nouveau"]
    if not held:
        return None
    bar = facts.root(
        "sh -c 'printf \"blacklist nouveau\\noptions nouveau modeset=0\\n\" > /etc/modprobe.d/no-nouveau.conf'"
    )
    return f"nouveau holds the NVIDIA card {listed(held)}", f"Install the NVIDIA driver, run `{bar}`, then reboot."


@on_probe("gpu_given_away", "note")
def gpu_given_away(probe: Probe, facts: Facts) -> Said:
    """The card is bound to vfio-pci: it is meant for a virtual machine, and is none of this node's."""
    cards = (*(probe.nvidia.cards if probe.nvidia else ()), *(probe.amd.cards if probe.amd else ()))
    away = [card.pci for card in cards if card.driver in GIVEN_AWAY]
    return (f"kept for a virtual machine (vfio-pci): {listed(away)}", "") if away else None


@on_probe("gpu_missing", "error", "Look for Xid errors in dmesg: a card may have fallen off the bus. Reboot the node.")
def gpu_missing(probe: Probe, facts: Facts) -> Said:
    """PCI has more cards than the driver shows: one did not start, or fell off the bus."""
    nvidia, cards = probe.nvidia, _cards(probe)
    if nvidia is None or nvidia.smi is None or nvidia.smi_error is not None:
        return None
    shown = [gpu for gpu in _gpus(probe) if gpu.index is not None]
    lost = [gpu for gpu in lost_gpus(probe) if gpu.index is None]
    if len(cards) - len(lost) <= len(shown):
        return None
    absent = [card.pci for card in cards if card.pci not in {gpu.pci for gpu in (*shown, *lost)}]
    where = f" ({listed(absent)} is missing)" if 0 < len(absent) < len(cards) else ""
    return f"{many(len(cards), 'NVIDIA card')} on PCI, the driver shows {len(shown)}{where}"


@on_probe("gpu_driver_old", "warning", "Install a newer NVIDIA driver, 580 or later.")
def gpu_driver_old(probe: Probe, facts: Facts) -> Said:
    """The driver serves no CUDA 12: engines of today do not start on it."""
    driver = (probe.nvidia.driver or probe.nvidia.kernel_module) if probe.nvidia else None
    major = version(driver)[:1]
    if not major or major[0] >= CUDA_12:
        return None
    level = f" (CUDA {probe.nvidia.cuda} at most)" if probe.nvidia and probe.nvidia.cuda else ""
    return f"the NVIDIA driver is {driver}{level}: engines for CUDA 12 need {CUDA_12}, for CUDA 13 {CUDA_13}"


@on_probe("gpu_cuda_12", "note", "Install driver 580 or later where an engine for CUDA 13 is wanted.")
def gpu_cuda_12(probe: Probe, facts: Facts) -> Said:
    """The driver serves CUDA 12 and not CUDA 13: engines built for 13 do not start on it."""
    driver = (probe.nvidia.driver or probe.nvidia.kernel_module) if probe.nvidia else None
    major = version(driver)[:1]
    if not major or not CUDA_12 <= major[0] < CUDA_13:
        return None
    if any(gpu.integrated for gpu in _gpus(probe)):
        return None  # a Jetson's driver comes with its system, and is numbered on its own
    level = f"CUDA {probe.nvidia.cuda}" if probe.nvidia and probe.nvidia.cuda else "CUDA 12"
    return f"the NVIDIA driver {driver} serves {level} at most; engines for CUDA 13 need {CUDA_13}"


@on_probe("gpu_too_old", "note", "Use engines that still support it: llama.cpp does.")
def gpu_too_old(probe: Probe, facts: Facts) -> Said:
    """vLLM and SGLang need a compute capability of 7.0 (Volta) or more: vLLM's documentation, GPU installation."""
    old = [gpu for gpu in _gpus(probe) if version(gpu.compute_capability) and version(gpu.compute_capability) < (7, 0)]
    if not old:
        return None
    return f"{gpu_names(old)} ({old[0].name}) has compute capability {old[0].compute_capability}, vLLM needs 7.0"


@on_probe("fabric_manager_stopped", "error", "sudo systemctl enable --now nvidia-fabricmanager")
def fabric_manager_stopped(probe: Probe, facts: Facts) -> Said:
    """On machines with NVSwitches no CUDA program starts (error 802) before the fabric manager has run.

    NVIDIA, "Fabric Manager User Guide"; CUDA_ERROR_SYSTEM_NOT_READY.
    """
    nvidia = probe.nvidia
    if nvidia is None or not nvidia.fabric_manager.needed or nvidia.fabric_manager.running is not False:
        return None
    on = f"{nvidia.nvswitches} NVSwitches" if nvidia.nvswitches else "its GPUs joined by NVSwitch"
    message = f"NVIDIA's fabric manager does not run, with {on}: no CUDA program starts (error 802)"
    start = facts.root("systemctl enable --now nvidia-fabricmanager")
    if nvidia.fabric_manager.version is None and nvidia.driver:
        branch = nvidia.driver.split(".")[0]
        names = {
            "apt": arg(f"nvidia-fabricmanager-{branch}={nvidia.driver}*"),
            "dnf": arg(f"nvidia-fabric-manager-{nvidia.driver}"),
        }
        install = facts.install(names=names)
        first = f"run `{install}`" if install else f"install the fabric manager {nvidia.driver}"
        return message, f"Run `{start}`; where it is not installed, {first} before."
    return message, start


@on_probe(
    "fabric_manager_mismatch", "error", "Install the fabric manager of the driver's version, then start it again."
)
def fabric_manager_mismatch(probe: Probe, facts: Facts) -> Said:
    """The fabric manager works with the driver of exactly its own version: NVIDIA, "Fabric Manager User Guide"."""
    nvidia = probe.nvidia
    if nvidia is None or not nvidia.fabric_manager.needed:
        return None
    manager, driver = version(nvidia.fabric_manager.version), version(nvidia.driver)
    if not manager or not driver or manager == driver:
        return None
    return (
        f"the fabric manager is {nvidia.fabric_manager.version}, the driver {nvidia.driver}: they have to be the same"
    )


@on_probe(
    "gpu_fabric_not_joined",
    "error",
    "Run `sudo systemctl restart nvidia-fabricmanager`, then read `journalctl -u nvidia-fabricmanager`.",
)
def gpu_fabric_not_joined(probe: Probe, facts: Facts) -> Said:
    """A GPU that has not joined its NVLink fabric starts no CUDA program; one in progress for minutes never joins."""
    if fabric_manager_stopped(probe, facts) or (probe.uptime_s is not None and probe.uptime_s < 600):
        return None
    waiting = [gpu for gpu in _gpus(probe) if (gpu.fabric_state or "").lower() in ("in progress", "not started")]
    if not waiting:
        return None
    restart = facts.root("systemctl restart nvidia-fabricmanager")
    fix = f"Run `{restart}`, then read `journalctl -u nvidia-fabricmanager`."
    return f"{gpu_names(waiting)} has not joined the NVLink fabric ({waiting[0].fabric_state})", fix


@on_probe("imex_stopped", "warning", "sudo systemctl enable --now nvidia-imex")
def imex_stopped(probe: Probe, facts: Facts) -> Said:
    """On GB200 and its like IMEX shares memory between the machines of a rack: without it no model spans two of them.

    NVIDIA, "IMEX Service for NVLink Networks".
    """
    if probe.nvidia is None or not probe.nvidia.imex.needed or probe.nvidia.imex.running is not False:
        return None
    message = "NVIDIA's IMEX service does not run: no memory is shared over NVLink with other machines"
    start = facts.root("systemctl enable --now nvidia-imex")
    return message, f"Write the addresses of the rack to /etc/nvidia-imex/nodes_config.cfg, then run `{start}`."


@on_probe("persistence_off", "note", "Run `sudo nvidia-smi -pm 1`, or enable nvidia-persistenced.")
def persistence_off(probe: Probe, facts: Facts) -> Said:
    """With persistence mode off the driver unloads an idle card; the next start costs seconds: "Driver Persistence"."""
    idle = [gpu for gpu in _gpus(probe) if gpu.persistence is False and gpu.memory_kind == "dedicated"]
    if not idle or probe.os.wsl:
        return None
    return f"persistence mode is off on {gpu_names(idle)}", facts.root(
        "systemctl enable --now nvidia-persistenced || "
    ) + facts.root("nvidia-smi -pm 1")


@on_probe(
    "mig_without_slices",
    "warning",
    "`sudo nvidia-smi mig -cgi PROFILE -C` makes slices; `sudo nvidia-smi -mig 0` switches MIG off.",
)
def mig_without_slices(probe: Probe, facts: Facts) -> Said:
    """MIG is on and the card is cut into no slice: nothing can use it."""
    empty = [gpu for gpu in _gpus(probe) if gpu.mig and not gpu.slices]
    if not empty:
        return None
    index = empty[0].index if empty[0].index is not None else "N"
    cut, off = facts.root(f"nvidia-smi mig -i {index} -cgi PROFILE -C"), facts.root(f"nvidia-smi -i {index} -mig 0")
    fix = f"`{cut}` makes slices; `{off}` switches MIG off."
    return f"MIG is on and without slices on {gpu_names(empty)}", fix


@on_probe("gpu_tool_warns", "note", "Read it; most such warnings ask for a newer driver or a repair.")
def gpu_tool_warns(probe: Probe, facts: Facts) -> Said:
    """nvidia-smi prints something beside its answer."""
    said = probe.nvidia.warnings if probe.nvidia and not lost_gpus(probe) else ()
    return f"nvidia-smi says: {quoted(' '.join(said), 240)}" if said else None
