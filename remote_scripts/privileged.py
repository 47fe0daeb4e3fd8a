"""Runs one command of a fixed list as root, and tells how it went. The only place from which sudo is called.

The password is written to sudo's stdin at the moment sudo asks for it and never before: where sudo asks for none, the
command would read it. It is in no argument, no variable, no file, no frame. The command runs in a session of its own
on a terminal that nobody types at: sudo with `requiretty` finds one, and when we end, however we end, the kernel hangs
it up. That reaches what runs as root, to which this user may send no signal.
"""
import fcntl
import os
import re
import resource
import select
import shlex
import signal
import subprocess
import termios
import time
import warnings

import prelude

# Not the PATH of the user: what runs as root is the system's. The last one is NixOS's place for what is setuid.
PLACES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin", "/run/wrappers/bin")
MANAGERS = (("apt-get", "apt"), ("dnf", "dnf"), ("yum", "dnf"), ("zypper", "zypper"), ("pacman", "pacman"),
            ("apk", "apk"))
PACKAGES = {
    "infiniband-diags": {"apt": "infiniband-diags", "dnf": "infiniband-diags", "zypper": "infiniband-diags",
                         "pacman": "rdma-core"},
    "ldd": {"apt": "libc-bin", "dnf": "glibc-common", "zypper": "glibc", "pacman": "glibc", "apk": "musl-utils"},
    "libgomp": {"apt": "libgomp1", "dnf": "libgomp", "zypper": "libgomp1", "pacman": "gcc-libs", "apk": "libgomp"},
    "libibverbs": {"apt": "ibverbs-providers", "dnf": "libibverbs", "zypper": "libibverbs", "pacman": "rdma-core"},
    "libstdc++": {"apt": "libstdc++6", "dnf": "libstdc++", "zypper": "libstdc++6", "pacman": "gcc-libs",
                  "apk": "libstdc++"},
}
INSTALL = {  # manager: (what it is asked, for people; what is said besides so that it asks nobody)
    "apt": (["install"], ["-y", "-q", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0",
                          "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]),
    "dnf": (["install"], ["-y"]),
    "zypper": (["install"], ["--non-interactive"]),
    "pacman": (["-S"], ["--needed", "--noconfirm", "--noprogressbar"]),
    "apk": (["add"], ["--no-progress"]),
}
REFRESH = {"apt": ["update", "-q"], "apk": ["update"]}  # pacman not: its lists go with an upgrade of everything
QUIET = ["LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "APT_LISTCHANGES_FRONTEND=none"]

# The words of sudo 1.8 and 1.9, and of sudo-rs, in the C locale.
WANTED = re.compile(r"password is required|authentication is required|terminal is required|not attempted", re.I)
WRONG = re.compile(r"incorrect (password|authentication) attempt", re.I)
REFUSED = re.compile(r"not in the sudoers|(is|are) not allowed to|may not run|can't do that|must have a tty|no tty "
                     r"present|new privileges|effective uid is not 0|must be (setuid root|owned by uid 0)|"
                     r"account validation|account is locked|is expired|parse error|syntax error in|no valid sudoers|"
                     r"policy plugin|PAM error|unable to initialize|no password was provided", re.I)
ASKS = re.compile(br"pass(word|phrase|code)\b[^\n]*:\s*\Z", re.I)  # where PAM has words of its own
LOCKED = re.compile(r"(could not get|failed to|unable to|cannot) (acquire|lock|get)\b.*lock|system management is "
                    r"locked|unable to lock database|database is locked", re.I)
STALE = re.compile(r"unable to locate package|no installation candidate|failed to fetch|unable to select packages",
                   re.I)
PATIENCE = 30.0  # seconds in which sudo may begin to ask: it looks names up first, and PAM may be slow
KEPT = 1 << 16


class Plan(object):
    """What to run: as a person would type it, as it is run, and what to run first when its lists are old."""

    def __init__(self, words, argv, refresh=None, slow=False):
        self.line = " ".join(shlex.quote(word) for word in words)
        self.argv, self.refresh, self.slow = argv, refresh, slow


def tool(name):
    for place in tuple(prelude.args.get("_places") or ()) + PLACES:  # tests: stand-ins
        path = os.path.join(place, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def needed(name):
    return tool(name) or prelude.fail("tool_missing", "there is no %s on this node" % name)


def user():
    import pwd
    return pwd.getpwuid(os.geteuid()).pw_name


# ---- the list ----

def install(args):
    names = args.get("packages") or []
    if not names or not all(name in PACKAGES for name in names):
        prelude.fail("bad_argument", "packages are some of %s" % ", ".join(sorted(PACKAGES)))
    found = next(((tool(name), kind) for name, kind in MANAGERS if tool(name)), None)
    packages = sorted({PACKAGES[name].get(found[1]) or "" for name in names}) if found else [""]
    if not packages[0]:
        prelude.fail("no_package", "no package manager here is known to have %s" % " and ".join(names),
                     "Install %s there." % " and ".join(names))
    path, kind = found
    words, more = INSTALL[kind]
    asked = more + words if kind == "zypper" else words + more  # zypper's are global options
    return Plan([os.path.basename(path)] + words + packages, [path] + asked + packages,
                [path] + REFRESH[kind] if kind in REFRESH else None, slow=True)


def linger(args):
    words = ["loginctl", "enable-linger", user()]
    return Plan(words, [needed("loginctl")] + words[1:])


def persistence(args):
    words = ["nvidia-smi", "-pm", "1"]
    return Plan(words, [needed("nvidia-smi")] + words[1:])


def peermem(args):
    words = ["modprobe", "nvidia-peermem"]
    return Plan(words, [needed("modprobe")] + words[1:])


REMEDIES = {"install": install, "linger": linger, "persistence": persistence, "peermem": peermem}


# ---- one run ----

def terminal():
    """A new pseudo-terminal, or (None, None) where the machine has none to give."""
    try:
        return os.openpty()
    except OSError:
        return None, None


class Run(object):
    """One run: its words, how often it asked for a password and whose, how it ended (None: it was late)."""

    def __init__(self, argv, mark, password, ends):
        self.mark = re.compile(re.escape(mark) + br"([^\]\n]*)\]") if mark else None
        self.answer, self.ends, self.began = password, ends, time.monotonic()
        self.asked, self.whose, self.status = 0, "", None
        self.words, self.rest, self.said = bytearray(), b"", self.began
        self.master, self.slave = terminal()
        slave = self.slave

        def on_terminal():
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        warnings.simplefilter("ignore")  # 3.12 warns of a fork beside the thread that watches stdin: the child execs
        self.tool = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     env={"PATH": ":".join(PLACES), "LC_ALL": "C", "TERM": "dumb",
                                          "HOME": prelude.home(), "USER": user(), "LOGNAME": user()},
                                     cwd="/", start_new_session=True, preexec_fn=None if slave is None else on_terminal)
        self.out = self.tool.stdout.fileno()
        if slave is None:
            prelude._tools.add(self.tool.pid)  # nothing hangs up: it is killed with us as far as we may
        if self.answer is None:
            self.reply(b"")

    def reply(self, data):
        if self.tool.stdin.closed:
            return
        try:
            self.tool.stdin.write(data)
            self.tool.stdin.close()
        except OSError:  # it is gone already
            pass

    def take(self, data):
        """New output: its questions are counted and taken out, whole lines are kept, the last one is told."""
        self.rest += data
        found = self.mark.search(self.rest) if self.mark else None
        while found:
            self.words += self.rest[:found.start()]
            self.rest = self.rest[found.end():]
            self.question(found.group(1).decode("utf-8", "replace"))
            found = self.mark.search(self.rest)
        lines, newline, self.rest = self.rest.rpartition(b"\n")
        self.words += lines + newline
        del self.words[:-KEPT]
        line = last(lines.decode("utf-8", "replace"))
        if line and time.monotonic() - self.said >= 0.5:
            self.said = time.monotonic()
            prelude.event(state="running", detail=masked(line, self.answer)[:200])

    def question(self, whose):
        self.asked, self.whose = self.asked + 1, whose
        if self.answer is not None:
            self.reply(self.answer + b"\n")  # once: the next question finds the end of the file

    def look(self, seconds):
        """Waits for output. False when there was none."""
        listened = [fd for fd in (self.out, self.master) if fd is not None]
        ready = select.select(listened, [], [], seconds)[0]
        for fd in ready:
            data = os.read(fd, 1 << 16)
            if fd == self.out:
                self.take(data)
                self.out = fd if data else None
        return bool(ready)

    def go(self):
        quiet = 0
        while self.out is not None and time.monotonic() < self.ends:
            quiet = 0 if self.look(0.1) else quiet + 1
            if quiet and self.tool.poll() is not None:
                break  # it has ended, what it left behind holds the pipe
            if quiet == 5 and self.answer is not None and not self.asked and ASKS.search(self.rest):
                self.question("")
            if time.monotonic() - self.began > PATIENCE:
                self.reply(b"")  # whatever else may be asked has no answer
        while self.tool.poll() is None and time.monotonic() < self.ends:
            time.sleep(0.005)
        self.status = self.tool.poll()
        self.stop()
        self.words += self.rest
        return self

    def stop(self):
        """Hangs up, and what does not end of that is ended: by us where we may, else by the `timeout` around it."""
        if self.master is not None:
            # The master first, here and when we die (it has the lower number): with the last slave the kernel would
            # only take the terminal away, and send no hangup.
            os.close(self.master)
            os.close(self.slave)
            self.master = None
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(100):
                if self.tool.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                try:
                    os.killpg(self.tool.pid, number)
                except OSError:
                    pass
        prelude._tools.discard(self.tool.pid)
        self.reply(b"")
        self.tool.stdout.close()


# ---- what it said ----

def masked(text, password):
    return text.replace(password.decode("utf-8", "replace"), "\u2022\u2022\u2022") if password else text


def last(text):
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    return next((line for line in reversed(lines) if line), "")


class Root(object):
    """How this account becomes root, asked for one plan."""

    def __init__(self, plan, password, seconds):
        self.plan, self.password, self.ends = plan, password, time.monotonic() + seconds
        self.seconds = seconds
        self.sudo = None if os.geteuid() == 0 else tool("sudo")
        if os.geteuid() != 0 and self.sudo is None:
            prelude.fail("sudo_missing", "%s is not root and there is no sudo" % user(), self.by_hand(""))

    def by_hand(self, how="sudo "):
        return "Run on it%s: %s%s" % ("" if how else " as root", how, self.plan.line)

    def run(self, argv):
        left = self.ends - time.monotonic()
        if self.plan.slow:
            limit = tool("timeout")  # on root's side of sudo, where it may end what we may not
            argv = [needed("env")] + QUIET + ([limit, "-k", "10", "%d" % max(2, left - 15)] if limit else []) + argv
        if self.sudo is None:
            return Run(argv, None, None, self.ends).go()
        if self.password is None:
            return Run([self.sudo, "-n", "--"] + argv, None, None, self.ends).go()
        mark = "[llmgw-%s " % os.urandom(8).hex()
        asking = [self.sudo, "-S", "-k", "-p", mark + "%p]", "--"]  # -k: neither uses nor leaves a stored login
        return Run(asking + argv, mark.encode(), self.password, self.ends).go()

    def done(self, argv):
        """(Whether it went well, its words). Raises what sudo says."""
        ran = self.run(argv)
        text = masked(ran.words.decode("utf-8", "replace"), self.password)
        if ran.status is None or (self.plan.slow and ran.status in (124, 137)):
            prelude.fail("too_slow", "`%s` did not end in %d s" % (self.plan.line, self.seconds),
                         self.by_hand("sudo " if self.sudo else ""), output=text[-2000:])
        if ran.status != 0 and self.sudo is not None:
            self.refusal(ran, text)
        self.status = ran.status
        return ran.status == 0, text

    def refusal(self, ran, text):
        whose = user() if ran.whose in ("", "%p") else ran.whose  # of another with rootpw and targetpw
        if ran.asked > 1 or (ran.asked and WRONG.search(text)):
            prelude.fail("sudo_password_wrong", "sudo does not take this password for %s" % whose,
                         "Try again, or run on it: sudo %s" % self.plan.line, whose=whose)
        if not ran.asked and WANTED.search(text):
            prelude.fail("sudo_password_needed", "sudo wants a password from %s" % user(), self.by_hand())
        said = [line.strip() for line in text.splitlines() if REFUSED.search(line)]
        if ran.status == 1 and said:
            prelude.fail("sudo_refused", "sudo does not let %s do that: %s" % (user(), said[-1][:300]),
                         self.by_hand(""))

    def until_unlocked(self, argv, wait):
        """As `done`; another package manager that is at work is waited for, `wait` seconds."""
        ends = min(time.monotonic() + wait, self.ends - 30)
        while True:
            well, text = self.done(argv)
            if well or not LOCKED.search(text):
                return well, text
            held = next(line for line in text.splitlines() if LOCKED.search(line)).strip()[:300]
            if time.monotonic() + 3 > ends:
                prelude.fail("package_lock", "another package manager is at work: %s" % held,
                             "Wait for it; then " + self.by_hand("sudo " if self.sudo else ""))
            prelude.event(state="waiting", detail=held[:200])
            time.sleep(3)


def main(args):
    password = args.pop("password", None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if password is not None and re.search(r"[\r\n\0]", password):
        prelude.fail("bad_argument", "the password holds a line break: sudo would read half of it")
    remedy = REMEDIES.get(args.get("remedy"))
    if remedy is None:
        prelude.fail("bad_argument", "the remedy is one of %s" % ", ".join(sorted(REMEDIES)))
    began, wait = time.monotonic(), float(args.get("lock_wait", 120))
    plan = remedy(args)
    root = Root(plan, None if password is None else password.encode(), float(args.get("seconds") or 60))
    prelude.event(state="running", detail=plan.line)
    well, text = root.until_unlocked(plan.argv, wait)
    if not well and plan.refresh and STALE.search(text):
        root.until_unlocked(plan.refresh, wait)
        well, text = root.until_unlocked(plan.argv, wait)
    if not well:
        prelude.fail("remedy_failed", "`%s` failed (%s): %s" % (plan.line, root.status, last(text)[:300]),
                     root.by_hand("sudo " if root.sudo else "") + ", and read what it says", output=text[-2000:])
    return {"remedy": args["remedy"], "by": "sudo" if root.sudo else "root", "command": plan.line,
            "said": last(text)[:300], "seconds": round(time.monotonic() - began, 3)}


prelude.main(main)
