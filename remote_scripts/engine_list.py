"""What lies and runs on this node, and what the engines said."""
import os
import re
import signal
import time

import engine_shard
import prelude

LIST_WAITS = 15  # seconds for a start that is under way


def listing(args):
    """What lies and runs here, keys included: told to the control plane that this node obeys, to no other and no older.

    Creates nothing: a node that nobody has acted on belongs to nobody. Waits for a start that is under way.
    """
    host = prelude.found_host() if "controller_id" in args else None
    if host:
        with prelude.Lock(os.path.join(host, "lock")):
            prelude.check_term()
    boot, ends = prelude.boot_id(), time.monotonic() + LIST_WAITS
    while True:
        marks = list(prelude.tagged())
        replicas = [item for item in (describe(folder, boot, marks) for folder in prelude.shard_folders()) if item]
        starting = [item["replica"] for item in replicas if item["alive"] is None]
        if not starting:
            break
        if time.monotonic() > ends:  # not known is no answer: it would read as dead
            prelude.fail("busy", "a start of %s is under way and does not end" % ", ".join(starting), "Ask again.")
        time.sleep(0.02)
    named = {(item["manifest"]["cluster"], item["replica"], item["rank"], item["attempt"])
             for item in replicas if item["alive"]}
    keys = ("pid", "start_ticks", "replica", "rank", "attempt", "cluster", "rss")
    strays = [{key: mark[key] for key in keys} for mark in marks
              if (mark["cluster"], mark["replica"], mark["rank"], mark["attempt"]) not in named]
    return {"boot_id": boot, "now": time.time(), "replicas": replicas, "strays": strays}


def describe(folder, boot, marks):
    replica, rank = os.path.basename(folder).rsplit(".", 1)
    record = prelude.manifest(folder)
    if record is None:  # a start that died before its manifest, or a damaged one: what runs then shows as a stray
        return None
    attempt, cluster = record["attempt"], record.get("cluster")
    group = [mark for mark in marks if (mark["replica"], mark["rank"], mark["attempt"], mark["cluster"])
             == (replica, int(rank), attempt, cluster)]
    record, alive = complete(folder, record, boot, group)
    how = None if alive else engine_shard.exit_of(folder, attempt)
    try:
        key_env = prelude.read_json(os.path.join(folder, "env"), dict, {})
    except ValueError:
        key_env = {}
    return {"replica": replica, "rank": int(rank), "attempt": attempt, "manifest": record, "port": record.get("port"),
            "pid": record.get("pid"), "start_ticks": record.get("start_ticks"), "boot_id": record.get("boot_id"),
            "alive": alive, "exit": how, "rss": sum(mark["rss"] for mark in group) if alive else None,
            "key_env": key_env, "oom": None if alive else killed_for_memory(record, how, boot),
            "log_tail": [] if alive else engine_shard.log_tail(os.path.join(folder, "log.%d" % attempt), 40)}


def complete(folder, record, boot, group):
    """(manifest with the pid that its launcher could not write down any more, whether the engine lives; None: soon)."""
    if not record.get("pid"):
        try:
            pid = int(prelude.read_file(os.path.join(folder, "pid.%d" % record["attempt"])).split()[0])
        except (OSError, ValueError, IndexError):
            pid = None
        for mark in group:
            if mark["pid"] == pid:
                record = dict(record, pid=pid, start_ticks=mark["start_ticks"], boot_id=boot)
    if prelude.living(record, boot):
        return record, True
    starts = not record.get("pid") and prelude.held(os.path.join(folder, "lock"))
    return record, None if starts else False


def killed_for_memory(record, how, boot):
    """Whether the kernel's log says that this engine was killed for memory; null where nobody may read it."""
    if how is not None and how["signal"] != signal.SIGKILL:
        return False
    if record.get("boot_id") != boot or not (record.get("pid") and record.get("start_ticks")):
        return None
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    words, ends = b"Killed process %d (" % record["pid"], time.monotonic() + 1
    since = record["start_ticks"] / float(os.sysconf("SC_CLK_TCK")) - 1
    try:
        while time.monotonic() < ends:
            try:
                line = os.read(fd, 8192)
            except BrokenPipeError:  # overwritten while we read: the next one is there
                continue
            if words in line and int(line.split(b",", 3)[2]) / 1e6 >= since:
                return True
    except BlockingIOError:
        return False
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)
    return None


def logs(args):
    shard = engine_shard.Shard(args)
    shard.load()
    if shard.attempt is None:
        names = os.listdir(shard.folder) if os.path.isdir(shard.folder) else ()
        found = [int(name[4:]) for name in names if re.match(r"log\.[0-9]{1,9}\Z", name)]
        shard.attempt = max(found) if found else (shard.record or {}).get("attempt")
    if shard.attempt is None:
        return {"attempt": None, "lines": []}
    lines = min(int(args.get("lines") or 100), 2000)
    return {"attempt": shard.attempt, "lines": engine_shard.log_tail(shard.path("log"), lines)}
