"""Who lives: processes and which of them are ours. Identity is (boot id, pid, start ticks), ownership is the tag.

The third part of module `prelude`, behind ground.py.
"""
import os
import re

MANIFEST = {
    "cluster": (str, None), "replica": str, "rank": int, "attempt": int, "pid": (int, None), "port": (int, None),
    "start_ticks": (int, None), "boot_id": (str, None), "waiter": ({"pid": int, "start_ticks": int}, None)}
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_SHARD = re.compile(r".+\.[0-9]{1,9}\Z")


def boot_id():
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def process(pid):
    """What /proc says of a living process, None when there is none. A zombie is dead, unless its other threads live."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            data = file.read()
    except (OSError, OverflowError):
        return None
    rest = data[data.rindex(b")") + 2:].split()
    if rest[0] in (b"Z", b"X", b"x") and int(rest[17]) <= 1:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return {"pid": pid, "start_ticks": int(rest[19]), "ppid": int(rest[1]), "session": int(rest[3]),
            "rss": int(rest[21]) * os.sysconf("SC_PAGE_SIZE"), "cpu_seconds": (int(rest[11]) + int(rest[12])) / ticks}


def environ(pid):
    """The variables that a process of this user was started with, as bytes; None when they cannot be read or were
    overwritten. Root may read everybody's, and believes nobody's: anyone can write our tag into his own."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            data = file.read() if os.fstat(file.fileno()).st_uid == os.geteuid() else b""
    except OSError:
        return None
    return data if data.strip(b"\0 ") else None


def tag(data):
    """The tag in such variables, or None."""
    if not data or b"LLMGW_REPLICA=" not in data:
        return None
    found = {}
    for item in data.split(b"\0"):
        key, _, value = item.partition(b"=")
        if key.startswith(b"LLMGW_"):
            found[key[6:].decode("ascii", "replace").lower()] = value.decode("utf-8", "replace")
    if "replica" not in found:
        return None
    for key in ("rank", "attempt"):
        text = found.get(key, "")
        found[key] = int(text) if _NUMBER.match(text) else None
    return {key: found.get(key) for key in ("replica", "rank", "attempt", "cluster")}


def tagged():
    """Every living process of this user that carries our tag."""
    for pid in pids():
        mark = tag(environ(pid))
        seen = process(pid) if mark else None
        if seen:
            yield dict(seen, **mark)


def pids():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def manifest(folder):
    """What is written down about the shard in a directory. A damaged one is none: the tags still say what runs."""
    try:
        record = read_json(os.path.join(folder, "manifest.json"), MANIFEST)
    except ValueError:
        return None
    return record if record and "attempt" in record else None


def shard_folders():
    """The directories of this node's shards, dead ones too."""
    base = found_host("replicas")
    return [os.path.join(base, name) for name in sorted(os.listdir(base)) if _SHARD.match(name)] if base else []


def living(record, boot):
    """The engine a manifest names, if it still is that very process: boot, pid, start ticks and tag. Else None."""
    if not record or record.get("boot_id") != boot or record.get("pid") is None:
        return None
    seen = process(record["pid"])
    if not seen or seen["start_ticks"] != record.get("start_ticks"):
        return None
    data = environ(record["pid"])
    if data is None:  # unreadable or overwritten: the triple alone is proof enough
        return seen
    mark = tag(data)
    return seen if mark and all(mark[key] == record.get(key) for key in mark) else None
