"""A shard of a replica on this node: its directory, the lock in it, its manifest, the process its manifest names."""
import os
import time

import prelude


class Shard(object):
    """One shard as the arguments name it, and what lies on disk for it."""

    def __init__(self, args):
        self.replica = prelude.checked(args.get("replica"), "replica")
        self.rank = int(args.get("rank") or 0)
        self.attempt = None if args.get("attempt") is None else int(args["attempt"])
        self.name = "%s.%d" % (self.replica, self.rank)
        self.folder = os.path.join(prelude.host_path(), "replicas", self.name)
        self.boot = prelude.boot_id()
        self.record, self.cluster = None, args.get("cluster")

    def path(self, kind, attempt=None):
        return os.path.join(self.folder, "%s.%d" % (kind, self.attempt if attempt is None else attempt))

    def load(self):
        self.record = prelude.manifest(self.folder)
        self.cluster = self.cluster or (self.record or {}).get("cluster")

    def owns(self, mark):
        return (mark["replica"], mark["rank"], mark["cluster"]) == (self.replica, self.rank, self.cluster)

    def waiter_mark(self):
        return ("LLMGW_WAITER=%s/%s/" % (self.cluster, self.name)).encode()

    def pid_file(self):
        """(engine, waiter) as the inner shell wrote them, or (None, None)."""
        try:
            engine, waiter = prelude.read_file(self.path("pid")).split()
            return int(engine), int(waiter)
        except (OSError, ValueError):
            return None, None


def lock_of(shard, make):
    """The lock of a shard's directory; None when there is no directory. Looks again where a removal comes between."""
    while True:
        try:
            if make:
                prelude.under("hosts", os.path.basename(prelude.host_path()), "replicas", shard.name)
            elif not prelude.found_host("replicas", shard.name):
                return None
            return prelude.Lock(os.path.join(shard.folder, "lock")).take()
        except FileNotFoundError:
            time.sleep(0.005)


def exit_of(folder, attempt):
    """How an attempt ended, as its waiter wrote it: a status over 128 is the signal that ended it."""
    path = os.path.join(folder, "exit.%d" % attempt)
    try:
        number, at = int(prelude.read_file(path)), os.stat(path).st_mtime
    except (OSError, ValueError):
        return None
    by_signal = 128 < number <= 128 + 64
    return {"status": None if by_signal else number, "signal": number - 128 if by_signal else None, "at": at}


def log_tail(path, lines):
    """The last lines of a log, at most 64 KiB of it."""
    try:
        fd = prelude.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with os.fdopen(fd, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - (1 << 16)))
        text = file.read(1 << 16).decode("utf-8", "replace")
    return [line[:2000] for line in text.splitlines()[-lines:]]
