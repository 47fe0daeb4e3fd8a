"""A machine and its findings in a line each, as the story of an add tells them."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.model.node import Problem
from llmgw.model.probe import Probe


def in_a_line(probe: Probe) -> str:
    memory = f"{probe.memory.total / (1 << 30):.1f} GiB" if probe.memory.total else "unknown memory"
    names = [gpu.name or gpu.vendor for gpu in probe.gpus]
    gpus = ", ".join(
        f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
    threads = f"{probe.cpu.threads} threads" if probe.cpu.threads else "CPU"
    system = probe.os.pretty or probe.os.id or "Linux"
    return (
        f"{probe.hostname}: {system} {probe.os.arch}, {threads}, {memory}, {gpus or 'no GPU'}, "
        f"python {probe.python.version}"
    )


def counted(problems: Sequence[Problem]) -> str:
    counts = [
        f"{count} {severity}{'s' if count != 1 else ''}"
        for severity in ("error", "warning", "note")
        if (count := sum(problem.severity == severity for problem in problems))
    ]
    return ", ".join(counts) or "no findings"
