"""How facts are got at: small files, tools with deadlines, numbers out of texts, a reason for whatever is missing."""
import os
import re
import threading
import time

import prelude

ROOT = prelude.args.get("_root") or ""  # tests lay a recorded machine out below it
SYS = prelude.args.get("_sys") or ROOT + "/sys"
PROC = prelude.args.get("_proc") or ROOT + "/proc"
PLACES = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/opt/bin")
TOOL_SECONDS = 5.0
unknown = {}


def fact(name, function, *given):
    """A fact, or null and the reason."""
    try:
        return function(*given)
    except Exception as exc:  # whatever a strange machine answers, the rest is still told
        unknown[name] = str(exc) if isinstance(exc, prelude.Failure) else "%s: %s" % (type(exc).__name__, exc)
        return None


def read(path, default=None):
    """A small file as text; `default` (when given) in place of an error."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = b""
            while len(data) < 1 << 20:
                more = os.read(fd, 1 << 16)
                data += more
                if not more:
                    break
        finally:
            os.close(fd)
    except OSError:
        if default is None:
            raise
        return default
    return data.decode("utf-8", "replace").strip("\0\n ")


def names(path):
    """What lies in a directory, sorted; nothing where there is none."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def number(text):
    """A number from a tool or a file, its unit left away; null for what is none ([N/A], ERR!, [Not Supported])."""
    match = re.match(r"(-?\d+(\.\d+)?)( ?[A-Za-z%]+)?\Z", (text or "").strip())
    return None if not match else float(match.group(1)) if match.group(2) else int(match.group(1))


def count(text):
    """A number that is none below zero: what the kernel writes for `no such thing` is -1."""
    found = number(text)
    return found if found is not None and found >= 0 else None


def address(text):
    """A PCI address as the kernel writes it: `00000000:3B:00.0` is `0000:3b:00.0`."""
    match = re.match(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?\Z", (text or "").strip().lower())
    if not match:
        return None
    return "%04x:%s:%s.%s" % (int(match.group(1) or "0", 16), match.group(2), match.group(3), match.group(4) or "0")


def find_tool(name, more=()):
    """Where a tool lies: on PATH or where distributions put it, which a login's PATH may not name."""
    places = [] if ROOT else os.environ.get("PATH", "").split(":")
    places += [ROOT + place for place in PLACES + tuple(more)]
    paths = [os.path.join(place, name) for place in places if place.startswith("/")]
    return next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def tegra():
    """Whether this is a Jetson, whose GPU is no PCI device."""
    return "nvidia,tegra" in read(PROC + "/device-tree/compatible", "")


def run(argv, seconds=TOOL_SECONDS, limit=1 << 20):
    """A tool in plain English that leaves no cache behind: (status, stdout, stderr), status None when it was late."""
    quiet = dict(os.environ, LC_ALL="C", CUDA_CACHE_DISABLE="1", __GL_SHADER_DISK_CACHE="0")
    return prelude.run(argv, seconds, env=quiet, limit=limit)


def listening():
    """The TCP ports on which somebody listens, whatever the address."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in read("%s/net/%s" % (PROC, name), "").splitlines()[1:]:
            words = line.split(None, 4)
            if words[3] == "0A":
                found.add(int(words[1].rsplit(":", 1)[1], 16))
    return found


class Later(object):
    """A question under way beside the others, so that what hangs costs its own deadline only. Without `seconds` it has
    deadlines of its own. One that never ends is left to itself: our end ends it too."""

    def __init__(self, function, *given, seconds=None):
        self._function, self._given, self._value, self._error = function, given, None, None
        self._seconds, self._began = seconds, time.monotonic()
        self._thread = threading.Thread(target=self._work)
        self._thread.daemon = True
        self._thread.start()

    def _work(self):
        try:
            self._value = self._function(*self._given)
        except Exception as exc:  # told to whoever asks for the answer
            self._error = exc

    def wait(self):
        """Until it is answered or late; whether it is answered."""
        self._thread.join(None if self._seconds is None else max(0.0, self._began + self._seconds - time.monotonic()))
        return not self._thread.is_alive()

    def get(self):
        if not self.wait():
            prelude.fail("late", "no answer in %g s" % self._seconds)
        if self._error is not None:
            raise self._error
        return self._value
