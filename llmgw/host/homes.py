"""The home: where the control plane keeps what it owns, and the disk under it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from llmgw.config.home import NETWORK_FILE_SYSTEMS, file_system, find_home
from llmgw.core.findings.rules import arg, listed
from llmgw.core.fit import gib
from llmgw.engines.base import GIB, MIB
from llmgw.host import processes
from llmgw.host.checks import Here, Said, Sentence, check, info, loose, many, mode, present, standing

FULL = 16 * MIB
"""Bytes: SQLite's log of one busy minute, and a backup of a small state."""
LOW = GIB
FEW_INODES = 1000
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path: unix(7)."""
_LEFT = re.compile(r"\.[\w.]+\.(\d+)\Z")


def _free(path: Path) -> int:
    found = os.statvfs(standing(path))
    return found.f_bavail * found.f_frsize


@check("note", "llmgw server run")
def home_missing(here: Here) -> Said:
    """Nothing has been started for this user yet, or LLMGW_HOME names another place than the server's."""
    if info(here.home.path, follow=False) is not None:
        return None
    return f"{here.home.path} does not exist: no control plane has been started here yet"


@check("error", "Set LLMGW_HOME to a directory of its own, or run as the owner of this one.")
def home_unusable(here: Here) -> Said:
    """The home is a link to nowhere or in a circle, on a disk that does not answer, or below a directory that is closed
    to this user; a start is refused."""
    path = here.home.path
    try:
        found = info(path)
    except OSError as exc:
        return f"{path} cannot be looked at: {exc.strerror}"
    if found is None and path.is_symlink():
        return f"{path} is a link that leads to no directory", "Make that directory, or set LLMGW_HOME to another one."
    return None


@check("error", "Set LLMGW_HOME to a directory of your own.")
def home_uncreatable(here: Here) -> Said:
    """The first start makes the home; the directory above it does not let this user."""
    path = here.home.path
    if info(path, follow=False) is not None:
        return None
    above = standing(path)
    if not above.is_dir():
        return f"{path} cannot be made: {above} is no directory"
    return None if os.access(above, os.W_OK | os.X_OK) else f"{path} cannot be made: {above} may not be written"


@check("error", "Set LLMGW_HOME to a directory of its own.")
def home_no_directory(here: Here) -> Said:
    """LLMGW_HOME names a file or something else that is no directory."""
    found = info(here.home.path)
    return None if found is None or stat.S_ISDIR(found.st_mode) else f"{here.home.path} is no directory"


@check("error", "Run as its owner (`sudo -u OWNER`), or set LLMGW_HOME to a directory of your own.")
def home_foreign(here: Here) -> Said:
    """The home belongs to another user: a start is refused, and most of it cannot be looked at."""
    found = info(here.home.path)
    if found is None or found.st_uid == here.uid:
        return None
    fix = f"Run `sudo -u '#{found.st_uid}' llmgw doctor`, or set LLMGW_HOME to a directory of your own."
    return f"{here.home.path} belongs to uid {found.st_uid}, not to uid {here.uid}", fix


@check("error", "Take it from others with `chmod 700`.")
def home_open(here: Here) -> Said:
    """Others may enter the home, where the key to every node lies; a start is refused."""
    found = info(here.home.path)
    if found is None or not found.st_mode & 0o077:
        return None
    return f"others may enter {here.home.path} (mode {mode(found)})", f"chmod 700 {arg(str(here.home.path))}"


@check("error", "Set LLMGW_HOME to a directory on a local disk.")
def home_network(here: Here) -> Said:
    """On a network file system SQLite's write-ahead log gets corrupted; a start is refused."""
    kind = file_system(standing(here.home.path))
    return f"{here.home.path} lies on a network file system ({kind})" if kind in NETWORK_FILE_SYSTEMS else None


@check("warning", "Set LLMGW_HOME to a directory on a disk.")
def home_in_memory(here: Here) -> Said:
    """The next boot takes the state, the key to every node and the cluster's identity with it."""
    kind = file_system(standing(here.home.path))
    return f"{here.home.path} lies on {kind}: it is empty after the next boot" if kind in IN_MEMORY else None


@check("warning", "Take the right to write them from others with `chmod go-w`.")
def home_parent_open(here: Here) -> Said:
    """Whoever may write a directory above the home may put another home in its place."""
    wrong: list[Sentence] = []
    for above in Path(os.path.realpath(here.home.path)).parents:
        found = info(above)
        if found is None:
            continue
        if found.st_uid not in (0, here.uid):
            wrong.append((f"{above}, above the home, belongs to uid {found.st_uid}", "Choose another LLMGW_HOME."))
        elif loose(found, here.uid) and not found.st_mode & stat.S_ISVTX:
            fix = f"chmod go-w {arg(str(above))}"
            wrong.append((f"{above}, above the home, may be written by others (mode {mode(found)})", fix))
    return wrong


@check("error", "Mount it writable, or set LLMGW_HOME to another directory.")
def home_read_only(here: Here) -> Said:
    """Nothing can be remembered: a start is refused, and a server that runs can change nothing."""
    path = here.home.path
    found = info(path)
    if found is None or found.st_uid != here.uid:
        return None
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{path} is mounted read-only", f'mount -o remount,rw "$(findmnt -nro TARGET -T {arg(str(path))})"'
    if not os.access(path, os.W_OK | os.X_OK):
        return f"{path} may not be written by its owner (mode {mode(found)})", f"chmod 700 {arg(str(path))}"
    return None


@check("error", "Free some space there.")
def home_full(here: Here) -> Said:
    """Serving goes on without space; every change is refused until there is some."""
    free = _free(here.home.path)
    if free >= FULL:
        return None
    fix = f"du -xd1 {arg(str(here.home.path))} | sort -n | tail"
    return f"{free // 1024} KiB are free at {here.home.path}: changes are refused", fix


@check("warning", "Free some space there.")
def home_low(here: Here) -> Said:
    """The state, its log and seven backups have to fit; so has the mirror, where it lies in the home."""
    free = _free(here.home.path)
    return f"{gib(free)} are free at {here.home.path}" if FULL <= free < LOW else None


@check("warning", "Remove small files there.")
def home_inodes(here: Here) -> Said:
    """The disk has hardly any file entries left: writing fails with `No space left on device` all the same."""
    found = os.statvfs(standing(here.home.path))
    if not found.f_files or found.f_favail >= FEW_INODES:
        return None
    return (
        f"{here.home.path} has room for {many(found.f_favail, 'more file')} only",
        f"df -i {arg(str(here.home.path))}",
    )


@check("error", "Give them to the owner of the home with `chown`.")
def home_mixed(here: Here) -> Said:
    """Files of another user in the home: a command ran under another user (sudo), and its owner cannot write them."""
    home = info(here.home.path)
    if home is None or not stat.S_ISDIR(home.st_mode) or home.st_uid != here.uid:
        return None
    foreign = []
    for each in sorted(here.home.path.iterdir()):
        found = info(each, follow=False)
        if found is not None and found.st_uid != home.st_uid:
            foreign.append(each.name)
    if not foreign:
        return None
    fix = f"sudo chown -R {home.st_uid} {arg(str(here.home.path))}"
    return f"{listed(foreign)} in {here.home.path} do not belong to uid {home.st_uid}", fix


@check("note", "Remove them.")
def home_leftovers(here: Here) -> Said:
    """Halves of files that a process was writing when it was killed; nothing reads them."""
    home = info(here.home.path)
    if home is None or not stat.S_ISDIR(home.st_mode):
        return None
    found = [
        each.name
        for each in sorted(here.home.path.iterdir())
        if (match := _LEFT.fullmatch(each.name)) and not processes.alive(int(match[1]))
    ]
    return f"{listed(found)} in {here.home.path} were left by a process that is gone" if found else None


@check("error", "Set LLMGW_HOME to a shorter path.")
def socket_path_long(here: Here) -> Said:
    """A Unix socket's path may have 107 bytes: a longer one cannot be bound, and commands do not reach the server."""
    size = len(os.fsencode(here.home.socket))
    return f"{here.home.socket} has {size} bytes, {LONGEST_SOCKET} are possible" if size > LONGEST_SOCKET else None


@check("error", "Correct its owner and mode, or set mirror.dir in llmgw.yaml to another directory.")
def mirror_unusable(here: Here) -> Said:
    """Weights and engine archives are kept there: without it nothing is installed on any node."""
    path = here.mirror
    if path.is_relative_to(here.home.path) and not present(path):
        return None
    place = standing(path)
    if not place.is_dir():
        return f"the mirror {path} cannot be made: {place} is no directory"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"the mirror {path} is mounted read-only"
    return None if os.access(place, os.W_OK | os.X_OK) else f"the mirror {path} may not be written by uid {here.uid}"


@check("warning", "Free some space there, or set mirror.dir in llmgw.yaml to a directory on a larger disk.")
def mirror_low(here: Here) -> Said:
    """A model of seven billion parameters takes four to fifteen GiB in the mirror before it goes to a node."""
    free = _free(here.mirror)
    return f"{gib(free)} are free for weights at {here.mirror}" if free < 4 * GIB else None


@check("note", "Use `sudo llmgw`, or set LLMGW_ADMIN_URL and LLMGW_ADMIN_TOKEN.")
def home_of_root(here: Here) -> Said:
    """Another control plane runs on this machine, root's: commands of this user are sent there, not to this home."""
    roots = find_home({}, 0)
    if here.uid == 0 or here.environ.get("LLMGW_HOME") or roots.path == here.home.path:
        return None
    try:
        running = present(roots.socket)
    except PermissionError:
        running = True  # a home of mode 0700 shows its socket to nobody else
    return f"root has a control plane of its own in {roots.path}" if running else None
