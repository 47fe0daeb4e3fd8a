"""What every remote script stands on: arguments in, frames out, a deadline, an end when nobody listens.

Sent ahead of the script over the same stdin, together with ground.py and living.py: the three are one module,
`prelude`, and share its names. README.md is the contract. Python 3.6 and newer, standard library; imports little, since
every call pays for it.
"""
import errno
import hashlib
import json
import os
import select
import signal
import sys
import threading
import time
import types

stdin = None  # the one buffered reader over fd 0: the bootstrap made it and may have read ahead into it
args = {}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_token = ""
_lock = threading.Lock()
_tools = set()  # leaders of the tools that run right now: they end with us
_watched = False
_ends_at = None
_FD_OUT = 1


class Failure(Exception):
    """A refusal in words: becomes the `error` frame that ends the call."""

    def __init__(self, code, message, fix="", **data):
        Exception.__init__(self, message)
        self.code = code
        self.message = message
        self.fix = fix
        self.data = data


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def _frame(body):
    """One frame: `#TOKEN LENGTH DIGEST`, the JSON, a newline. The token is random per call: noise cannot forge it."""
    text = json.dumps(body, separators=(",", ":")).encode("utf-8", "replace")
    head = "\n#%s %d %s\n" % (_token, len(text), hashlib.sha256(text).hexdigest()[:32])
    with _lock:
        write_all(_FD_OUT, head.encode() + text + b"\n")


def event(**fields):
    """Progress. Any number of these before the end."""
    _frame({"event": fields})


def fail(code, message, fix="", **data):
    """Ends the script with an error in its own words."""
    raise Failure(code, message, fix, **data)


def receive(size, sink, chunk=1 << 18):
    """Reads exactly `size` payload bytes from stdin and hands them to `sink(bytes)` as they come."""
    left = size
    while left:
        data = stdin.read1(min(left, chunk))
        if not data:
            fail("cut", "the sender went away with %d of %d bytes missing" % (left, size))
        sink(data)
        left -= len(data)


def _end(status):
    # os._exit: a thread that still waits on stdin must not hold or abort the interpreter's own shutdown.
    for pid in list(_tools):
        _kill_group(pid)
    os._exit(status)


def _on_alarm(signum, frame):
    # The farewell may block on a full pipe, or find a half-written frame: then the second alarm ends us without a word.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(3)
    try:
        if _lock.acquire(False):
            _lock.release()
            message = "the script ran into its deadline of %s s" % args.get("_deadline")
            _frame({"error": {"code": "deadline", "message": message, "fix": ""}})
    finally:
        _end(124)


def _watch_stdin():
    """When the control plane goes away its end of stdin closes: end too. Also ends what no alarm wakes."""
    while True:
        left = None if _ends_at is None else max(0.0, _ends_at + 5 - time.monotonic())
        try:
            if left == 0.0 or not select.select([0], [], [], left)[0]:
                _end(124)
            if not os.read(0, 4096):
                _end(75)
        except (OSError, ValueError):
            _end(75)


def watch():
    """Begins to watch stdin for its end. Called by `main` at once, or by a script after it has received its payload."""
    global _watched
    if not _watched:
        _watched = True
        thread = threading.Thread(target=_watch_stdin)
        thread.daemon = True
        thread.start()


def _os_error(exc):
    """The usual refusals of a file system, each in its own words."""
    where = exc.filename if exc.filename is not None else "the disk"
    where = where.decode("utf-8", "replace") if isinstance(where, bytes) else where
    if exc.errno in DISK_FULL:
        return "disk_full", "no space left at %s" % (where,), "Free some space there and try again."
    if exc.errno == errno.EROFS:
        return "read_only", "%s is on a file system that is mounted read-only" % (where,), "Name a writable --root."
    if exc.errno == errno.ELOOP:
        return "unsafe_root", "%s is a symbolic link" % (where,), "Remove the link, or name another --root."
    if exc.errno in (errno.EACCES, errno.EPERM) and exc.filename is not None:
        return "denied", "%s: permission denied" % (where,), "Let this user write there, or name another --root."
    if exc.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS) and exc.filename is None:
        return "no_locks", "the file system of %s has no file locks" % root_path(), "Name a --root on a local disk."
    return None


def _error(exc):
    if isinstance(exc, Failure):
        return dict(exc.data, code=exc.code, message=exc.message, fix=exc.fix)
    known = _os_error(exc) if isinstance(exc, OSError) else None
    if known:
        return {"code": known[0], "message": known[1], "fix": known[2]}
    import traceback
    where = traceback.extract_tb(exc.__traceback__)[-1:]
    place = "%s:%d" % (os.path.basename(where[0][0]), where[0][1]) if where else "?"
    return {"code": "crash", "message": "%s: %s (%s)" % (type(exc).__name__, exc, place), "fix": "",
            "traceback": traceback.format_exc()[-4000:]}


def main(function):
    """Runs `function(args)`; what it returns is the `result` frame, what it raises the `error` frame."""
    if not args.get("_payload"):
        watch()
    status = 0
    try:
        result = function(args)
        signal.alarm(0)
        _frame({"result": result})
    except BaseException as exc:  # SystemExit and KeyboardInterrupt too: a script ends by its frames alone
        signal.alarm(0)
        status = 1
        try:
            _frame({"error": _error(exc)})
        except OSError:
            pass
    _end(status)


class _Parts(object):
    """A finder for the files that a script was sent with: each is made a module when it is first imported."""

    def __init__(self, texts):
        self.texts = texts

    def find_spec(self, name, path=None, target=None):
        return sys.__spec__.__class__(name, self, origin=name + ".py") if name in self.texts else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.texts[name], name + ".py", "exec"), module.__dict__)


def parts(texts):
    """Called ahead of a script of several files: {module name: source}. A part that is not imported costs nothing."""
    sys.meta_path.insert(0, _Parts(texts))


def _read_block():
    return stdin.read(int(stdin.read(8)))


def _start(reader):
    """Called by the bootstrap once this file is loaded: take the program and its arguments, arm the deadline, go."""
    global stdin, args, _token, _ends_at
    stdin = reader
    name = _read_block().decode()
    source = _read_block()
    args = json.loads(_read_block().decode())
    _token = args["_token"]
    deadline = args.get("_deadline")
    if deadline:
        _ends_at = time.monotonic() + float(deadline)
        signal.signal(signal.SIGALRM, _on_alarm)
        signal.setitimer(signal.ITIMER_REAL, float(deadline))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.umask(0o077)
    module = types.ModuleType("__main__")
    module.__file__ = name
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec"), module.__dict__)
