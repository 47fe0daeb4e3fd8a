"""What a probe found out about a node: the typed part of the document that `remote_scripts/probe.py` answers with.

Sizes in bytes, times in Unix seconds. `None` means that it could not be read; `unknown` says why. Never 0 instead.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from llmgw.model.base import Report
from llmgw.model.node import Problem

MAX_ITEMS = 4096


class Python(Report):
    executable: str
    version: str


class User(Report):
    name: str
    uid: int
    home: str | None = None
    shell: str | None = None


class Os(Report):
    id: str | None = None
    version: str | None = None
    pretty: str | None = None
    kernel: str | None = None
    arch: str


class Libc(Report):
    kind: str | None = None
    version: str | None = None


class Cpu(Report):
    model: str | None = None
    cores: int | None = Field(default=None, ge=1)
    threads: int | None = Field(default=None, ge=1)
    flags: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    level: str | None = None


class Memory(Report):
    total: int | None = Field(default=None, ge=0)
    available: int | None = Field(default=None, ge=0)
    cgroup_limit: int | None = Field(default=None, ge=0)

    @property
    def usable(self) -> int | None:
        """What processes here can have at most: the machine's memory, or the control group's limit below it."""
        if self.total is None:
            return None
        return min(self.total, self.cgroup_limit) if self.cgroup_limit else self.total


class Disk(Report):
    path: str
    device: str | None = None
    fs: str | None = None
    total: int | None = Field(default=None, ge=0)
    free: int | None = Field(default=None, ge=0)
    noexec: bool | None = None
    read_only: bool | None = None


class Gpu(Report):
    index: int | None = None
    vendor: str
    uuid: str | None = None
    name: str | None = None
    pci: str | None = None
    memory_kind: Literal["dedicated", "unified", "shared", "unknown"] = "unknown"
    memory_total: int | None = Field(default=None, ge=0)
    memory_used: int | None = Field(default=None, ge=0)
    utilization: float | None = None
    temperature: float | None = None
    driver: str | None = None
    mig: str | bool | None = None
    compute_capability: str | None = None


class GpuProcess(Report):
    gpu: str | None = None
    pid: int
    user: str | None = None
    name: str | None = None
    memory: int | None = Field(default=None, ge=0)
    owner: Literal["ours", "theirs", "orphan"] = "theirs"
    replica: str | None = None


class TaggedProcess(Report):
    pid: int
    start_ticks: int
    replica: str | None = None
    rank: int | None = None
    attempt: int | None = None
    cluster: str | None = None
    rss: int | None = Field(default=None, ge=0)
    cpu_seconds: float | None = None


class Root(Report):
    path: str
    exists: bool | None = None
    writable: bool | None = None
    free: int | None = Field(default=None, ge=0)
    noexec: bool | None = None
    owner_ok: bool | None = None


class Owner(Report):
    controller_id: str
    term: int


class Probe(Report):
    schema_: int = Field(alias="schema")
    at: float
    hostname: str
    machine_id: str | None = None
    boot_id: str
    uptime_s: float | None = None
    python: Python
    user: User
    os: Os
    libc: Libc = Libc()
    virtualization: str | None = None
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    disks: tuple[Disk, ...] = Field(default=(), max_length=MAX_ITEMS)
    gpus: tuple[Gpu, ...] = Field(default=(), max_length=1024)
    gpu_processes: tuple[GpuProcess, ...] = Field(default=(), max_length=MAX_ITEMS)
    processes: tuple[TaggedProcess, ...] = Field(default=(), max_length=MAX_ITEMS)
    nvidia: dict[str, Any] | None = None
    root: Root
    owner: Owner | None = None
    unknown: dict[str, str] = {}
    problems: tuple[Problem, ...] = Field(default=(), max_length=256)
