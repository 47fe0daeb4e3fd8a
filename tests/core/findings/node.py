"""A healthy node to start from: with these facts no rule finds anything. A test names only what it is about."""

from __future__ import annotations

import copy
from typing import Any

from llmgw.core.findings import judge
from llmgw.model.node import Problem
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe
from llmgw.model.surroundings import Surroundings

GIB = 1 << 30
HOME = "/home/anna"
ROOT = f"{HOME}/.local/share/llmgw"

PROBE: dict[str, Any] = {
    "schema": 2,
    "at": 1_700_000_000.0,
    "hostname": "gpu01",
    "machine_id": "0123456789abcdef0123456789abcdef",
    "boot_id": "9b6c1d0e-0000-4000-8000-000000000000",
    "uptime_s": 86400.0,
    "python": {"executable": "/usr/bin/python3.11", "version": "3.11.2"},
    "user": {"name": "anna", "uid": 1000, "home": HOME, "shell": "/bin/bash"},
    "home_mode": 0o755,
    "os": {"id": "debian", "version": "12", "pretty": "Debian 12", "kernel": "6.1.0-18-amd64", "arch": "x86_64"},
    "libc": {"kind": "glibc", "version": "2.36"},
    "virtualization": "none",
    "cpu": {"model": "AMD EPYC 9354", "threads": 64, "usable": 64, "flags": ["avx2", "fma"], "level": "x86-64-v3"},
    "memory": {"total": 256 * GIB, "available": 250 * GIB, "swap_total": 8 * GIB, "swap_free": 8 * GIB},
    "limits": {"nofile": 1048576, "nofile_soft": 1024, "memlock": -1, "nproc": 100000},
    "ports_in_use": [],
    "root": {
        "path": ROOT,
        "place": HOME,
        "exists": False,
        "writable": True,
        "read_only": False,
        "noexec": False,
        "owner_ok": True,
        "free": 500 * GIB,
        "inodes_free": 10_000_000,
        "fs": "ext4",
        "shared": False,
    },
}
GPU: dict[str, Any] = {
    "index": 0,
    "vendor": "nvidia",
    "uuid": "GPU-0",
    "name": "NVIDIA H100 80GB HBM3",
    "pci": "0000:18:00.0",
    "memory_kind": "dedicated",
    "memory_total": 80 * GIB,
    "memory_used": 0,
    "utilization": 0.0,
    "temperature": 40.0,
    "compute_capability": "9.0",
    "persistence": True,
    "ecc_uncorrected": 0,
    "mig": False,
    "pcie": {"generation": 5, "width": 16, "max_generation": 5, "max_width": 16},
    "health": "ok",
}
NVIDIA: dict[str, Any] = {
    "driver": "580.65.06",
    "kernel_module": "580.65.06",
    "library": "580.65.06",
    "cuda": "13.0",
    "smi": "/usr/bin/nvidia-smi",
    "cards": [{"pci": "0000:18:00.0", "device_id": "0x2330", "driver": "nvidia"}],
    "peermem": True,
}
MOUNT: dict[str, Any] = {
    "fs": "ext4",
    "shared": False,
    "free": 100 * GIB,
    "total": 200 * GIB,
    "inodes_free": 1_000_000,
    "noexec": False,
    "read_only": False,
    "writable": True,
}
PREFLIGHT: dict[str, Any] = {
    "schema": 1,
    "at": 1_700_000_000.0,
    "shell": {"login": "/bin/bash"},
    "pythons": [{"path": "/usr/bin/python3.11", "version": "3.11.2", "chosen": True}],
    "sudo": {"mode": "free", "path": "/usr/bin/sudo", "groups": ["sudo"]},
    "logind": {
        "systemd": True,
        "kill_user_processes": False,
        "linger": False,
        "exclude": ["root"],
        "systemd_run": True,
    },
    "keys": [{"path": HOME, "exists": True}, {"path": f"{HOME}/.ssh"}, {"path": f"{HOME}/.ssh/authorized_keys"}],
    "sshd": {
        "server": "openssh",
        "source": "/etc/ssh/sshd_config",
        "max_sessions": 10,
        "max_startups": "10:30:100",
        "allow_tcp_forwarding": "yes",
        "pubkey": True,
        "strict_modes": True,
        "authorized_keys_file": [".ssh/authorized_keys", ".ssh/authorized_keys2"],
    },
    "mounts": [
        {"path": ROOT, "place": HOME, **MOUNT},
        {"path": HOME, "place": HOME, **MOUNT},
        {"path": "/tmp", "place": "/tmp", **MOUNT},
        {"path": "/dev/shm", "place": "/dev/shm", **MOUNT, "fs": "tmpfs"},
    ],
    "ports": {"free": 1000, "of": 1000},
    "outbound": {"dns": True, "hosts": [{"host": "pypi.org:443", "ok": True}]},
    "tools": {"ldd": "/usr/bin/ldd", "ibstat": None},
    "libraries": {"libgomp.so.1": True},
    "packages": {"manager": "apt"},
    "selinux": "disabled",
    "hostname": "gpu01",
    "resolved": "127.0.1.1",
    "ntp": {"synchronized": True, "source": "chronyd"},
    "init": "systemd",
    "oom": {"overcommit": 0},
}


def changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The document with other values at `a.b` or `a.0.b`; `a.+` puts one more into a list."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        place: Any = document
        *above, last = path.split(".")
        for part in above:
            if isinstance(place, list):
                place = place[int(part)]
            else:
                if place.get(part) is None:
                    place[part] = [] if last == "+" else {}
                place = place[part]
        if last == "+":
            place.append(value)
        elif isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    return document


def probe(**changes: Any) -> Probe:
    return Probe.model_validate(changed(PROBE, {key.replace("__", "."): value for key, value in changes.items()}))


def judged(
    probe: dict[str, Any] | None = None,
    preflight: dict[str, Any] | None = None,
    outside: dict[str, Any] | None = None,
    *,
    node_id: str | None = None,
) -> dict[str, Problem]:
    """Findings by code, of the healthy node with these changes."""
    found = judge(
        Probe.model_validate(changed(PROBE, probe or {})),
        Preflight.model_validate(changed(PREFLIGHT, preflight or {})),
        Surroundings.model_validate(outside or {}),
        node_id=node_id,
        ports=(41000, 41999),
    )
    return {one.code: one for one in found}
