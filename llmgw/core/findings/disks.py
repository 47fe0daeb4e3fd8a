"""Where things lie on the node: the root, the home, /tmp, shared memory. Judged by flags and modes, never by trying."""

from __future__ import annotations

from llmgw.core.findings.rules import Facts, Said, arg, on_preflight, on_probe, quoted
from llmgw.core.fit import gib
from llmgw.engines.base import GIB, MIB
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe

LOW_DISK = 1 * GIB
FEW_INODES = 2000
"""An unpacked engine with its libraries is some hundred files; several of them have to fit."""
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def _remount(place: str, facts: Facts) -> str:
    return facts.root(f'mount -o remount,rw "$(findmnt -nro TARGET -T {arg(place)})"')


@on_probe("root_silent", "error", "Bring the file server back, or name another --root.")
def root_silent(probe: Probe, facts: Facts) -> Said:
    """Nothing can be learned of the root: mostly a file server that is gone, and holds whoever asks it for anything."""
    why = probe.unknown.get("root")
    return f"the file system of {probe.root.path} does not answer: {quoted(why)}" if why else None


@on_probe("unsafe_root", "error", "Correct its owner and mode (`chmod go-w`), or name another --root.")
def unsafe_root(probe: Probe, facts: Facts) -> Said:
    """The root is a link, belongs to somebody else or may be written by others: they could change what is run there."""
    root = probe.root
    if root.owner_ok is not False:
        return None
    return f"{root.path} {root.fault or 'does not belong to this user alone'}"


@on_probe("unwritable_root", "error", "Name a writable --root.")
def unwritable_root(probe: Probe, facts: Facts) -> Said:
    """Engines and weights need a directory of this user's own."""
    root = probe.root
    place = root.place or root.path
    if root.owner_ok is False or (root.writable is not False and not root.read_only):
        return None
    if root.read_only:
        return f"{place} is mounted read-only", f"Run `{_remount(place, facts)}`, or name another --root."
    return f"{place} cannot be written by this user"


@on_probe("noexec_root", "error", "Name another --root.")
def noexec_root(probe: Probe, facts: Facts) -> Said:
    """On a file system mounted noexec no engine can be started."""
    return (
        f"{probe.root.place or probe.root.path} is mounted noexec: engines cannot run from there"
        if probe.root.noexec
        else None
    )


@on_probe("low_disk", "warning", "Free some space there, or name a --root on a larger disk.")
def low_disk(probe: Probe, facts: Facts) -> Said:
    """Under a GiB is left where engines and weights go: a small engine fits, weights do not."""
    free = probe.root.free
    if free is None or free >= LOW_DISK:
        return None
    return f"{free // MIB} MB free at {probe.root.place or probe.root.path}"


@on_probe("few_inodes", "warning", "Remove small files there, or name a --root on another disk.")
def few_inodes(probe: Probe, facts: Facts) -> Said:
    """The file system has space but hardly any file entries left: writing fails with `No space left on device`."""
    free = probe.root.inodes_free
    if free is None or free >= FEW_INODES:
        return None
    place = probe.root.place or probe.root.path
    return (
        f"{place} has room for {free} more files only",
        f"See `df -i {arg(place)}`; remove small files, or name another --root.",
    )


@on_probe("root_in_memory", "warning", "Name a --root on a disk.")
def root_in_memory(probe: Probe, facts: Facts) -> Said:
    """The root lies in memory (tmpfs): weights take it from the engines, and all is gone with the next boot."""
    if probe.root.fs not in IN_MEMORY:
        return None
    return f"{probe.root.path} lies on {probe.root.fs}: it takes memory, and is empty after the next boot"


@on_probe("root_shared", "note", "Where it is slow, name a --root on a local disk.")
def root_shared(probe: Probe, facts: Facts) -> Said:
    """The root lies on a network file system. Nodes may share it (each keeps its own folder); loading may be slow."""
    if not probe.root.shared:
        return None
    where = probe.root.fs or "a network file system"
    return f"{probe.root.path} lies on {where}: other nodes may share it, loading may be slow"


@on_preflight("home_shared", "note", "Nothing, when it is meant so.")
def home_shared(preflight: Preflight, facts: Facts) -> Said:
    """The home lies on a network file system: the key put into ~/.ssh opens every machine that shares it."""
    home = facts.home
    if home is None or not home.shared:
        return None
    return f"the home {home.path} lies on {home.fs}: the key put there opens every machine that shares it"


@on_preflight("home_full", "warning", "Free some space in the home.")
def home_full(preflight: Preflight, facts: Facts) -> Said:
    """A full home takes no key, and engines that keep a cache there fail in odd ways."""
    home = facts.home
    if home is None or home.free is None:
        return None
    if home.free >= 4 * MIB and (home.inodes_free is None or home.inodes_free >= 20):
        return None
    left = f"{home.free // 1024} KB free" if home.free < 4 * MIB else f"room for {home.inodes_free} more files"
    return f"the home {home.path} is full: {left}", f"du -xd1 {arg(home.path)} | sort -n | tail"


@on_preflight("tmp_noexec", "note", "Set TMPDIR for an engine that compiles, or mount /tmp without noexec.")
def tmp_noexec(preflight: Preflight, facts: Facts) -> Said:
    """llmgw does not use /tmp, but engines that compile kernels (vLLM, SGLang by Triton) run what they put there."""
    tmp = preflight.mount("/tmp")
    return "/tmp is mounted noexec: engines that compile kernels fail there" if tmp and tmp.noexec else None


@on_preflight("tmp_full", "warning", "Empty /tmp.")
def tmp_full(preflight: Preflight, facts: Facts) -> Said:
    """llmgw does not use /tmp, but hardly any engine starts without room there."""
    tmp = preflight.mount("/tmp")
    if tmp is None or tmp.free is None or tmp.free >= 64 * MIB:
        return None
    return (
        f"/tmp is full: {tmp.free // MIB} MB free",
        f"Look at `{facts.root('du -xd1 /tmp')} | sort -n | tail`, and remove what nobody needs.",
    )


@on_preflight("tmp_unwritable", "warning", "sudo chmod 1777 /tmp")
def tmp_unwritable(preflight: Preflight, facts: Facts) -> Said:
    """This user may not write /tmp; hardly any engine starts without."""
    tmp = preflight.mount("/tmp")
    if tmp is None or tmp.writable is not False:
        return None
    if tmp.read_only:
        return "/tmp is mounted read-only", _remount("/tmp", facts)
    return f"{facts.user} may not write /tmp", facts.root("chmod 1777 /tmp")


@on_preflight(
    "shm_small", "warning", "Run `sudo mount -o remount,size=16G /dev/shm`; in a container --shm-size or --ipc=host."
)
def shm_small(preflight: Preflight, facts: Facts) -> Said:
    """Processes of one engine talk through /dev/shm; on several GPUs they need more than a container's 64 MB."""
    shm = preflight.mount("/dev/shm")
    gpus = len(facts.probe.gpus) if facts.probe else 0
    if shm is None or shm.total is None or gpus < 2 or shm.total >= GIB:
        return None
    message = f"/dev/shm has {gib(shm.total)} for engines on {gpus} GPUs"
    if facts.probe and facts.probe.container:
        return message, "Start the container with --shm-size=16g or --ipc=host."
    return message, facts.root("mount -o remount,size=16G /dev/shm")
