"""Ends a shard's engine and all that it started; never a stranger."""
import os
import signal
import time

import engine_shard
import prelude


def stop(args):
    prelude.act()
    shard = engine_shard.Shard(args)
    lock = engine_shard.lock_of(shard, False)
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
    main = prelude.living(shard.record, shard.boot)
    if main:
        found[main["pid"]] = main
    sessions = {each["session"] for each in found.values() if is_waiter(shard, each["session"])}
    if sessions:
        for each in map(prelude.process, prelude.pids()):
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
    main = prelude.living(shard.record, shard.boot)
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
