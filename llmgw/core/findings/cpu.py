"""The processor: what engines on it can use."""

from __future__ import annotations

from llmgw.core.findings.rules import Facts, Said, on_probe
from llmgw.model.probe import Probe

COST = "engines run five to nineteen times slower than with it, if they start at all"
"""Measured with llama.cpp on one machine, with AVX2 and with a CPU type that hides it."""


def _without_avx2(probe: Probe) -> bool:
    return bool(probe.cpu.level and probe.cpu.level.startswith("x86-64") and "avx2" not in probe.cpu.flags)


def _virtual(probe: Probe) -> bool:
    return bool(probe.cpu.hypervisor) or probe.virtualization not in (None, "none")


@on_probe(
    "cpu_avx2_hidden", "warning", "Set the CPU type of the virtual machine to `host` in place of kvm64 or qemu64."
)
def cpu_avx2_hidden(probe: Probe, facts: Facts) -> Said:
    """The hypervisor shows the virtual machine a CPU without AVX2 (types kvm64, qemu64), whatever the real one has."""
    if not _without_avx2(probe) or not _virtual(probe):
        return None
    fix = (
        "Set the machine's CPU type to `host` (Proxmox: `qm set ID --cpu host`; libvirt: "
        "`<cpu mode='host-passthrough'/>`; QEMU: `-cpu host`) in place of kvm64 or qemu64, then stop and start it."
    )
    return f"the virtual CPU ({probe.cpu.model or 'unnamed'}) shows no AVX2: {COST}", fix


@on_probe(
    "cpu_no_avx2", "warning", "Use another machine for models on the CPU. (In a virtual machine: its CPU type `host`.)"
)
def cpu_no_avx2(probe: Probe, facts: Facts) -> Said:
    """Engines are built for AVX2, which every x86 server CPU since 2013 has."""
    if not _without_avx2(probe) or _virtual(probe):
        return None
    return f"the CPU ({probe.cpu.model or 'unnamed'}) has no AVX2: {COST}"


@on_probe("cpu_arm_plain", "note", "Nothing; use small models.")
def cpu_arm_plain(probe: Probe, facts: Facts) -> Said:
    """An ARM core without the dot product instructions (Raspberry Pi 4): quantised models are several times slower."""
    if probe.cpu.level != "armv8" or probe.cpu.flags == () or "asimddp" in probe.cpu.flags:
        return None
    return f"the CPU ({probe.cpu.model or 'ARM'}) has no dot product instructions: models are slow on it"


@on_probe("cpu_limited", "note")
def cpu_limited(probe: Probe, facts: Facts) -> Said:
    """A quota or an affinity leaves engines fewer threads than the machine has; more than that slow them down."""
    quota, threads = probe.limits.cpu_quota if probe.limits else None, probe.cpu.threads
    if threads is None:
        return None
    if quota is not None and quota < threads:
        return f"its control group allows {quota:g} of the machine's {threads} CPU threads", ""
    if probe.cpu.usable is not None and probe.cpu.usable < threads:
        return f"this session may use {probe.cpu.usable} of the machine's {threads} CPU threads", ""
    return None
