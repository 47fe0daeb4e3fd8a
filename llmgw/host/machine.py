"""The machine under the control plane: its clock, its name, its limits, its memory."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import socket
from pathlib import Path

from llmgw.core.findings.rules import arg
from llmgw.core.fit import gib
from llmgw.engines.base import MIB
from llmgw.host.checks import Here, Said, Sentence, check, many, span

UNSYNCHRONISED = 0x40
"""STA_UNSYNC of adjtimex(2)."""
LONG_AGO = 1_735_689_600.0
"""2025-01-01: a clock before it was never set."""
SKEW = 30.0
CLIENTS = 1024
"""Clients at the same time that the endpoint should stand at the least; each is a descriptor."""
A_NODE = 6
"""Descriptors that a node takes at most: its connection, one to a jump host, files that are sent to it."""
LITTLE_MEMORY = 256 * MIB
TMP = 32 * MIB


@check("warning", "Run `sudo timedatectl set-ntp true`, or start chronyd.")
def clock_unsynchronised(here: Here) -> Said:
    """Nobody keeps the clock right: certificates, usage by the day and the ages in every table drift with it."""
    timex = ctypes.create_string_buffer(512)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(timex) < 0:  # no modes are set: it only reads
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    wide = ctypes.sizeof(ctypes.c_long)
    status = ctypes.c_int.from_buffer(timex, 5 * wide).value  # behind modes, offset, freq, maxerror, esterror
    return "the kernel says that nobody keeps the clock synchronised" if status & UNSYNCHRONISED else None


@check("error", "Set the clock: `sudo timedatectl set-ntp true`, or `set-time` where there is no time service.")
def clock_wrong(here: Here) -> Said:
    """Certificates are refused and keys look as if they were made in the future."""
    if here.now < LONG_AGO:
        return f"the clock stands {span(LONG_AGO - here.now)} before 2025"
    offsets = [answer.date - answer.asked for answer in here.answers if answer.date is not None]
    if not offsets:
        return None
    # Each place's clock is its own: only where all of them disagree with ours is it ours that is wrong.
    least = min(offsets, key=abs)
    if abs(least) < SKEW or not (all(each > 0 for each in offsets) or all(each < 0 for each in offsets)):
        return None
    return (
        f"the clock is {span(abs(least))} {'behind' if least > 0 else 'ahead of'} that of {here.answers[0].place.name}"
    )


@check("warning", "Raise LimitNOFILE= in the unit, or `nofile` in /etc/security/limits.conf.")
def files_few(here: Here) -> Said:
    """Each client and each node is a descriptor; the server takes as many as it may have, and needs more than that."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    nodes = (here.state.nodes if here.state else None) or 0
    wanted = CLIENTS + A_NODE * nodes
    if most == resource.RLIM_INFINITY or most >= wanted:
        return None
    return f"{most} files may be open at most; {CLIENTS} clients and {many(nodes, 'node')} take {wanted}"


@check("warning", "End what fills the memory, or give the machine more.")
def memory_short(here: Here) -> Said:
    """Under a quarter of a GiB is left: the kernel may kill the control plane for it."""
    found = re.search(r"^MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(), re.M)
    if found is None:
        raise OSError("there is no MemAvailable in /proc/meminfo")
    free = int(found[1]) * 1024
    return f"{gib(free)} of memory are available" if free < LITTLE_MEMORY else None


@check("warning", "Raise MemoryMax of the unit, or the container's limit.")
def memory_limited(here: Here) -> Said:
    """The control group allows little memory: the control plane of a thousand nodes takes some hundred MiB."""
    text = Path("/proc/self/cgroup").read_text()
    match = re.search(r"^0::(/.*)$", text, re.M)
    folder = Path("/sys/fs/cgroup") / (match[1].lstrip("/") if match else "")
    for place in (folder, *folder.parents):
        if not place.is_relative_to("/sys/fs/cgroup"):
            break
        try:
            limit = (place / "memory.max").read_text().strip()
        except OSError:
            continue
        if limit.isdecimal() and int(limit) < 2 * LITTLE_MEMORY:
            return f"its control group allows {gib(int(limit))} of memory"
    return None


@check("note", "Name it in /etc/hosts.")
def hostname_unknown(here: Here) -> Said:
    """This machine does not know its own name: sudo and some tools wait for a name service each time."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return (
            f"nobody knows the name {name}, which is this machine's",
            f"echo {arg(f'127.0.1.1 {name}')} | {'' if here.uid == 0 else 'sudo '}tee -a /etc/hosts",
        )
    return None


@check("warning", "Free some space there, or set TMPDIR to another directory.")
def tmp_unusable(here: Here) -> Said:
    """The control plane needs no directory for temporary files, but Python and ssh-keygen do."""
    found: list[Sentence] = []
    place = Path(here.environ.get("TMPDIR") or "/tmp")
    if not place.is_dir():
        found.append(f"{place} is no directory")
    elif not os.access(place, os.W_OK | os.X_OK):
        found.append(f"{place} may not be written")
    else:
        space = os.statvfs(place)
        if space.f_bavail * space.f_frsize < TMP:
            found.append(f"{space.f_bavail * space.f_frsize // 1024} KiB are free in {place}")
        elif space.f_files and space.f_favail < 100:
            found.append(f"{place} has room for {many(space.f_favail, 'more file')} only")
    return found


@check("note", "Nothing, when it is meant so; as root everything is seen.")
def processes_hidden(here: Here) -> Said:
    """/proc shows this user its own processes only: who holds a port cannot be named."""
    if here.uid == 0 or Path("/proc/1/stat").exists():
        return None
    return "/proc is mounted with hidepid: processes of others are not seen"
