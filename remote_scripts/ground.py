"""The node under a script: the root and files in it, locks, the term, the trace, room on the disk, tools.

The second part of module `prelude`: sent behind prelude.py in one block, whose names (`fail`, `args`, …) it uses.
"""
import fcntl
import json
import os
import re
import select
import signal
import stat
import time

# ---- the root, files in it, locks, the term, the trace ----

TERM = {"controller_id": str, "term": int}
TRACE = {"created": [str], "keys": [str]}
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}\Z")


def checked(value, what):
    """A name that becomes a part of a path: nothing that could leave its directory."""
    if not isinstance(value, str) or not _SAFE.match(value):
        fail("bad_argument", "%s %r is no safe name" % (what, value))
    return value


def home():
    path = os.environ.get("HOME") or ""
    if not path.startswith("/"):
        import pwd
        path = pwd.getpwuid(os.getuid()).pw_dir
    return path


def root_path():
    given = args.get("root") or os.path.join(home(), ".local/share/llmgw")
    if not given.startswith("/"):
        fail("bad_argument", "the root %r is no absolute path" % given)
    return os.path.normpath(given)


def fault_of(path):
    """Why an existing directory must not be used, or None. Ours is no link, and nobody else can write it."""
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(info.st_mode):
        return "is no directory"
    if info.st_uid != os.geteuid():
        return "belongs to user %d, not to %d" % (info.st_uid, os.geteuid())
    return "is writable by others" if info.st_mode & 0o022 else None


def _make(path):
    """One directory of ours: made 0700, or found safe. True when it was made."""
    try:
        os.mkdir(path, 0o700)
        return True
    except FileExistsError:
        _refuse_fault(path)
        return False


def _refuse_fault(path):
    fault = fault_of(path)
    if fault:
        fail("unsafe_root", "%s %s" % (path, fault), "Correct owner and mode (chmod go-w), or name another --root.")


def make_root():
    """The root with its missing parents. Answers with what had to be made, outermost first."""
    path, missing = root_path(), []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    parent = path if missing else os.path.dirname(path)
    mode = os.stat(parent).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        fail("unsafe_root", "%s is writable by everybody" % parent, "chmod o-w it, or name another --root.")
    made = [each for each in reversed(missing) if _make(each)]
    _make(root_path())
    return made


def under(*parts):
    """A directory below the root, each level made or checked."""
    path = root_path()
    for part in parts:
        path = os.path.join(path, part)
        _make(path)
    return path


def found(*parts):
    """The same below a root that is there already, nothing made: the path, None where a level is missing."""
    path = root_path()
    for part in (None,) + parts:
        path = os.path.join(path, part) if part else path
        if not os.path.lexists(path):
            return None
        _refuse_fault(path)
    return path


def host_path():
    """This node's own directory; whether it is there and safe, `found_host` knows."""
    return os.path.join(root_path(), "hosts", checked(args.get("node_id"), "node id"))


def found_host(*parts):
    """`found` below this node's own directory."""
    return found("hosts", os.path.basename(host_path()), *parts)


def open_file(path, flags, mode=0o600):
    """A regular file of ours, never through a link."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
        os.close(fd)
        fail("unsafe_root", "%s is no plain file of this user" % path, "Remove it, or name another --root.")
    return fd


def read_file(path, limit=1 << 20):
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read(limit)


def read_json(path, shape, default=None):
    """The JSON in a file of ours, `default` when there is none. ValueError when it is damaged or of another shape."""
    try:
        value = json.loads(read_file(path, 16 << 20).decode())
    except FileNotFoundError:
        return default
    except RecursionError:
        raise ValueError("%s is nested too deep" % path)
    if not shaped(value, shape):
        raise ValueError("%s does not hold what we write there" % path)
    return value


def shaped(value, shape):
    """Whether `value` has a shape: a type; None; one of several `(a, b)`; `[item]`; `{key: shape}`, where a key may be
    missing and others may be there."""
    if isinstance(shape, tuple):
        return any(shaped(value, each) for each in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(shaped(each, shape[0]) for each in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(shaped(value[key], shape[key]) for key in shape if key in value)
    return value is None if shape is None else isinstance(value, shape)


def write_file(path, data):
    """Written beside, synced and renamed: a crash leaves the old file or the new one."""
    fd = open_file(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + ".new", path)
    sync_dir(os.path.dirname(path))


def write_json(path, value):
    write_file(path, json.dumps(value, indent=1, sort_keys=True).encode())


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:  # some network file systems know no fsync of a directory
        pass
    finally:
        os.close(fd)


class Lock(object):
    """flock on a file, held in a `with`. It dies with the process, whatever ends it."""

    def __init__(self, path):
        self.path = path
        self.fd = -1

    def take(self):
        while True:
            self.fd = open_file(self.path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            try:  # the file may have been removed while we waited: then this lock excludes nobody
                if os.path.samestat(os.fstat(self.fd), os.stat(self.path)):
                    return self
            except FileNotFoundError:
                pass
            os.close(self.fd)

    def __enter__(self):
        return self if self.fd >= 0 else self.take()

    def __exit__(self, *exc):
        os.close(self.fd)


def held(path):
    """Whether somebody holds that lock right now."""
    try:
        fd = open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def check_term():
    """Obeys no other controller and no lower term of the same one; stores the pair. Under the lock of the host."""
    path = os.path.join(host_path(), "term")
    mine = {"controller_id": args["controller_id"], "term": int(args["term"])}
    try:
        stored = read_json(path, TERM, {})
        other, term = stored.get("controller_id"), stored.get("term", 0)
    except ValueError:
        stored, other, term = None, "?", 0
    if other not in (None, mine["controller_id"]) and not args.get("take_over"):
        fail("foreign_controller", "this node belongs to another control plane (%s, term %d)" % (other, term),
             "Use `llmgw node add --take-over` if that one is gone.", owner=stored)
    if other == mine["controller_id"] and term > mine["term"]:
        fail("superseded", "term %d is over, this node has obeyed term %d" % (mine["term"], term),
             "Another process of this control plane has taken over; where this one is a restored backup, "
             "`llmgw node add --take-over` makes the node obey it.", owner=stored)
    if stored != mine:
        write_json(path, mine)


def note(created=(), keys=()):
    """Adds to the trace what llmgw made on this node outside its own directories, so that purge can undo just that."""
    path = os.path.join(host_path(), "trace.json")
    trace = trace_of(host_path())
    before = json.dumps(trace)
    for kind, values in (("created", created), ("keys", keys)):
        listed = trace.setdefault(kind, [])
        listed.extend(value for value in values if value not in listed)
    if json.dumps(trace) != before:
        write_json(path, trace)


def trace_of(host):
    """The trace of a node in this home. A damaged one is none: what it listed stays where it is."""
    try:
        return read_json(os.path.join(host, "trace.json"), TRACE, {})
    except ValueError:
        return {}


def act():
    """The first step of every script that changes something. Answers with this node's own directory under the root."""
    made = make_root()
    host = under("hosts", os.path.basename(host_path()))
    with Lock(os.path.join(host, "lock")):
        check_term()
        note(made + list(args.get("trace") or ()))
    return host


# ---- room on the disk, progress, tools ----

def headroom(path, need):
    """Refuses before the first byte what would not fit."""
    room = os.statvfs(path)
    free = room.f_bavail * room.f_frsize
    if free < need:
        full(path, need, free)


def full(path, need, free=None):
    if free is None:
        room = os.statvfs(path)
        free = room.f_bavail * room.f_frsize
    fail("disk_full", "needs %d MB, %s has %d MB free" % (need // 10 ** 6 + 1, path, free // 10 ** 6),
         "Free some space there, or name a --root on a larger disk.", need=need, free=free, path=path)


class Progress(object):
    """Events with `done` and `total`, at most twice a second."""

    def __init__(self, total, done=0, **fields):
        self.total, self.done, self.fields, self.said = total, done, fields, time.monotonic()

    def add(self, count):
        self.done += count
        now = time.monotonic()
        if now - self.said >= 0.5:
            self.said = now
            event(done=self.done, total=self.total, **self.fields)


def _kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def run(argv, seconds, env=None, cwd=None, limit=1 << 17):
    """A tool with a deadline of its own: (status, stdout, stderr), status None when it was killed for being late."""
    import subprocess
    tool = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                            cwd=cwd, start_new_session=True)
    _tools.add(tool.pid)
    texts = {tool.stdout.fileno(): bytearray(), tool.stderr.fileno(): bytearray()}
    out, err = texts.values()
    ends, quiet = time.monotonic() + seconds, False
    while texts and time.monotonic() < ends:
        ready = select.select(list(texts), [], [], 0.1)[0]
        if not ready and quiet:
            break  # it has ended, something it left behind holds the pipe
        quiet = not ready and tool.poll() is not None
        for fd in ready:
            data = os.read(fd, 1 << 16)
            if not data:
                del texts[fd]
            elif fd in texts and len(texts[fd]) < limit:
                texts[fd] += data
    while tool.poll() is None and time.monotonic() < ends:
        time.sleep(0.005)
    status = tool.poll()
    _kill_group(tool.pid)
    for _ in range(50):  # a process stuck in the kernel is left to itself
        if tool.poll() is not None:
            break
        time.sleep(0.02)
    _tools.discard(tool.pid)
    return status, bytes(out).decode("utf-8", "replace"), bytes(err).decode("utf-8", "replace")
