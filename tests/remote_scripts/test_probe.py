"""probe.py: facts of real machines from their tools' own output, nothing written, nothing waited for in vain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmgw.model.probe import Probe

from .conftest import Node, tree

H100 = """\
0, GPU-aaaa, NVIDIA H100 80GB HBM3, 00000000:18:00.0, 81559, 1024, 37, 41, 550.54.15, 118.02, Enabled, 0, 5, 16, 5, 16, Disabled, 9.0, Completed
1, GPU-bbbb, NVIDIA H100 80GB HBM3, 00000000:2A:00.0, 81559, 4, 0, 33, 550.54.15, 70.3, Enabled, 0, 5, 16, 5, 16, Disabled, 9.0, Completed
"""  # noqa: E501
X86 = """\
processor	: 0
model name	: Intel(R) Xeon(R) Silver 4310
physical id	: 0
core id		: 0
flags		: fpu {flags}

processor	: 1
model name	: Intel(R) Xeon(R) Silver 4310
physical id	: 0
core id		: 1
flags		: fpu {flags}
"""
V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = V2 + " avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = V3 + " avx512f avx512bw avx512cd avx512dq avx512vl"


class Machine:
    """A made-up machine: trees in place of /sys and /proc, and its own nvidia-smi."""

    def __init__(self, node: Node, base: Path) -> None:
        self.node, self.base = node, base
        self.put("proc/cpuinfo", X86.format(flags=V3))
        self.put("proc/meminfo", "MemTotal:       131072 kB\nMemFree: 1 kB\nMemAvailable:    65536 kB\n")
        self.put("proc/version", "Linux version 6.8")
        self.put("proc/uptime", "1234.5 99")

    def put(self, name: str, text: str) -> None:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def card(self, address: str) -> None:
        uevent = f"DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SLOT_NAME={address}\n"
        self.put(f"sys/bus/pci/devices/{address}/uevent", uevent)

    def smi(self, gpus: str = "", apps: str = "", *, body: str = "") -> None:
        self.put("gpus", gpus)
        self.put("apps", apps)
        self.put(
            "smi",
            f"#!/bin/sh\n{body}\ncd {self.base}\n"
            "case $1 in --query-gpu*) cat gpus;; --query-compute*) cat apps;;\n"
            "--version) echo 'CUDA Version         : 12.4';; esac\n",
        )
        (self.base / "smi").chmod(0o755)

    def probe(self, **args: Any) -> Any:
        given = {"_sys": str(self.base / "sys"), "_proc": str(self.base / "proc"), "nvidia_smi": str(self.base / "smi")}
        found = self.node.call("probe", **{**given, **args})
        Probe.model_validate(found)
        return found


@pytest.fixture
def machine(node: Node, tmp_path: Path) -> Machine:
    return Machine(node, tmp_path / "machine")


def test_this_machine_is_told_truthfully(node: Node) -> None:
    found = node.call("probe", ports=[1, 65535])
    Probe.model_validate(found)
    assert found["schema"] == 2
    assert found["hostname"] == os.uname().nodename
    assert found["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found["user"]["uid"] == os.geteuid()
    assert found["user"]["home"] == str(node.home)
    assert found["python"]["version"].startswith("3.")
    assert found["cpu"]["threads"] == os.cpu_count()
    assert found["memory"]["total"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    assert found["disks"][0]["total"] > found["disks"][0]["free"] > 0
    assert found["root"] == {
        "path": str(node.root),
        "exists": False,
        "writable": True,
        "noexec": False,
        "owner_ok": True,
        "fault": None,
        "place": str(node.home),
        "read_only": False,
        "free": found["root"]["free"],
        "inodes_free": found["root"]["inodes_free"],
        "fs": found["root"]["fs"],
        "shared": found["root"]["shared"],
    }
    assert found["owner"] is None
    assert set(found["unknown"]) <= {"machine_id", "virtualization"}


def test_nothing_is_written(node: Node) -> None:
    (node.home / "there").write_text("x")
    before, times = tree(node.home), {path: path.stat().st_mtime_ns for path in node.home.rglob("*")}
    node.call("probe")
    assert tree(node.home) == before
    assert {path: path.stat().st_mtime_ns for path in node.home.rglob("*")} == times


def test_it_costs_little(node: Node) -> None:
    node.call("probe")
    began = time.monotonic()
    node.call("probe")
    assert time.monotonic() - began < 2


def test_a_hanging_tool_costs_its_deadline_and_no_more(machine: Machine) -> None:
    machine.smi(body="sleep 31.7 & exec sleep 31.7")
    began = time.monotonic()
    found = machine.probe(_smi_seconds=0.5)
    assert time.monotonic() - began < 4
    assert found["nvidia"]["smi_error"] == {"code": "hangs", "text": "nvidia-smi did not answer in 0.5 s"}
    assert found["memory"]["total"] == 131072 << 10
    assert "sleep\x0031.7" not in "".join(
        path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )


def test_the_tool_is_looked_for_on_the_path(machine: Machine) -> None:
    machine.smi(H100)
    (machine.node.bin / "nvidia-smi").symlink_to(machine.base / "smi")
    assert machine.probe(nvidia_smi=None)["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"


def test_who_holds_a_gpu(machine: Machine) -> None:
    node = machine.node
    argv = [sys.executable, "-S", "-c", "import time;time.sleep(60)"]
    shard = {"replica": "m", "rank": 0, "cluster": "k", "argv": argv, "attempt": 1, "ports": [41700, 41799]}
    ours = node.call("engine", action="start", **shard)["pid"]
    orphan = node.call("engine", action="start", **{**shard, "replica": "o"})["pid"]
    (node.root / "hosts/n1/replicas/o.0/manifest.json").unlink()
    machine.smi(H100, f"GPU-aaaa, {ours}, 512\nGPU-aaaa, {orphan}, [N/A]\nGPU-bbbb, 1, 7\nGPU-bbbb, 4194305, 9\n")
    found = machine.probe()
    keys = ("gpu", "pid", "memory", "owner", "replica")
    assert [tuple(each[key] for key in keys) for each in found["gpu_processes"]] == [
        ("GPU-aaaa", ours, 512 << 20, "ours", "m"),
        ("GPU-aaaa", orphan, None, "orphan", "o"),
        ("GPU-bbbb", 1, 7 << 20, "theirs", None),
        ("GPU-bbbb", 4194305, 9 << 20, "theirs", None),
    ]
    here = {each["pid"]: each for each in found["processes"]}
    assert {here[ours]["replica"], here[orphan]["replica"]} == {"m", "o"}
    assert here[ours]["rss"] > 1 << 20
    assert found["owner"] == {"controller_id": "c1", "term": 1}


@pytest.mark.parametrize(("flags", "level"), [("sse2", 1), (V2, 2), (V3, 3), (V4, 4), (V4.replace("fma", ""), 2)])
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels of x86-64")
def test_levels_of_x86(machine: Machine, flags: str, level: int) -> None:
    machine.put("proc/cpuinfo", X86.format(flags=flags))
    found = machine.probe()
    assert found["cpu"]["level"] == f"x86-64-v{level}"
    assert found["cpu"]["cores"] == found["cpu"]["threads"] == 2
    assert found["cpu"]["model"] == "Intel(R) Xeon(R) Silver 4310"


def test_who_holds_a_card_of_amd_or_intel(machine: Machine) -> None:
    """AMD's compute driver and the kernel's fdinfo name processes: the same three kinds of owners."""
    node = machine.node
    argv = [sys.executable, "-S", "-c", "import time;time.sleep(60)"]
    shard = {"replica": "m", "rank": 0, "cluster": "k", "argv": argv, "attempt": 1, "ports": [41700, 41799]}
    ours = node.call("engine", action="start", **shard)["pid"]
    orphan = node.call("engine", action="start", **{**shard, "replica": "o"})["pid"]
    (node.root / "hosts/n1/replicas/o.0/manifest.json").unlink()
    amd, intel = "0000:03:00.0", "0000:04:00.0"
    for pci, vendor, driver in ((amd, "1002:744C", "amdgpu"), (intel, "8086:E20B", "xe")):
        about = f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_ID={vendor}\nPCI_SLOT_NAME={pci}\n"
        machine.put(f"sys/bus/pci/devices/{pci}/uevent", about)
    machine.put(f"sys/bus/pci/devices/{amd}/mem_info_vram_total", str(24 << 30))
    node_1 = "sys/class/kfd/kfd/topology/nodes/1"
    machine.put(f"{node_1}/properties", "gfx_target_version 110000\nlocation_id 768\ndomain 0\n")
    machine.put(f"{node_1}/gpu_id", "77")
    for pid in (ours, orphan, 1):
        machine.put(f"sys/class/kfd/kfd/proc/{pid}/vram_77", str(pid << 20))
        machine.put(f"proc/{pid}/fdinfo/5", f"drm-pdev:\t{intel}\ndrm-client-id:\t{pid}\ndrm-total-vram0:\t3 MiB\n")
        (machine.base / f"proc/{pid}/fd").mkdir()
        (machine.base / f"proc/{pid}/fd/5").symlink_to("/dev/dri/renderD129")
    found = machine.probe(nvidia_smi="/nowhere", _addresses={})
    keys = ("gpu", "pid", "memory", "owner", "replica")
    kinds = {ours: ("ours", "m"), orphan: ("orphan", "o"), 1: ("theirs", None)}
    expected = {(amd, pid, pid << 20, *kind) for pid, kind in kinds.items()}
    expected |= {(intel, pid, 3 << 20, *kind) for pid, kind in kinds.items()}
    assert {tuple(each[key] for key in keys) for each in found["gpu_processes"]} == expected


def test_addresses_are_those_that_the_kernel_tells(node: Node) -> None:
    node.env["SSH_CONNECTION"] = "127.0.0.9 50022 127.0.0.1 22"
    found = node.call("probe")
    interfaces = {each["name"]: each for each in found["interfaces"]}
    assert "127.0.0.1/8" in interfaces["lo"]["addresses"]
    assert interfaces["lo"]["kind"] == "loopback"
    assert found["management"] == {"interface": "lo", "address": "127.0.0.1", "peer": "127.0.0.9"}
    tool = shutil.which("ip")
    if tool:
        done = subprocess.run([tool, "-o", "addr"], capture_output=True, text=True, check=True)
        told = {tuple(line.split()[1::2][:2]) for line in done.stdout.splitlines() if " peer " not in line}
        mine = {(name, address) for name, each in interfaces.items() for address in each["addresses"]}
        assert {(name.partition("@")[0], address) for name, address in told} <= mine


def test_a_part_is_compiled_only_where_it_is_needed_and_named_in_a_traceback(machine: Machine) -> None:
    machine.node.change = ("def look(tool, cards,", "def look(tool,, cards,")
    found = machine.probe(nvidia_smi="/nowhere", _addresses={})
    assert (found["gpus"], found["nvidia"], found["unknown"]) == ([], None, {})
    machine.smi(H100)
    machine.card("0000:18:00.0")
    found = machine.probe()
    assert "probe_nvidia.py, line" in found["unknown"]["gpus.nvidia"]
    assert found["cpu"]["model"] == "Intel(R) Xeon(R) Silver 4310"


def test_tools_speak_english_and_leave_no_cache_behind(machine: Machine) -> None:
    machine.node.env.update(LANG="de_DE.UTF-8", LC_ALL="de_DE.UTF-8")
    machine.smi(H100, body=f"env > {machine.base}/env")
    machine.probe()
    told = dict(line.partition("=")[::2] for line in (machine.base / "env").read_text().splitlines())
    assert (told["LC_ALL"], told["CUDA_CACHE_DISABLE"], told["__GL_SHADER_DISK_CACHE"]) == ("C", "1", "0")


@pytest.mark.parametrize(
    "body",
    [
        "exec yes",
        "head -c 3000000 /dev/zero; exit",
        "head -c 100000 /dev/urandom; exit",
        "yes ',,,' | head -n 99999; exit",
    ],
    ids=["endless", "zeros", "random", "commas"],
)
def test_a_tool_that_prints_rubbish(machine: Machine, body: str) -> None:
    machine.card("0000:18:00.0")
    machine.smi(H100, body=body)
    found = machine.probe(_smi_seconds=1)
    assert found["nvidia"]["smi_error"]["code"] in ("hangs", "failed", "nothing")
    assert [each["health"] for each in found["gpus"]] == ["error"]
    assert len(json.dumps(found)) < 32 << 10


def test_a_tool_that_is_named_and_not_there(machine: Machine) -> None:
    machine.card("0000:18:00.0")
    found = machine.probe(nvidia_smi="/nowhere/nvidia-smi")
    assert found["nvidia"]["smi"] is None
    assert found["unknown"]["gpus.nvidia"] == "/nowhere/nvidia-smi is no program"


def test_a_fact_that_fails_is_null_with_its_reason(machine: Machine) -> None:
    (machine.base / "proc/meminfo").unlink()
    (machine.base / "proc/uptime").write_text("nonsense")
    found = machine.probe()
    assert found["memory"]["total"] is None
    assert found["uptime_s"] is None
    assert "FileNotFoundError" in found["unknown"]["memory"]
    assert "uptime_s" in found["unknown"]


def test_ports_in_use(machine: Machine) -> None:
    head = "  sl  local_address rem_address   st tx_queue\n"
    line = "   0: 0100007F:{port:04X} 00000000:0000 {state} 0:0\n"
    machine.put("proc/net/tcp", head + line.format(port=41001, state="0A") + line.format(port=41002, state="01"))
    machine.put("proc/net/tcp6", head + line.format(port=41003, state="0A") + line.format(port=80, state="0A"))
    assert machine.probe(ports=[41000, 41999])["ports_in_use"] == [41001, 41003]


def test_an_unsafe_root(machine: Machine, tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    found = machine.probe(root=str(loose))
    assert (found["root"]["owner_ok"], found["root"]["fault"]) == (False, "is writable by others")
    assert found["root"]["writable"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: root only")
def test_mount_flags(machine: Machine, tmp_path: Path) -> None:
    small = tmp_path / "with space"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,noexec,ro", "tmpfs", str(small)], check=True)
    try:
        found = machine.probe(root=str(small / "r"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert found["root"]["noexec"] is found["root"]["read_only"] is True
    assert (found["root"]["writable"], found["root"]["place"], found["root"]["fs"]) == (False, str(small), "tmpfs")
    assert found["disks"][0]["fs"] == "tmpfs"
    assert (found["disks"][0]["noexec"], found["disks"][0]["read_only"]) == (True, True)


def test_the_document_is_small(node: Node) -> None:
    assert len(json.dumps(node.call("probe"))) < 32 << 10
