"""What NVIDIA's driver wrote into the kernel's log: NVIDIA, "Xid Errors", Analyzing Xid Errors with the Xid Catalog."""

from __future__ import annotations

from llmgw.core.findings.rules import Facts, Said, listed, on_probe
from llmgw.model.gpu import Xid
from llmgw.model.probe import Probe

APPLICATIONS = frozenset({8, 11, 13, 31, 32, 41, 43, 45, 68, 69, 94})
"""Those for which the catalog says to restart the application and nothing else."""
MEANINGS = {
    13: "a program's error",
    31: "a program touched memory that is not its own",
    43: "a program was stopped",
    45: "a program was ended",
    48: "double-bit memory error",
    62: "its internal controller stopped",
    63: "a memory row is to be replaced: reset the GPU",
    64: "a memory row could not be replaced",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    140: "memory error not recovered",
    154: "it says itself what it needs",
}


def _said(xids: list[Xid]) -> str:
    words = []
    for one in sorted(xids, key=lambda one: one.last_s_ago if one.last_s_ago is not None else 1e9):
        meaning = f" ({MEANINGS[one.xid]})" if one.kind == "xid" and one.xid in MEANINGS else ""
        ago = "" if one.last_s_ago is None else f", last {_ago(one.last_s_ago)} ago"
        times = f" {one.count} times" if one.count > 1 else ""
        words.append(f"{'SXid' if one.kind == 'sxid' else 'Xid'} {one.xid}{meaning} of {one.pci or '?'}{times}{ago}")
    return listed(words)


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@on_probe(
    "gpu_xid",
    "warning",
    "See `sudo dmesg | grep -i xid`; drain the node and reset the GPU (`sudo nvidia-smi --gpu-reset -i N`), or reboot.",
)
def gpu_xid(probe: Probe, facts: Facts) -> Said:
    """The driver met an error of a card or an NVSwitch since boot that a restart of the program does not mend."""
    found = [one for one in probe.xid or () if one.kind == "sxid" or one.xid not in APPLICATIONS]
    return _said(found) if found else None


@on_probe("gpu_xid_program", "note", "Look at that program; where it comes with many programs, at the card.")
def gpu_xid_program(probe: Probe, facts: Facts) -> Said:
    """The driver ended programs on a card since boot: mostly their own fault."""
    found = [one for one in probe.xid or () if one.kind == "xid" and one.xid in APPLICATIONS and one.xid != 45]
    return _said(found) if found else None
