"""Starts, lists and stops engines; the only script that starts anything that outlives its call.

A shard of a replica has a directory, a lock in it, and a manifest that is written before the engine is launched and
again when its pid is known. A crash between the two leaves an engine that its tag still finds. Above each engine a
/bin/sh waits and records how it ended; it leads the session, so the session's number names everything it started.
"""
import os
import re
import signal
import socket
import time
import zlib

import engine_detach
import engine_outlive
import prelude

KEPT_ATTEMPTS = 3
START_WAITS = 10  # seconds until an engine's process must be there
LIST_WAITS = 15

# `trap :` is a handler: the shell outlives a signal to the group and its children still get the default action. The
# engine runs in the foreground, since a background job would inherit SIGINT and SIGQUIT as ignored. The inner shell
# writes its pid and becomes the engine. Tags are set there, so that the waiter itself is no process of the replica.
WAITER = """trap : HUP INT QUIT TERM
attempt=$1
export LLMGW_ATTEMPT=$1 LLMGW_REPLICA=$2 LLMGW_RANK=$3 LLMGW_CLUSTER=$4
shift 4
/bin/sh -c 'unset LLMGW_WAITER
echo $$ $PPID >pid.$LLMGW_ATTEMPT.new && command -p mv -f pid.$LLMGW_ATTEMPT.new pid.$LLMGW_ATTEMPT
exec "$@"' llmgw "$@"
status=$?
echo $status >exit.$attempt.new && command -p mv -f exit.$attempt.new exit.$attempt
"""


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
        """Reads the manifest. A damaged one is none: the tags still say what runs."""
        self.record = load(self.folder)
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


def load(folder):
    try:
        record = prelude.read_json(os.path.join(folder, "manifest.json"))
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("attempt"), int) else None


def living(record, boot):
    """The engine a manifest names, if it still is that very process: boot, pid, start ticks and tag. Else None."""
    if not record or record.get("boot_id") != boot or not isinstance(record.get("pid"), int):
        return None
    found = prelude.process(record["pid"])
    if not found or found["start_ticks"] != record.get("start_ticks"):
        return None
    data = prelude.environ(record["pid"])
    if data is None:  # unreadable or overwritten: the triple alone is proof enough
        return found
    mark = prelude.tag(data)
    return found if mark and all(mark[key] == record.get(key) for key in mark) else None


# ---- start ----

def start(args):
    prelude.act()
    shard = Shard(args)
    with lock_of(shard, True):
        return start_locked(shard, args)


def lock_of(shard, make):
    """The lock of a shard's directory; None when there is no directory. Looks again where a removal comes between."""
    while True:
        try:
            if make:
                prelude.under("hosts", os.path.basename(prelude.host_path()), "replicas", shard.name)
            elif not os.path.isdir(shard.folder):
                return None
            return prelude.Lock(os.path.join(shard.folder, "lock")).take()
        except FileNotFoundError:
            time.sleep(0.005)


def start_locked(shard, args):
    with prelude.Lock(os.path.join(prelude.host_path(), "lock")):
        prelude.check_term()  # again: somebody may have taken over while we waited for the shard's lock
    if shard.attempt is None or not shard.cluster:
        prelude.fail("bad_argument", "start needs an attempt and a cluster")
    shard.load()
    found = refuse_or_find(shard)
    if found:
        return remember(shard, shard.record or bare(shard), found, True)
    argv, env = words(args.get("argv"), "argv"), environment(args, shard)
    with prelude.Lock(os.path.join(prelude.host_path(), "lock")):  # so that no other start picks the same port
        port = choose_port(shard, args.get("ports"), args.get("port_avoid") or ())
        argv = [word.replace("{port}", str(port)) for word in argv]
        record = dict(args.get("manifest") or {}, argv=argv, port=port, **bare(shard))
        prelude.write_json(os.path.join(shard.folder, "env"), args.get("env") or {})
        prelude.write_json(os.path.join(shard.folder, "manifest.json"), record)
    prune(shard)
    launch(shard, argv, env)
    return remember(shard, record, await_engine(shard), False)


def bare(shard):
    """The fields of a manifest that say whose process it is."""
    return {"schema": 1, "cluster": shard.cluster, "replica": shard.replica, "rank": shard.rank, "pid": None,
            "attempt": shard.attempt, "start_ticks": None, "boot_id": shard.boot, "waiter": None,
            "started_at": time.time()}


def refuse_or_find(shard):
    """The running engine of this attempt; None when it may be launched; a refusal when another attempt stands."""
    marks = [mark for mark in prelude.tagged() if shard.owns(mark)]
    main, record = living(shard.record, shard.boot), shard.record or {}
    if main and record.get("cluster") != shard.cluster:
        prelude.fail("foreign_controller", "%s runs here for another cluster" % shard.name, owner=None)
    alive = {mark["attempt"] for mark in marks} | ({record["attempt"]} if main else set())
    for other in sorted(alive - {shard.attempt}, key=str):
        word = "older" if other is None or other < shard.attempt else "newer"
        prelude.fail(word + "_attempt", "attempt %s of %s still runs" % (other, shard.name), "Stop it first.",
                     attempt=other, pids=[mark["pid"] for mark in marks])
    if record.get("attempt", shard.attempt) > shard.attempt:
        prelude.fail("newer_attempt", "%s is at attempt %d already" % (shard.name, record["attempt"]),
                     attempt=record["attempt"])
    if main:
        return main
    if record.get("attempt") == shard.attempt or (marks and not record):
        over = record.get("pid") or exit_of(shard.folder, shard.attempt)
        if not over and (marks or waiting(shard)):
            return await_engine(shard)  # the script that launched it died before it could write the pid down
        if over:
            ended(shard, "attempt_ended")
    if marks:
        prelude.fail("older_attempt", "processes of attempt %d of %s are left over" % (shard.attempt, shard.name),
                     "Stop it first.", attempt=shard.attempt, pids=[mark["pid"] for mark in marks])
    return None


def waiting(shard):
    """Whether a waiter of this attempt lives that has not become visible as an engine yet."""
    mark = shard.waiter_mark() + b"%d\0" % shard.attempt
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return any(mark in (prelude.environ(pid) or b"") + b"\0" and prelude.process(pid) for pid in pids)


def words(argv, what):
    if not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
        prelude.fail("bad_argument", "%s must be a list of words" % what)
    return argv


def environment(args, shard):
    """Small and predictable: nothing of the login reaches the engine. Secrets travel here, never in argv."""
    env = {"PATH": engine_detach.PATH, "HOME": prelude.home(), "LANG": "C.UTF-8"}
    env.update(args.get("env") or {})
    env["LLMGW_WAITER"] = "%s/%s/%d" % (shard.cluster, shard.name, shard.attempt)
    words([key + str(value) for key, value in env.items()], "env")
    return env


def choose_port(shard, ports, avoid):
    """A port of the range that can be bound now and that no other shard here has chosen, from a place of its own."""
    if not ports:
        return None
    low, high = ports
    taken = set(avoid)
    for folder in folders():
        record = load(folder)
        if record and folder != shard.folder and (not record.get("pid") or living(record, shard.boot)):
            taken.add(record.get("port"))
    first = zlib.crc32(shard.name.encode()) + shard.attempt
    for step in range(high - low + 1):
        port = low + (first + step) % (high - low + 1)
        if port not in taken and can_bind(port):
            return port
    return prelude.fail("no_port", "every port from %d to %d is taken on this node" % (low, high),
                        "Widen `engine_ports`.")


def can_bind(port):
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.bind(("127.0.0.1", port))
        return True
    except OSError:
        return False
    finally:
        probe.close()


def prune(shard):
    """Logs of the last attempts stay, older ones go."""
    for entry in os.listdir(shard.folder):
        match = re.match(r"(log|exit|pid)\.(\d+)", entry)
        if match and int(match.group(2)) <= shard.attempt - KEPT_ATTEMPTS:
            os.unlink(os.path.join(shard.folder, entry))


def launch(shard, argv, env):
    """The lock is closed by the exec itself: until then nobody else starts."""
    command = ["/bin/sh", "-c", WAITER, "llmgw-waiter", str(shard.attempt), shard.replica, str(shard.rank),
               shard.cluster] + argv
    log = prelude.open_file(shard.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        engine_detach.detach(command, env, shard.folder, log)
    finally:
        os.close(log)


def await_engine(shard):
    """The engine's process once the inner shell has become it. One that ended by then is an error with its log."""
    ends = time.monotonic() + START_WAITS
    while True:
        pid = shard.pid_file()[0]
        found = prelude.process(pid) if pid else None
        data = prelude.environ(pid) if found else None
        mark, late = prelude.tag(data), time.monotonic() > ends
        if mark and shard.owns(mark) and mark["attempt"] == shard.attempt and (b"LLMGW_WAITER=" not in data or late):
            return found
        if exit_of(shard.folder, shard.attempt):
            ended(shard, "ended_at_once")
        if late:
            return found if found and data is None else ended(shard, "did_not_start")
        time.sleep(0.004)


def ended(shard, code):
    how, tail = exit_of(shard.folder, shard.attempt), log_tail(shard.path("log"), 20)
    message = "attempt %d of %s ended%s" % (shard.attempt, shard.name, ": " + tail[-1] if tail else "")
    prelude.fail(code, message, exit=how, log_tail=tail, attempt=shard.attempt)


def remember(shard, record, found, already):
    """Writes pid and start ticks into the manifest and answers."""
    if record.get("pid") != found["pid"] or record.get("start_ticks") != found["start_ticks"]:
        waiter = prelude.process(found["session"])
        record = dict(record, pid=found["pid"], start_ticks=found["start_ticks"], boot_id=shard.boot,
                      waiter=waiter and {"pid": waiter["pid"], "start_ticks": waiter["start_ticks"]})
        prelude.write_json(os.path.join(shard.folder, "manifest.json"), record)
    keys = ("replica", "rank", "attempt", "pid", "start_ticks", "boot_id", "port")
    return dict({key: record.get(key) for key in keys}, already=already)


# ---- list, logs ----

def folders():
    base = os.path.join(prelude.host_path(), "replicas")
    names = sorted(os.listdir(base)) if os.path.isdir(base) and not prelude.fault_of(base) else []
    return [os.path.join(base, name) for name in names if re.match(r".+\.\d+\Z", name)]


def listing(args):
    """What lies and runs here, keys included: told to the control plane that this node obeys, to no other and no older.

    Creates nothing: a node that nobody has acted on belongs to nobody. Waits for a start that is under way.
    """
    if "controller_id" in args and os.path.isdir(prelude.host_path()):
        with prelude.Lock(os.path.join(prelude.host_path(), "lock")):
            prelude.check_term()
    boot, ends = prelude.boot_id(), time.monotonic() + LIST_WAITS
    while True:
        marks = list(prelude.tagged())
        replicas = [item for item in (describe(folder, boot, marks) for folder in folders()) if item]
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
    record = load(folder)
    if record is None:  # a start that died before its manifest, or a damaged one: what runs then shows as a stray
        return None
    attempt, cluster = record["attempt"], record.get("cluster")
    group = [mark for mark in marks if (mark["replica"], mark["rank"], mark["attempt"], mark["cluster"])
             == (replica, int(rank), attempt, cluster)]
    record, alive = complete(folder, record, boot, group)
    how = None if alive else exit_of(folder, attempt)
    try:
        key_env = prelude.read_json(os.path.join(folder, "env"), {})
    except ValueError:
        key_env = {}
    return {"replica": replica, "rank": int(rank), "attempt": attempt, "manifest": record, "port": record.get("port"),
            "pid": record.get("pid"), "start_ticks": record.get("start_ticks"), "boot_id": record.get("boot_id"),
            "alive": alive, "exit": how, "rss": sum(mark["rss"] for mark in group) if alive else None,
            "key_env": key_env, "oom": None if alive else killed_for_memory(record, how, boot),
            "log_tail": [] if alive else log_tail(os.path.join(folder, "log.%d" % attempt), 40)}


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
    if living(record, boot):
        return record, True
    starts = not record.get("pid") and prelude.held(os.path.join(folder, "lock"))
    return record, None if starts else False


def exit_of(folder, attempt):
    """How an attempt ended, as its waiter wrote it: a status over 128 is the signal that ended it."""
    path = os.path.join(folder, "exit.%d" % attempt)
    try:
        number, at = int(prelude.read_file(path)), os.stat(path).st_mtime
    except (OSError, ValueError):
        return None
    by_signal = 128 < number <= 128 + 64
    return {"status": None if by_signal else number, "signal": number - 128 if by_signal else None, "at": at}


def killed_for_memory(record, how, boot):
    """Whether the kernel's log says that this engine was killed for memory; null where nobody may read it."""
    if how is not None and how["signal"] != signal.SIGKILL:
        return False
    if record.get("boot_id") != boot or not record.get("pid"):
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


def logs(args):
    shard = Shard(args)
    shard.load()
    if shard.attempt is None:
        found = [int(name[4:]) for name in os.listdir(shard.folder) if re.match(r"log\.\d+\Z", name)] \
            if os.path.isdir(shard.folder) else []
        shard.attempt = max(found) if found else (shard.record or {}).get("attempt")
    if shard.attempt is None:
        return {"attempt": None, "lines": []}
    return {"attempt": shard.attempt, "lines": log_tail(shard.path("log"), min(int(args.get("lines") or 100), 2000))}


# ---- stop ----

def stop(args):
    prelude.act()
    shard = Shard(args)
    lock = lock_of(shard, False)
    if lock is None:
        return stop_locked(shard, dict(args, remove=False))  # only strays: a directory made from now on is not ours
    with lock:
        return stop_locked(shard, args)


def stop_locked(shard, args):
    shard.load()
    record = shard.record
    other = record and (shard.attempt not in (None, record["attempt"]) or record.get("cluster") != shard.cluster)
    if other:
        shard.record = None  # the manifest speaks of another attempt or cluster: leave that one alone
    pids = members(shard)
    was = "running" if pids else ("dead" if shard.record else "absent")
    killed = end_all(shard, pids, float(args.get("grace") or 0)) if pids else False
    if args.get("remove") and not other and os.path.isdir(shard.folder):
        import shutil
        gone = os.path.join(os.path.dirname(shard.folder), ".%s.gone" % shard.name)
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(shard.folder, gone)  # first out of the way of those who wait for its lock
        shutil.rmtree(gone, ignore_errors=True)
    return {"was": was, "killed": killed, "pids": sorted(pids)}


def members(shard):
    """{pid: start ticks} of the engine, of all that carry its tag, and of the session they were started in."""
    if not shard.cluster:
        return {}
    found = {mark["pid"]: mark for mark in prelude.tagged()
             if shard.owns(mark) and shard.attempt in (None, mark["attempt"])}
    main = living(shard.record, shard.boot)
    if main:
        found[main["pid"]] = main
    sessions = {each["session"] for each in found.values() if is_waiter(shard, each["session"])}
    if sessions:
        everybody = (prelude.process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
        for each in everybody:
            if each and each["session"] in sessions and each["pid"] not in sessions:
                found.setdefault(each["pid"], each)
    return {pid: each["start_ticks"] for pid, each in found.items()}


def is_waiter(shard, pid):
    """Whether a session is one that we opened: its number is that of our waiter, alive or written down."""
    record = shard.record or {}
    written = record.get("boot_id") == shard.boot and (record.get("waiter") or {}).get("pid") == pid
    return written or shard.waiter_mark() in (prelude.environ(pid) or b"")


def end_all(shard, known, grace):
    """TERM to the engine, to what outlives it, then KILL to everything. True when KILL was needed."""
    main = living(shard.record, shard.boot)
    ends, killed, told = time.monotonic() + grace, False, set()
    gives_up = ends + 20
    while True:
        alive = {pid: ticks for pid, ticks in known.items() if (prelude.process(pid) or {}).get("start_ticks") == ticks}
        if not alive:
            known = members(shard)
            if not known:
                break
            continue
        now = time.monotonic()
        if now > gives_up:
            prelude.fail("will_not_die", "processes %s do not end, not even by KILL" % sorted(alive),
                         "They are stuck in the kernel: look at dmesg, a reboot may be needed.", pids=sorted(alive))
        if now >= ends:
            known = alive = members(shard)
            killed = sum(send(pid, ticks, signal.SIGKILL) for pid, ticks in alive.items()) > 0 or killed
        else:
            lead = main["pid"] if main and main["pid"] in alive else None
            if lead is None and main:
                main, ends = None, min(ends, now + 5)
            for pid in [lead] if lead else list(alive):
                if pid not in told:
                    told.add(pid)
                    send(pid, alive[pid], signal.SIGTERM)
        time.sleep(0.05)
    await_record(shard)
    return killed


def await_record(shard):
    """Leaves the waiter the moment it needs to write down how the engine ended."""
    waiter = (shard.record or {}).get("waiter") or {}
    for _ in range(100):
        found = prelude.process(waiter["pid"]) if waiter.get("pid") else None
        if not found or found["start_ticks"] != waiter.get("start_ticks"):
            return
        time.sleep(0.02)


def send(pid, ticks, number):
    """Signals exactly that process, or nobody: the pidfd is opened before the identity is looked at."""
    fd, open_pid = None, getattr(os, "pidfd_open", None)
    by_fd = getattr(signal, "pidfd_send_signal", None)  # both since Python 3.9
    try:
        if open_pid and by_fd:
            try:
                fd = open_pid(pid)
            except ProcessLookupError:
                return False
            except OSError:  # an old kernel, a sandbox
                fd = None
        found = prelude.process(pid)
        if not found or found["start_ticks"] != ticks:
            return False
        if fd is None:
            os.kill(pid, number)
        else:
            by_fd(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if fd is not None:
            os.close(fd)


ACTIONS = {"start": start, "list": listing, "stop": stop, "logs": logs,
           "outlive": engine_outlive.begin, "outlived": engine_outlive.look}


def main(args):
    action = ACTIONS.get(args.get("action"))
    return action(args) if action else prelude.fail("bad_argument", "no action %r" % (args.get("action"),))


prelude.main(main)
