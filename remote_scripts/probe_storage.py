"""Where things can be put: the disks under the root and the home, and whether the root will do."""
import os
import re

import prelude
from probe_facts import PROC, read

SHARED = re.compile(r"(nfs4?|lustre|gpfs|ceph|fuse\.ceph.*|beegfs|cifs|smb3|(fuse\.)?glusterfs|afs|wekafs|fuse\.sshfs|"
                    r"9p|virtiofs|ocfs2|gfs2|fuse\.juicefs|fuse\.s3fs)\Z")


def nearest(path):
    """The path itself, or what is there of it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def mounts():
    """(point, kind, device) of every mount, in the order of the kernel's list."""
    for line in (read(PROC + "/self/mountinfo", "") or read("/proc/self/mountinfo")).splitlines():
        head, _, tail = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), head.split()[4])
        kind, device = tail.split(" ")[:2]
        yield point, kind, device


def disk(path, table):
    there = os.path.realpath(nearest(path))
    room, found = os.statvfs(there), []
    for place, (point, kind, device) in enumerate(table):
        if there == point or there.startswith(point.rstrip("/") + "/"):
            found.append((len(point), place, kind, device))  # of two on one point the later one counts
    kind, device = max(found)[2:] if found else (None, None)
    return {"path": path, "device": device, "fs": kind, "total": room.f_blocks * room.f_frsize,
            "free": room.f_bavail * room.f_frsize, "noexec": bool(room.f_flag & os.ST_NOEXEC),
            "read_only": bool(room.f_flag & os.ST_RDONLY)}


def disks():
    table, found, seen = list(mounts()), [], set()
    for path in (prelude.root_path(), prelude.home(), "/"):
        entry = disk(path, table)
        if entry["device"] not in seen:
            seen.add(entry["device"])
            found.append(entry)
    return found


def root():
    """Judged without writing: mount flags, access(2), owners and modes."""
    path = prelude.root_path()
    there, place = nearest(path), disk(path, list(mounts()))
    fault = prelude.fault_of(path) if os.path.lexists(path) else None
    room = os.statvfs(there)
    writable = not fault and not place["read_only"] and os.access(there, os.W_OK | os.X_OK)
    return {"path": path, "exists": os.path.isdir(path), "writable": writable, "free": place["free"],
            "inodes_free": room.f_favail if room.f_files else None, "noexec": place["noexec"],
            "read_only": place["read_only"], "owner_ok": fault is None, "fault": fault, "place": there,
            "fs": place["fs"], "shared": bool(SHARED.match(place["fs"])) if place["fs"] else None}
