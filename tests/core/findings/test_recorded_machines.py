"""What is said of machines as they are: the recorded ones, judged by what the probe makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw.core.findings import judge
from llmgw.model.node import Problem
from llmgw.model.probe import Probe

from .node import PROBE

MACHINES = Path(__file__).resolve().parents[2] / "machines"
OURS = ("schema", "at", "hostname", "machine_id", "boot_id", "python", "user", "libc", "os", "root")
"""What a recording leaves out, because it is of the machine that runs the tests."""


def findings(name: str) -> dict[str, Problem]:
    document: dict[str, Any] = json.loads((MACHINES / name / "expected.json").read_text())
    document.pop("kernel_modules", None)  # told as a list there
    for key in OURS:
        value = document.get(key)
        document[key] = {**PROBE[key], **value} if isinstance(value, dict) else value or PROBE[key]
    found = judge(Probe.model_validate(document), ports=(41000, 41999))
    return {one.code: one for one in found}


@pytest.mark.parametrize("name", sorted(path.parent.name for path in MACHINES.glob("*/expected.json")))
def test_every_recorded_machine_can_be_judged(name: str) -> None:
    for problem in findings(name).values():
        assert problem.message
        assert "None" not in problem.message


@pytest.mark.parametrize(
    ("name", "closing", "words"),
    [
        ("h100-8", None, ""),
        ("mi300x-8", None, ""),
        ("geforce-mixed", None, ""),
        ("strix-halo", None, ""),
        ("raspberry-pi-5", None, ""),
        ("smi-warnings", None, ""),
        ("smi-not-applicable", None, ""),
        ("driver-mismatch", "gpu_driver_mismatch", "580.173.02"),
        ("smi-hangs", "gpu_tool_hangs", "did not answer"),
        ("no-driver", "gpu_no_driver", "2 NVIDIA cards"),
        ("nouveau", "gpu_nouveau", "0000:03:00.0"),
        ("gpu-not-shown", "gpu_missing", "0000:1c:00.0"),
        ("gpu-is-lost", "gpu_lost", "GPU is lost"),
        ("gpu-off-the-bus", "gpu_lost", "0000:0b:00.0"),
        ("smi-prints-nothing", "gpu_error", "printed nothing"),
        ("localised", "gpu_error", "couldn't communicate"),
        ("h200-fabric-manager-down", "fabric_manager_stopped", "4 NVSwitches"),
        ("b200-fabric-manager-missing", "fabric_manager_stopped", "error 802"),
    ],
)
def test_what_closes_a_machine_is_said_once(name: str, closing: str | None, words: str) -> None:
    errors = {code: one for code, one in findings(name).items() if one.severity == "error"}
    assert set(errors) == ({closing} if closing else set())
    assert all(words in one.message for one in errors.values())


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("kvm64", "cpu_avx2_hidden", "QEMU Virtual CPU"),
        ("cpu-without-avx", "cpu_no_avx2", "five to nineteen times"),
        ("h100-8", "gpu_memory_held", "python3 (pid 48213, user root) holds 69.6 GiB of GPU 0"),
        ("h100-8", "gpu_ecc_errors", "GPU 7 had 2"),
        ("mi300x-8", "gpu_memory_held", "167.4 GiB of GPU 1"),
        ("geforce-mixed", "gpu_link_narrow", "GPU 2 runs on 4 of 16"),
        ("geforce-mixed", "gpus_mixed", "RTX 5090"),
        ("xid-dmesg", "gpu_xid", "Xid 79 (fallen off the bus) of 0000:9b:00.0"),
        ("xid-journal", "gpu_xid_program", "Xid 13"),
        ("gb10", "gpu_unified", "NVIDIA GB10"),
        ("amd-igpu-beside-rtx", "igpu_beside", "RTX 4090"),
        ("amd-without-driver", "amd_no_driver", "0000:03:00.0"),
        ("v100-old-driver", "gpu_driver_old", "418.226.00"),
        ("vfio-pci", "gpu_given_away", "0000:18:00.0"),
        ("nfs-home", "root_shared", "nfs4"),
        ("wsl2", "wsl", "WSL"),
        ("alpine-musl", "libc_musl", "musl"),
        ("docker-limits", "memory_limited", "32.0 GiB"),
    ],
)
def test_what_else_is_said_of_a_machine(name: str, code: str, words: str) -> None:
    assert words in findings(name)[code].message
