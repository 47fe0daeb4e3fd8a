"""Who holds a GPU: ours, an orphan that no living engine of ours accounts for, or somebody else."""
import os
import re
import time

import prelude
from probe_facts import PROC, count, names, number, read, unknown
from probe_pci import KFD

LOOK_SECONDS = 0.3
LOCAL = re.compile(r"drm-(memory|total|resident)-(vram|local|system|gtt|stolen)\d*:\s*(\d+)(?: (KiB|MiB))?\Z")


def living_shards():
    """(replica, rank, attempt) of every manifest here whose engine lives."""
    if not prelude.args.get("node_id"):
        return
    try:
        folders = prelude.shard_folders()
    except (OSError, prelude.Failure):
        return
    for record in map(prelude.manifest, folders):
        if record and prelude.living(record, prelude.boot_id()):
            yield record.get("replica"), record.get("rank"), record["attempt"]


def holders(apps, gpus, nodes, marks):
    """Every process on a GPU, as each driver tells it."""
    ours, alive = {mark["pid"]: mark for mark in marks}, set(living_shards())
    found = [(row[0], int(row[1]), megabytes(row[2])) for row in apps if re.match(r"[0-9]{1,9}\Z", row[1])]
    uuids = {gpu["pci"]: gpu["uuid"] for gpu in gpus if gpu["vendor"] in ("amd", "intel")}
    compute = list(kfd({node[0]: uuids.get(pci) for pci, node in nodes.items()}))
    known = {(gpu, pid) for gpu, pid, _ in compute}
    found += compute
    if uuids:
        inside = {gpu["pci"] for gpu in gpus if gpu["integrated"]}
        found += [each for each in drm(uuids, inside) if each[:2] not in known]
    return [holder(gpu, pid, memory, ours.get(pid), alive) for gpu, pid, memory in found]


def megabytes(text):
    found = number(text)
    return None if found is None else int(found) << 20


def holder(gpu, pid, memory, mark, alive):
    import pwd
    words = dict(re.findall(r"^(Name|Uid):\s+(\S+)", read("%s/%d/status" % (PROC, pid), ""), re.M))
    uid = words.get("Uid")  # none: a process of another pid namespace
    try:
        login = uid and pwd.getpwuid(int(uid)).pw_name
    except KeyError:
        login = uid
    key = mark and (mark["replica"], mark["rank"], mark["attempt"])
    return {"gpu": gpu, "pid": pid, "user": login, "name": words.get("Name"), "memory": memory,
            "owner": "theirs" if not mark else "ours" if key in alive else "orphan",
            "replica": mark["replica"] if mark else None}


def kfd(cards):
    """AMD's compute driver: a directory a process, in it a file a card with the bytes that it holds there."""
    for pid in names(KFD + "/proc"):
        for name in names("%s/proc/%s" % (KFD, pid)):
            gpu = name[5:] if name.startswith("vram_") else None
            held = count(read("%s/proc/%s/%s" % (KFD, pid, name), "")) if gpu else None
            if held and pid.isdigit():
                yield cards.get(gpu) or gpu, int(pid), held


def drm(uuids, inside):
    """Processes with a card of AMD or Intel open: each descriptor of it tells its memory in fdinfo, a client once."""
    ends, held = time.monotonic() + LOOK_SECONDS, {}
    for pid in names(PROC):
        if not pid.isdigit():
            continue
        if time.monotonic() > ends:
            unknown["gpu_processes.drm"] = "not every process was looked at within %g s" % LOOK_SECONDS
            break
        here = "%s/%s" % (PROC, pid)
        for fd in names(here + "/fd"):
            try:
                path = os.readlink("%s/fd/%s" % (here, fd))
            except OSError:
                continue
            if path.startswith("/dev/dri/"):
                words = dict(line.partition(":")[::2] for line in read("%s/fdinfo/%s" % (here, fd), "").splitlines())
                pci = words.get("drm-pdev", "").strip()
                memory = client_memory(words, pci in inside)
                if pci in uuids and memory:
                    held[uuids[pci], int(pid), words.get("drm-client-id", fd).strip()] = memory
    sums = {}
    for (gpu, pid, _), memory in held.items():
        sums[gpu, pid] = sums.get((gpu, pid), 0) + memory
    return [(gpu, pid, memory) for (gpu, pid), memory in sorted(sums.items(), key=lambda item: item[0][1])]


def client_memory(words, inside):
    """Bytes that are there now, where the driver tells them, else what it has ever handed out."""
    sums = {}
    for key, value in words.items():
        match = LOCAL.match("%s:%s" % (key, value))
        if match and (inside or match.group(2) in ("vram", "local")):
            size = int(match.group(3)) << {"KiB": 10, "MiB": 20}.get(match.group(4), 0)
            sums[match.group(1)] = sums.get(match.group(1), 0) + size
    return next((sums[kind] for kind in ("resident", "memory", "total") if sums.get(kind)), 0)
