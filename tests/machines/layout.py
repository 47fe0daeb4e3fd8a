"""Lays a recorded machine out below a directory: its files, its trees in /proc and /sys, its tools as stand-ins.

`machine.yaml` names only what is particular to it; README.md has the keys.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
COMMON: dict[str, Any] = yaml.safe_load((HERE / "common.yaml").read_text())
KNOWN = {
    "about", "source", "arch", "os", "kernel", "cpu", "memory", "board", "pci", "modules", "files", "dirs", "net",
    "addresses", "rdma", "nvidia", "tools", "env", "processes", "args", "uptime",
}  # fmt: skip


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/machine.yaml"))


def load(name: str) -> dict[str, Any]:
    machine: dict[str, Any] = yaml.safe_load((HERE / name / "machine.yaml").read_text())
    assert set(machine) <= KNOWN, f"{name}: {set(machine) - KNOWN}"
    assert machine["about"], name
    assert machine["source"], name
    return machine


class Layout:
    """A machine below `root`. `{home}` in a text stands for the home of whoever runs the probe."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root, self.home = root, home

    def put(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(str(text).replace("{home}", str(self.home)))

    def many(self, base: str, texts: dict[str, Any]) -> None:
        for name, text in texts.items():
            self.put(f"{base}/{name}", f"{text}\n")

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def build(self, machine: dict[str, Any]) -> None:
        arch = machine.get("arch", "x86_64")
        release = COMMON["os"][machine["os"]]
        self.put("etc/os-release", release["release"])
        self.put("etc/machine-id", "0123456789abcdef0123456789abcdef\n")
        kernel = machine.get("kernel", release["kernel"])
        self.put("proc/version", f"Linux version {kernel} (build@host) (gcc) #1 SMP\n")
        self.put("proc/sys/kernel/osrelease", f"{kernel}\n")
        self.put("proc/uptime", f"{machine.get('uptime', 86400.5)} 1000.0\n")
        self.put("proc/cpuinfo", cpuinfo(machine["cpu"], arch))
        self.put("proc/meminfo", "".join(f"{key + ':':15} {value:8} kB\n" for key, value in machine["memory"].items()))
        if "board" in machine:
            self.many("sys/class/dmi/id", dict(zip(("sys_vendor", "product_name"), machine["board"], strict=True)))
        for name in machine.get("modules", ()):
            (self.root / "sys/module" / name).mkdir(parents=True)
        for name in machine.get("dirs", ()):
            (self.root / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for address, card in machine.get("pci", {}).items():
            self.card(address, dict(card))
        for name, interface in machine.get("net", {"eth0": {"mtu": 1500}}).items():
            self.interface(name, dict(interface))
        for hca, adapter in machine.get("rdma", {}).items():
            self.adapter(hca, dict(adapter))
        for pid, process in machine.get("processes", {}).items():
            self.process(pid, process)
        for path, text in machine.get("files", {}).items():
            self.link(path, text["link"]) if isinstance(text, dict) else self.put(path, text)
        for name, answers in machine.get("tools", {}).items():
            self.tool(f"usr/bin/{name}", answers)
        self.nvidia(machine.get("nvidia", {}))

    def card(self, address: str, card: dict[str, Any]) -> None:
        base = f"sys/bus/pci/devices/{address}"
        driver = f"DRIVER={card.pop('driver')}\n" if "driver" in card else ""
        about = f"PCI_CLASS={card.pop('class')}\nPCI_ID={card.pop('id')}\nPCI_SUBSYS_ID=0000:0000\n"
        self.put(f"{base}/uevent", f"{driver}{about}PCI_SLOT_NAME={address}\n")
        self.many(base, {"numa_node": card.pop("numa_node", -1), **card})

    def interface(self, name: str, given: dict[str, Any]) -> None:
        base = f"sys/class/net/{name}"
        if pci := given.pop("pci", None):
            self.put(f"{base}/device/uevent", f"DRIVER=mlx5_core\nPCI_SLOT_NAME={pci}\n")
        if mark := given.pop("kind", None):
            (self.root / base / mark).mkdir(parents=True)
        self.many(base, {"type": 1, "operstate": "up", "mtu": 1500, **given})

    def adapter(self, hca: str, given: dict[str, Any]) -> None:
        base = f"sys/class/infiniband/{hca}"
        for number, port in given.pop("ports").items():
            port = dict(port)
            for place, gid in port.pop("gids", {}).items():
                self.put(f"{base}/ports/{number}/gids/{place}", f"{gid}\n")
            for place, kind in port.pop("types", {}).items():
                self.put(f"{base}/ports/{number}/gid_attrs/types/{place}", f"{kind}\n")
            self.many(f"{base}/ports/{number}", port)
        for net in given.pop("nets", ()):
            (self.root / base / "device/net" / net).mkdir(parents=True)
        self.put(f"{base}/device/numa_node", f"{given.pop('numa_node', -1)}\n")
        self.many(base, given)

    def process(self, pid: int, given: dict[str, Any]) -> None:
        base = f"proc/{pid}"
        self.put(f"{base}/comm", f"{given['name']}\n")
        self.put(f"{base}/status", f"Name:\t{given['name']}\nUid:\t{given.get('uid', 0)}\t0\t0\t0\n")
        for fd, target in given.get("fd", {}).items():
            self.link(f"{base}/fd/{fd}", target)
        for fd, text in given.get("fdinfo", {}).items():
            self.put(f"{base}/fdinfo/{fd}", text)

    def nvidia(self, given: dict[str, Any]) -> None:
        if "version" in given:
            self.put("proc/driver/nvidia/version", f"NVRM version: {given['version']}\nGCC version:  gcc 12.3.0\n")
        for address, text in given.get("gpus", {}).items():
            self.put(f"proc/driver/nvidia/gpus/{address}/information", text)
        if "library" in given:
            place = given.get("libraries", "usr/lib/x86_64-linux-gnu")
            self.put(f"{place}/libcuda.so.{given['library']}", "")
            self.link(f"{place}/libcuda.so.1", f"libcuda.so.{given['library']}")
        if "smi" in given:
            said = dict(given["smi"])
            if "rows" in said:
                said["csv"] = COMMON["heads"][said.pop("head")] + "\n" + said.pop("rows")
            self.tool(given.get("place", "usr/bin/nvidia-smi"), {"smi": said})

    def tool(self, path: str, answers: dict[str, Any]) -> None:
        """A stand-in: the interpreter on stand_in.py, which finds what to say beside itself."""
        self.put(f"{path}.json", json.dumps(answers))
        self.put(path, f'#!/bin/sh\nexec {sys.executable} -I -S {HERE}/stand_in.py "$0.json" "$@"\n')
        (self.root / path.lstrip("/")).chmod(0o755)


def cpuinfo(given: dict[str, Any], arch: str) -> str:
    """One block a thread, as the kernel prints them: `like` names it, `sockets`, `cores` and `threads` say how many."""
    like = COMMON["cpu"][given["like"]]
    sockets, cores, threads = given.get("sockets", 1), given["cores"], given.get("threads", 1)
    blocks = []
    for number in range(sockets * cores * threads):
        block = f"processor\t: {number}\n{like['text']}"
        if arch == "x86_64":
            core = number % (sockets * cores)
            block += f"physical id\t: {core // cores}\ncore id\t\t: {core % cores}\nflags\t\t: {like['flags']}\n"
        blocks.append(block)
    return "\n".join(blocks) + "\n" + like.get("tail", "")
