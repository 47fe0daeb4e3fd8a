"""Processes of this machine by what they hold: a lock, a port. Read out of /proc (proc(5)), never by trying.

Trying would disturb: whoever takes a lock or a port for an instant, just to see, may turn a server away that starts
at that instant.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A socket that somebody listens on."""

    address: str
    port: int
    uid: int
    inode: int


def lock_holder(path: Path) -> tuple[bool, int | None]:
    """Whether a process holds a flock on the file, and which. Raises OSError where that cannot be told.

    /proc/locks names the lock's device and inode; some file systems (btrfs, overlayfs) show another device there than
    stat(2) does, so where the device differs it has to be a process that has this very file open.
    """
    found = path.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    for line in (PROC / "locks").read_text().splitlines():
        words = line.split()
        if len(words) < 6 or words[1] != "FLOCK" or "->" in words[:2]:
            continue
        pid, (where, inode) = int(words[4]), words[5].rsplit(":", 1)
        if inode != str(found.st_ino):
            continue
        if where == device or has_open(pid, path):
            return True, pid if pid > 0 else None
    return False, None


def has_open(pid: int, path: Path) -> bool:
    """Whether the process has the file open, as far as we may look."""
    return any(target == str(path.resolve()) for target in _descriptors(pid))


def holds(pid: int, path: Path) -> bool | None:
    """Whether the process has open what lies at `path` now, by whatever name; None where we may not look."""
    try:
        numbers = os.listdir(PROC / str(pid) / "fd")
    except OSError:
        return None
    try:
        there = path.stat()
    except OSError:
        return False
    for each in numbers:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(PROC / str(pid) / "fd" / each), there):
                return True
    return False


def listeners(port: int) -> list[Listener]:
    """Who listens on a TCP port, on any address."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            words = line.split()
            address, number = words[1].split(":")
            if words[3] == _LISTEN and int(number, 16) == port:
                found.append(Listener(_address(address), port, int(words[7]), int(words[9])))
    return found


def _address(text: str) -> str:
    """The address as /proc/net/tcp writes it: 32-bit words in the machine's byte order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))


def overlap(one: str, other: str) -> bool:
    """Whether two sockets of one port on these addresses are in each other's way."""
    a, b = ipaddress.ip_address(one), ipaddress.ip_address(other)
    if a == b:
        return True
    if a.version == b.version:
        return a.is_unspecified or b.is_unspecified
    # An IPv6 socket on every address takes IPv4 too, unless it says otherwise: the rule on Linux.
    return (a if a.version == 6 else b).is_unspecified


def owner(inode: int) -> int | None:
    """The process that holds a socket; None where we may not look at it."""
    return next((pid for pid in pids() if f"socket:[{inode}]" in _descriptors(pid)), None)


def pids() -> Iterator[int]:
    return (int(each.name) for each in PROC.iterdir() if each.name.isdecimal())


def alive(pid: int) -> bool:
    return (PROC / str(pid)).exists()


def name(pid: int) -> str:
    """What runs there, in few words; empty for what is gone."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return " ".join(filter(None, words))[:80] or (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def started(pid: int) -> float | None:
    """Unix seconds at which a process began: field 22 of its stat, counted from the boot."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
        boot = re.search(r"^btime (\d+)", (PROC / "stat").read_text(), re.M)
    except OSError:
        return None
    ticks = int(text.rpartition(")")[2].split()[19])
    return int(boot[1]) + ticks / os.sysconf("SC_CLK_TCK") if boot else None


def files(pid: int) -> tuple[int, int] | None:
    """How many files a process has open, and how many it may; None where we may not look."""
    try:
        limits = (PROC / str(pid) / "limits").read_text()
        count = len(os.listdir(PROC / str(pid) / "fd"))
    except OSError:
        return None
    limit = re.search(r"^Max open files\s+(\d+)", limits, re.M)
    return (count, int(limit[1])) if limit else None


def _descriptors(pid: int) -> Iterator[str]:
    folder = PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):
        for each in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(folder / each)


def resolved(host: str) -> list[str]:
    """The addresses behind a name or an address. Raises OSError (socket.gaierror) for a name that nobody knows."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
