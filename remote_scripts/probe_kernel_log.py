"""Errors that NVIDIA's driver wrote into the kernel's log: Xid of a GPU, SXid of an NVSwitch."""
import os
import re

import prelude
import probe_facts
from probe_facts import PROC, ROOT, address, read

LINE = re.compile(r"(NVRM: Xid|SXid) \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")
STAMP = re.compile(r"^\d+,\d+,(\d+),[^;]*;|^(?:<\d+>)?\[\s*(\d+\.\d+)\]")
LIMIT = 4 << 20


def xids():
    """One entry a card and number, the latest words of it. Seconds ago by the kernel's own clock."""
    text, up = log(), float(read(PROC + "/uptime").split()[0])
    found = {}
    for line in text.splitlines():
        match = LINE.search(line)
        if not match:
            continue
        stamp = STAMP.match(line)
        at = (int(stamp.group(1)) / 1e6 if stamp.group(1) else float(stamp.group(2))) if stamp else None
        kind = "sxid" if match.group(1) == "SXid" else "xid"
        entry = found.setdefault((match.group(2), kind, match.group(3)), {
            "pci": address(match.group(2)), "xid": int(match.group(3)), "kind": kind, "count": 0})
        entry.update(count=entry["count"] + 1, text=match.group(4)[:200],
                     last_s_ago=None if at is None else round(max(0.0, up - at), 1))
    return list(found.values())


def log():
    """From the kernel itself, else by dmesg, else by journalctl: each may be kept from this user."""
    try:
        return kmsg(ROOT + "/dev/kmsg")
    except OSError as exc:
        reasons = ["/dev/kmsg: %s" % exc.strerror]
    for name, words in (("dmesg", []), ("journalctl", ["-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"])):
        tool = probe_facts.find_tool(name)
        status, out, err = probe_facts.run([tool] + words, limit=LIMIT) if tool else (1, "", "is not there")
        if status == 0 and out.strip():
            return out
        said = "did not answer in time" if status is None else (err.strip().splitlines() or ["shows nothing"])[0]
        reasons.append(said if said.startswith(name) else "%s: %s" % (name, said))
    return prelude.fail("no_log", "; ".join(reasons))


def kmsg(path):
    """Each read is one record; none is waited for. EPIPE: the next one has been overwritten meanwhile."""
    fd, parts, size = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), [], 0
    try:
        while size < LIMIT:
            try:
                data = os.read(fd, 1 << 14)
            except BrokenPipeError:
                continue
            except BlockingIOError:
                break
            if not data:
                break
            size += len(data)
            if b"Xid" in data:
                parts.append(data)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace")
