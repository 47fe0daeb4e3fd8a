"""What has changed between two probes, in sentences; a fact that could not be read is no change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.differences import MOST, differences

GIB = 1 << 30
MACHINES = Path(__file__).resolve().parents[1] / "machines"


def gpu(index: int, /, **more: Any) -> dict[str, Any]:
    about = {
        "index": index,
        "vendor": "nvidia",
        "uuid": f"GPU-{index}",
        "name": "H100",
        "pci": f"0000:{index:02x}:00.0",
    }
    return {**about, "memory_total": 80 * GIB, "health": "ok", "mig": False, "persistence": True, **more}


def port(state: str = "ACTIVE", **more: Any) -> dict[str, Any]:
    about = {"hca": "mlx5_0", "port": 1, "state": state, "phys_state": "LinkUp", "link_layer": "InfiniBand"}
    return {**about, "rate_gbps": 400.0, "sm_lid": 1, "subnet_prefix": "fe80:0000:0000:0000", **more}


def eth(*addresses: str, **more: Any) -> dict[str, Any]:
    return {"name": "eth0", "kind": "physical", "state": "up", "speed_mbps": 25000, "addresses": addresses, **more}


def disk(**more: Any) -> dict[str, Any]:
    return {"path": "/", "device": "/dev/sda1", "fs": "ext4", "noexec": False, "read_only": False, **more}


def xid(number: int, count: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "pci": "0000:01:00.0",
        "xid": number,
        "kind": "xid",
        "count": count,
        "text": "GPU has fallen off the bus.",
        **more,
    }


NVIDIA = {"driver": "550.54", "cuda": "12.4", "fabric_manager": {"needed": True, "running": True}}
ROOT = {"path": "/home/u/.local/share/llmgw", "writable": True}
BEFORE: dict[str, Any] = {
    "schema": 2,
    "at": 1.0,
    "hostname": "gpu01",
    "boot_id": "b1",
    "os": {"pretty": "Debian 12", "kernel": "6.1.0", "arch": "x86_64"},
    "python": {"executable": "/usr/bin/python3", "version": "3.11.2"},
    "user": {"name": "u", "uid": 1000},
    "cpu": {"model": "EPYC", "threads": 64, "level": "x86-64-v4"},
    "memory": {"total": 512 * GIB},
    "limits": {"nofile": 1048576, "memlock": -1, "cpu_quota": None},
    "nvidia": NVIDIA,
    "gpus": [gpu(0), gpu(1)],
    "xid": [],
    "fabric": [port()],
    "interfaces": [eth("10.0.0.2/24", "fe80::1/64"), {"name": "veth1", "kind": "virtual"}],
    "disks": [disk()],
    "root": ROOT,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"nvidia": {**NVIDIA, "driver": "560.35"}}, ["driver 550.54 → 560.35"]),
        ({"nvidia": {**NVIDIA, "driver": None}}, []),
        ({"nvidia": {**NVIDIA, "cuda": "12.6"}}, ["CUDA 12.4 → 12.6"]),
        (
            {"nvidia": {**NVIDIA, "fabric_manager": {"needed": True, "running": False}}},
            ["the fabric manager no longer runs"],
        ),
        ({"boot_id": "b2"}, ["was rebooted"]),
        (
            {"os": {"pretty": "Debian 13", "kernel": "6.12", "arch": "x86_64"}},
            ["operating system Debian 12 → Debian 13", "kernel 6.1.0 → 6.12"],
        ),
        ({"python": {"executable": "/usr/bin/python3", "version": "3.13.1"}}, ["python 3.11.2 → 3.13.1"]),
        ({"memory": {"total": 256 * GIB}}, ["memory 512.0 GiB → 256.0 GiB"]),
        ({"memory": {"total": 512 * GIB - (1 << 20)}}, []),
        ({"memory": {"total": None}}, []),
        ({"memory": {"total": 512 * GIB, "cgroup_limit": 8 * GIB}}, ["memory limit none → 8.0 GiB"]),
        ({"limits": {"nofile": 1024, "memlock": -1}}, ["limit of open files 1048576 → 1024"]),
        ({"cpu": {"model": "EPYC", "threads": 64, "level": "x86-64-v1"}}, ["CPU level x86-64-v4 → x86-64-v1"]),
        ({"hostname": "gpu02"}, ["hostname gpu01 → gpu02"]),
        ({"memory": "nonsense"}, []),
    ],
)
def test_the_machine(change: dict[str, Any], said: list[str]) -> None:
    assert differences(BEFORE, {**BEFORE, **change}) == said


LOST = {"index": None, "uuid": None, "name": None, "health": "lost", "health_detail": "Unknown Error"}


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([gpu(0)], ["GPU 1 (H100) gone"]),
        ([gpu(0), gpu(1), gpu(2, name="A100")], ["GPU 2 (A100) is new"]),
        ([gpu(1), gpu(0)], []),
        ([gpu(0), gpu(1, **LOST)], ["GPU 1 (H100) lost: Unknown Error"]),
        (
            [gpu(0), gpu(1, health="error", health_detail="power.draw: ERR!")],
            ["GPU 1 (H100) in error: power.draw: ERR!"],
        ),
        ([gpu(0, uuid="GPU-9"), gpu(1)], ["GPU 0 (H100) gone", "GPU 0 (H100) is new"]),
        ([gpu(0, mig=True), gpu(1)], ["GPU 0 (H100) MIG on"]),
        ([gpu(0, persistence=False), gpu(1)], ["GPU 0 (H100) persistence mode off"]),
        ([gpu(0, memory_total=96 * GIB), gpu(1)], ["GPU 0 (H100) memory 80.0 GiB → 96.0 GiB"]),
        ([gpu(0, memory_total=None, mig=None, persistence=None), gpu(1)], []),
    ],
)
def test_gpus(gpus: list[dict[str, Any]], said: list[str]) -> None:
    assert differences(BEFORE, {**BEFORE, "gpus": gpus}) == said


def test_a_gpu_is_well_again_and_its_errors_are_counted() -> None:
    broken = {**BEFORE, "gpus": [gpu(0, ecc_uncorrected=1), gpu(1, **LOST)]}
    well = {**BEFORE, "gpus": [gpu(0, ecc_uncorrected=3), gpu(1)]}
    assert differences(broken, well) == [
        "GPU 0 (H100) uncorrected memory errors 1 → 3",
        "GPU 0000:01:00.0 (nvidia) is well again",
    ]


def test_mig_slices() -> None:
    def cut(*names: str) -> dict[str, Any]:
        slices = [{"uuid": f"MIG-{place}", "name": name} for place, name in enumerate(names)]
        return {**BEFORE, "gpus": [gpu(0, mig=True, slices=slices), gpu(1)]}

    before, after = cut(*["1g.10gb"] * 7), cut("3g.40gb", "3g.40gb", "1g.10gb")
    assert differences(before, after) == ["GPU 0 (H100) MIG slices 7 × 1g.10gb → 1 × 1g.10gb, 2 × 3g.40gb"]


@pytest.mark.parametrize("key", ["gpus", "gpus.nvidia", "pci"])
def test_cards_that_could_not_be_read_are_not_gone(key: str) -> None:
    blind = {**BEFORE, "gpus": [], "unknown": {key: "nvidia-smi did not answer in 10 s"}}
    assert differences(BEFORE, blind) == []
    assert differences(blind, BEFORE) == []


def test_cards_of_schema_1_are_the_same_cards() -> None:
    old = {**BEFORE, "schema": 1, "gpus": [gpu(0, pci="00000000:00:00.0", mig=None), gpu(1, pci="00000000:01:00.0")]}
    assert differences(old, BEFORE) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [xid(79)], ["new Xid 79 of 0000:01:00.0: GPU has fallen off the bus."]),
        ([xid(79)], [xid(79)], []),
        ([xid(79, 2)], [xid(79, 5)], ["new Xid 79 of 0000:01:00.0 (3 times): GPU has fallen off the bus."]),
        ([xid(79, 5)], [xid(79, 2)], []),
        (
            [xid(48)],
            [xid(48), xid(24007, kind="sxid", text="Fatal")],
            ["new SXid 24007 of 0000:01:00.0: Fatal"],
        ),
        (None, [xid(79)], []),
        ([xid(79)], None, []),
    ],
)
def test_xids(before: Any, after: Any, said: list[str]) -> None:
    assert differences({**BEFORE, "xid": before}, {**BEFORE, "xid": after}) == said


def test_after_a_reboot_the_log_begins_anew() -> None:
    found = differences({**BEFORE, "xid": [xid(79, 4)]}, {**BEFORE, "xid": [xid(79)], "boot_id": "b2"})
    assert found == ["was rebooted", "new Xid 79 of 0000:01:00.0: GPU has fallen off the bus."]


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        ([port("DOWN", phys_state="Polling", rate_gbps=10.0)], ["RDMA mlx5_0 port 1 ACTIVE → DOWN (Polling)"]),
        ([port(rate_gbps=200.0)], ["RDMA mlx5_0 port 1 Gbit/s 400.0 → 200.0"]),
        ([port(sm_lid=0)], ["RDMA mlx5_0 port 1 has lost its subnet manager"]),
        ([port(subnet_prefix="fec0:0000:0000:0001")], [
            "RDMA mlx5_0 port 1 subnet fe80:0000:0000:0000 → fec0:0000:0000:0001"
        ]),
        ([], ["RDMA mlx5_0 port 1 gone"]),
        ([port(), port(hca="mlx5_1")], ["RDMA mlx5_1 port 1 is new"]),
        (None, []),
    ],
)  # fmt: skip
def test_rdma(ports: Any, said: list[str]) -> None:
    assert differences(BEFORE, {**BEFORE, "fabric": ports}) == said


def test_a_port_that_comes_up() -> None:
    down = {**BEFORE, "fabric": [port("DOWN", rate_gbps=10.0)]}
    assert differences(down, BEFORE) == ["RDMA mlx5_0 port 1 DOWN → ACTIVE"]


@pytest.mark.parametrize(
    ("interfaces", "said"),
    [
        ([eth("10.0.0.7/24", "fe80::1/64")], ["interface eth0 address 10.0.0.2/24 → 10.0.0.7/24"]),
        ([eth("10.0.0.2/24", "2001:db8::77/64")], []),
        ([eth("10.0.0.2/24", state="down", speed_mbps=None)], ["interface eth0 up → down"]),
        ([eth("10.0.0.2/24", speed_mbps=1000)], ["interface eth0 Mbit/s 25000 → 1000"]),
        ([eth("10.0.0.2/24"), {"name": "veth9", "kind": "virtual"}], []),
        ([], ["interface eth0 gone"]),
        (None, []),
    ],
)
def test_interfaces(interfaces: Any, said: list[str]) -> None:
    assert differences(BEFORE, {**BEFORE, "interfaces": interfaces}) == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"disks": [disk(read_only=True)]}, ["disk / is read-only now"]),
        ({"disks": [disk(noexec=True)]}, ["disk / is mounted noexec now"]),
        ({"disks": [disk(device="/dev/sdb1")]}, ["disk / /dev/sda1 → /dev/sdb1"]),
        ({"disks": []}, []),
        (
            {"root": {**ROOT, "writable": False, "fault": "is writable by others"}},
            ["the root /home/u/.local/share/llmgw can no longer be written: it is writable by others"],
        ),
    ],
)
def test_places(change: dict[str, Any], said: list[str]) -> None:
    assert differences(BEFORE, {**BEFORE, **change}) == said
    if "disks" in change and said == ["disk / is read-only now"]:
        assert differences({**BEFORE, **change}, BEFORE) == ["disk / is writable again"]


def test_a_machine_of_a_thousand_cards_is_told_in_few_words() -> None:
    found = differences(BEFORE, {**BEFORE, "gpus": [gpu(index) for index in range(200)]})
    assert len(found) == MOST + 1
    assert found[-1] == f"and {198 - MOST} more differences"


@pytest.mark.parametrize("name", sorted(path.name for path in MACHINES.iterdir() if (path / "expected.json").exists()))
def test_a_recorded_machine_differs_in_nothing_from_itself(name: str) -> None:
    told = json.loads((MACHINES / name / "expected.json").read_text())
    machine = {**BEFORE, **told, "root": ROOT, "kernel_modules": None}
    assert differences(machine, machine) == []
    assert differences(BEFORE, machine)


@given(
    st.dictionaries(st.sampled_from(sorted(BEFORE)), st.none() | st.integers() | st.text() | st.lists(st.integers()))
)
def test_whatever_a_document_holds_nothing_is_raised(change: dict[str, Any]) -> None:
    differences(BEFORE, {**BEFORE, **change})
    changed = {**BEFORE, **change}
    differences(changed, BEFORE)
    assert differences(changed, changed) == []
