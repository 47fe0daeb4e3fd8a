"""Where things can be put: file systems, by the kernel's list and their flags, never by trying. Each question has a
deadline: a file server that is gone holds whoever asks for anything on it."""
import os
import re

import prelude
from probe_facts import PROC, Later, fact, read

SHARED = re.compile(r"(nfs\d*|cifs|smb\d*|lustre|gpfs|beegfs|afs|9p|virtiofs|orangefs|pvfs2|ocfs2|gfs2|wekafs|panfs|"
                    r"(fuse\.)?(ceph\S*|glusterfs)|fuse\.(sshfs|s3fs|juicefs|rclone|weka\w*))\Z")
SECONDS = 3.0


def nearest(path):
    """The path itself, or what is there of it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def mounts():
    """(point, kind, device) of every mount, in the order of the kernel's list."""
    found = []
    for line in (read(PROC + "/self/mountinfo", "") or read("/proc/self/mountinfo")).splitlines():
        head, _, tail = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), head.split()[4])
        found.append((point,) + tuple(tail.split(" ")[:2]))
    return found


def storage(path, table):
    """The file system under a path, and what this user may do there."""
    there, over = os.path.realpath(nearest(path)), []
    for place, (point, kind, device) in enumerate(table):
        if there == point or there.startswith(point.rstrip("/") + "/"):
            over.append((len(point), place, kind, device))  # of two on one point the later one counts
    kind, device = max(over)[2:] if over else (None, None)
    room = os.statvfs(there)
    return {"path": path, "place": there, "device": device, "fs": kind,
            "shared": bool(SHARED.match(kind)) if kind else None, "free": room.f_bavail * room.f_frsize,
            "total": room.f_blocks * room.f_frsize, "inodes_free": room.f_favail if room.f_files else None,
            "noexec": bool(room.f_flag & os.ST_NOEXEC), "read_only": bool(room.f_flag & os.ST_RDONLY),
            "writable": os.access(there, os.W_OK | os.X_OK)}


def every(name, paths, keys):
    """These facts of each path that answers; of the others the reason, as NAME.PATH."""
    table = mounts()
    asked = [(path, Later(storage, path, table, seconds=SECONDS)) for path in paths]
    found = [fact("%s.%s" % (name, path), one.get) for path, one in asked]
    return [{key: each[key] for key in keys} for each in found if each]


def disks():
    keys, found, seen = ("path", "device", "fs", "total", "free", "noexec", "read_only"), [], set()
    for entry in every("disks", (prelude.root_path(), prelude.home(), "/"), keys):
        if entry["device"] not in seen:
            seen.add(entry["device"])
            found.append(entry)
    return found


def root():
    """What is known of the root; its path alone where it does not answer."""
    path = prelude.root_path()
    return fact("root", Later(owned, path, seconds=SECONDS).get) or {"path": path}


def owned(path):
    about, there = storage(path, mounts()), nearest(path)
    fault = prelude.fault_of(path) if os.path.lexists(path) else None
    found = {key: about[key] for key in ("path", "free", "inodes_free", "noexec", "read_only", "fs", "shared")}
    found.update(exists=os.path.isdir(path), place=there, owner_ok=fault is None, fault=fault,
                 writable=not fault and not about["read_only"] and about["writable"])
    return found
