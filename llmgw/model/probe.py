"""What a probe found out about a node: the typed part of the document that `remote_scripts/probe.py` answers with.

Sizes in bytes, times in Unix seconds, rates of a fabric in Gbit/s. `None` means that it could not be read; `unknown`
says why. Never 0 instead. Facts only: what they mean is judged in `core/`.
Schema 1 said less, and said problems too; a stored document of it still reads.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmgw.model.base import HIGHEST_TERM, Report
from llmgw.model.gpu import MAX_GPUS, Amd, Gpu, GpuProcess, Intel, Nvidia, Xid

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
    wsl: bool = False


class Libc(Report):
    kind: str | None = None
    version: str | None = None


class Cpu(Report):
    model: str | None = None
    vendor: str | None = None
    cores: int | None = Field(default=None, ge=1)
    threads: int | None = Field(default=None, ge=1)
    usable: int | None = Field(default=None, ge=1)
    """Threads that this process may run on, by its affinity."""
    flags: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    """Only those that engines ask for."""
    level: str | None = None
    """`x86-64-v1` to `v4` (the psABI's levels), `armv8`, `armv8.2`, `armv9`, else the machine's name."""
    hypervisor: bool | None = None
    """Whether the CPU shows the flag by which a hypervisor makes itself known (x86 only)."""


class Memory(Report):
    total: int | None = Field(default=None, ge=0)
    available: int | None = Field(default=None, ge=0)
    cgroup_limit: int | None = Field(default=None, ge=0)
    swap_total: int | None = Field(default=None, ge=0)
    swap_free: int | None = Field(default=None, ge=0)
    huge_pages: int | None = Field(default=None, ge=0)
    """Bytes set aside as huge pages: no ordinary allocation gets them."""

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


class HcaPort(Report):
    """A port of an RDMA adapter."""

    hca: str
    port: int
    state: str | None = None
    """`ACTIVE`, `INIT`, `ARMED`, `DOWN`."""
    phys_state: str | None = None
    """`LinkUp`, `Polling`, `Disabled`, …"""
    link_layer: str | None = None
    """`InfiniBand` or `Ethernet` (RoCE)."""
    rate_gbps: float | None = None
    lid: int | None = None
    sm_lid: int | None = None
    """0: no subnet manager has been seen."""
    node_guid: str | None = None
    port_guid: str | None = None
    subnet_prefix: str | None = None
    gids: tuple[str, ...] = Field(default=(), max_length=64)
    """The first RoCE GIDs, as `INDEX TYPE GID`."""
    nets: tuple[str, ...] = Field(default=(), max_length=64)
    numa: int | None = Field(default=None, ge=0)
    firmware: str | None = None
    board: str | None = None


class Interface(Report):
    name: str
    kind: Literal["physical", "virtual", "bond", "bridge", "loopback"] = "virtual"
    state: str | None = None
    speed_mbps: int | None = Field(default=None, ge=0)
    mtu: int | None = None
    addresses: tuple[str, ...] = Field(default=(), max_length=256)
    """With the length of their network: `10.0.0.2/24`."""
    pci: str | None = None


class Management(Report):
    """The way we came in, from SSH_CONNECTION."""

    interface: str | None = None
    address: str
    peer: str


class TaggedProcess(Report):
    pid: int
    start_ticks: int
    replica: str | None = None
    rank: int | None = None
    attempt: int | None = None
    cluster: str | None = None
    rss: int | None = Field(default=None, ge=0)
    cpu_seconds: float | None = None


class Limits(Report):
    """-1 is unlimited."""

    nofile: int | None = None
    """Hard: engines are started with it."""
    nofile_soft: int | None = None
    memlock: int | None = None
    """Bytes."""
    nproc: int | None = None
    cpu_quota: float | None = None
    """Cores that the control groups allow."""


class Root(Report):
    path: str
    exists: bool | None = None
    writable: bool | None = None
    free: int | None = Field(default=None, ge=0)
    inodes_free: int | None = Field(default=None, ge=0)
    """None on file systems that do not count them."""
    noexec: bool | None = None
    read_only: bool | None = None
    owner_ok: bool | None = None
    fault: str | None = None
    """Why it must not be used: `is writable by others`."""
    place: str | None = None
    """The nearest directory above it that is there: it is what can be written to or not."""
    fs: str | None = None
    shared: bool | None = None
    """On a file system that other machines may see too (NFS, Lustre, …)."""


class Owner(Report):
    controller_id: str
    term: int = Field(ge=0, le=HIGHEST_TERM)


class Probe(Report):
    schema_: int = Field(alias="schema")
    at: float
    hostname: str
    machine_id: str | None = None
    boot_id: str
    uptime_s: float | None = None
    python: Python
    user: User
    home_mode: int | None = None
    """Permission bits of the home: sshd ignores keys in one that others may write."""
    os: Os
    libc: Libc = Libc()
    virtualization: str | None = None
    """`none`, or the hypervisor: `kvm`, `vmware`, `aws`, `wsl`, …"""
    container: str | None = None
    """`docker`, `podman`, `lxc`, `kubernetes`, … None outside of any."""
    cpu: Cpu = Cpu()
    load: tuple[float, ...] | None = None
    memory: Memory = Memory()
    disks: tuple[Disk, ...] = Field(default=(), max_length=MAX_ITEMS)
    gpus: tuple[Gpu, ...] = Field(default=(), max_length=MAX_GPUS)
    gpu_processes: tuple[GpuProcess, ...] = Field(default=(), max_length=MAX_ITEMS)
    nvidia: Nvidia | None = None
    amd: Amd | None = None
    intel: Intel | None = None
    xid: tuple[Xid, ...] | None = Field(default=None, max_length=MAX_ITEMS)
    fabric: tuple[HcaPort, ...] | None = Field(default=None, max_length=MAX_ITEMS)
    interfaces: tuple[Interface, ...] | None = Field(default=None, max_length=MAX_ITEMS)
    management: Management | None = None
    limits: Limits | None = None
    kernel_modules: dict[str, bool] | None = None
    ports_in_use: tuple[int, ...] | None = Field(default=None, max_length=65536)
    processes: tuple[TaggedProcess, ...] = Field(default=(), max_length=MAX_ITEMS)
    root: Root
    owner: Owner | None = None
    unknown: dict[str, str] = {}
