"""What every remote script stands on: arguments in, frames out, a deadline, and an end when nobody listens.

Sent ahead of the script over the same stdin and registered as module `prelude`; see README.md for the transport.
Runs on Python 3.6 and newer with the standard library alone, and imports little: its start is paid on every call.
"""
import hashlib
import json
import os
import signal
import sys
import threading
import types

stdin = None  # the one buffered reader over fd 0: the bootstrap made it and may have read ahead into it
args = {}
_token = ""
_lock = threading.Lock()
_FD_OUT = 1


class Failure(Exception):
    """A refusal in words: becomes the `error` frame that ends the call."""

    def __init__(self, code, message, fix="", **data):
        Exception.__init__(self, message)
        self.code = code
        self.message = message
        self.fix = fix
        self.data = data


def _write_all(data):
    view = memoryview(data)
    while view:
        view = view[os.write(_FD_OUT, view):]


def _frame(body):
    """One frame: `#TOKEN LENGTH DIGEST`, the JSON, a newline. The token is random per call, so noise cannot forge it."""
    text = json.dumps(body, separators=(",", ":")).encode("utf-8", "replace")
    head = "\n#%s %d %s\n" % (_token, len(text), hashlib.sha256(text).hexdigest()[:32])
    with _lock:
        _write_all(head.encode() + text + b"\n")


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
    os._exit(status)


def _on_alarm(signum, frame):
    try:
        _frame({"error": {"code": "deadline", "message": "the script ran into its deadline of %s s" % args.get("_deadline"),
                          "fix": ""}})
    finally:
        _end(124)


def _watch_stdin():
    """When the control plane goes away its end of stdin closes: end too, whatever is going on."""
    while True:
        try:
            if not os.read(0, 4096):
                _end(75)
        except OSError:
            _end(75)


def watch():
    """Begins to watch stdin for its end. Called by `main` at once, or by a script after it has received its payload."""
    thread = threading.Thread(target=_watch_stdin)
    thread.daemon = True
    thread.start()


def _error(exc):
    if isinstance(exc, Failure):
        body = {"code": exc.code, "message": exc.message, "fix": exc.fix}
        body.update(exc.data)
        return body
    if isinstance(exc, OSError) and exc.errno in (28, 122):  # ENOSPC, EDQUOT
        where = exc.filename or "the disk"
        return {"code": "disk_full", "message": "no space left at %s" % (where,), "fix": "Free some space there and try again."}
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


def _read_block():
    return stdin.read(int(stdin.read(8)))


def _start(reader):
    """Called by the bootstrap once this file is loaded: take the program and its arguments, arm the deadline, go."""
    global stdin, args, _token
    stdin = reader
    name = _read_block().decode()
    source = _read_block()
    args = json.loads(_read_block().decode())
    _token = args["_token"]
    deadline = args.get("_deadline")
    if deadline:
        signal.signal(signal.SIGALRM, _on_alarm)
        signal.setitimer(signal.ITIMER_REAL, float(deadline))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.umask(0o077)
    module = types.ModuleType("__main__")
    module.__file__ = name
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec"), module.__dict__)
