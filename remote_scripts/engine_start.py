"""Launches a shard's engine, or finds the one that runs: asked twice it answers twice, and one engine is there.

The manifest is written before the launch and again when the pid is known. A crash between the two leaves an engine that
its tag still finds. Above each engine a /bin/sh waits and records how it ended; it leads the session, so the session's
number names everything it started.
"""
import os
import re
import socket
import time
import zlib

import engine_detach
import engine_shard
import prelude

KEPT_ATTEMPTS = 3
START_WAITS = 10  # seconds until an engine's process must be there

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


def start(args):
    prelude.act()
    shard = engine_shard.Shard(args)
    with engine_shard.lock_of(shard, True):
        return start_locked(shard, args)


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
    main, record = prelude.living(shard.record, shard.boot), shard.record or {}
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
        over = record.get("pid") or engine_shard.exit_of(shard.folder, shard.attempt)
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
    return any(mark in (prelude.environ(pid) or b"") + b"\0" and prelude.process(pid) for pid in prelude.pids())


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
    for folder in prelude.shard_folders():
        record = prelude.manifest(folder)
        if record and folder != shard.folder and (not record.get("pid") or prelude.living(record, shard.boot)):
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
        if engine_shard.exit_of(shard.folder, shard.attempt):
            ended(shard, "ended_at_once")
        if late:
            return found if found and data is None else ended(shard, "did_not_start")
        time.sleep(0.004)


def ended(shard, code):
    how, tail = engine_shard.exit_of(shard.folder, shard.attempt), engine_shard.log_tail(shard.path("log"), 20)
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
