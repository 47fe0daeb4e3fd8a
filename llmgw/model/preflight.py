"""What a preflight found out about the account on a node: the document that `remote_scripts/preflight.py` answers with.

Sizes in bytes. `None` means that it is not known; `unknown` says why.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmgw.model.base import Report

MAX_ITEMS = 1024


class Shell(Report):
    login: str | None = None
    """As the user database has it, `/usr/bin/fish`."""


class Interpreter(Report):
    path: str
    version: str | None = None
    chosen: bool = False
    """The one that scripts run under."""
    fault: str | None = None
    """Why it does not work, in its own words."""


class Sudo(Report):
    mode: Literal["root", "none", "free", "password", "requiretty", "refused", "unknown"] = "unknown"
    path: str | None = None
    detail: str | None = None
    groups: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    """Groups of this user to whom sudo is given by custom."""


class Logind(Report):
    systemd: bool = False
    kill_user_processes: bool | None = None
    linger: bool | None = None
    exclude: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    only: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    user_manager: bool | None = None
    """Whether the user's own systemd runs right now."""
    systemd_run: bool = False


class KeyPath(Report):
    path: str
    exists: bool = False
    fault: str | None = None


class Sshd(Report):
    server: Literal["openssh", "dropbear"] = "openssh"
    source: str | None = None
    """`sshd -T`, or the file that was read."""
    max_sessions: int | None = None
    max_startups: str | None = None
    """`START:RATE:FULL`, or one number."""
    allow_tcp_forwarding: str | None = None
    """`yes`, `no`, `all`, `local`, `remote`."""
    permit_open: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    pubkey: bool | None = None
    strict_modes: bool | None = None
    authorized_keys_file: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    force_command: str | None = None


class Mount(Report):
    path: str
    place: str | None = None
    """What is there of it, links resolved."""
    fs: str | None = None
    shared: bool | None = None
    free: int | None = Field(default=None, ge=0)
    total: int | None = Field(default=None, ge=0)
    inodes_free: int | None = Field(default=None, ge=0)
    noexec: bool | None = None
    read_only: bool | None = None
    writable: bool | None = None


class Ports(Report):
    free: int = Field(ge=0)
    of: int = Field(ge=0)


class Reached(Report):
    host: str
    ok: bool = False
    error: str | None = None


class Outbound(Report):
    dns: bool | None = None
    hosts: tuple[Reached, ...] = Field(default=(), max_length=MAX_ITEMS)
    proxies: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    """Names of the variables that are set."""


class Packages(Report):
    manager: Literal["apt", "dnf", "zypper", "pacman", "apk"] | None = None


class Ntp(Report):
    synchronized: bool | None = None
    """What the kernel believes of its clock."""
    source: str | None = None
    """The service that keeps it."""


class Oom(Report):
    overcommit: int | None = None
    """vm.overcommit_memory: 2 refuses what is not backed."""


class Device(Report):
    path: str
    ok: bool
    """This user may read and write it."""
    group: str | None = None


class Preflight(Report):
    schema_: int = Field(alias="schema")
    at: float
    shell: Shell | None = None
    pythons: tuple[Interpreter, ...] = Field(default=(), max_length=MAX_ITEMS)
    sudo: Sudo | None = None
    logind: Logind | None = None
    keys: tuple[KeyPath, ...] = Field(default=(), max_length=MAX_ITEMS)
    sshd: Sshd | None = None
    mounts: tuple[Mount, ...] = Field(default=(), max_length=MAX_ITEMS)
    ports: Ports | None = None
    outbound: Outbound | None = None
    tools: dict[str, str | None] = {}
    libraries: dict[str, bool] = {}
    """For each library that was asked for, whether the loader finds it."""
    packages: Packages = Packages()
    selinux: Literal["enforcing", "permissive", "disabled"] | None = None
    hostname: str
    resolved: str | None = None
    """The address that the node's own name leads to."""
    ntp: Ntp | None = None
    init: str | None = None
    """Name of process 1."""
    devices: tuple[Device, ...] = Field(default=(), max_length=MAX_ITEMS)
    oom: Oom = Oom()
    unknown: dict[str, str] = {}

    def mount(self, path: str) -> Mount | None:
        return next((one for one in self.mounts if one.path == path), None)
