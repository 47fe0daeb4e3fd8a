"""Facts of the account and its surroundings that only matter before acting: whether, how and for how long one can.

Looks, and writes nothing: no file is tried by writing it, no port by binding it, and sudo is not asked unless told to
(it writes its log, a record in /run/sudo/ts and, where a password is wanted, a mail to root: measured with 1.9.13).
What is not known is null and says why under `unknown`; what it means is judged by the control plane. Whatever may hang
(a dead NFS server, a name service, a tool) has a deadline of its own.
"""
import errno
import glob
import os
import re
import stat
import sys
import time

import prelude
import probe_storage
from probe_facts import PROC, Later, fact, find_tool, listening, read, unknown

BASE = prelude.args.get("_base") or ""  # tests: a tree in place of /etc, /run, /sys, /usr, /var
MORE = ("/usr/local/sbin", "/opt/rocm/bin")
TOOLS = ("ldd", "tar", "systemd-run", "loginctl", "ibstat", "ibv_devinfo", "nvidia-smi", "nvidia-persistenced",
         "nv-fabricmanager", "rocm-smi", "amd-smi", "sudo", "doas")
MANAGERS = (("apt-get", "apt"), ("dnf", "dnf"), ("yum", "dnf"), ("zypper", "zypper"), ("pacman", "pacman"),
            ("apk", "apk"))
ADMINS = ("sudo", "wheel", "admin", "adm-sudo", "google-sudoers")
CLOCKS = ("chronyd", "ntpd", "systemd-timesyn", "openntpd", "ptp4l", "phc2sys", "ntpd-rs", "vmtoolsd")
# sshd_config(5): what holds where nothing is said.
DEFAULTS = {"maxsessions": "10", "maxstartups": "10:30:100", "allowtcpforwarding": "yes", "disableforwarding": "no",
            "permitopen": "any", "pubkeyauthentication": "yes", "strictmodes": "yes", "forcecommand": "none",
            "authorizedkeysfile": ".ssh/authorized_keys .ssh/authorized_keys2"}


def which(name):
    """As a shell finds it, and also what cannot be run."""
    if name.startswith("/"):
        return name if os.path.lexists(name) else None
    paths = [os.path.join(place, name) for place in os.environ.get("PATH", "").split(":") if place.startswith("/")]
    return next((path for path in paths if os.path.lexists(path)), None)


def tool(name):
    return find_tool(name, MORE)


# ---- the account ----

def me():
    import pwd
    return pwd.getpwuid(os.geteuid())


def shell():
    return {"login": me().pw_shell or "/bin/sh"}


def pythons():
    """Every interpreter the bootstrap's ladder could meet, in its order; those that do not work with what they say."""
    found, seen, ends = [], set(), time.monotonic() + 6
    for name in prelude.args.get("interpreters") or ["python3"]:
        path = which(name)
        if path is None or os.path.realpath(path) in seen:
            continue
        seen.add(os.path.realpath(path))
        version, fault = interpreter(path) if time.monotonic() < ends else (None, None)
        found.append({"path": path, "version": version, "fault": fault,
                      "chosen": os.path.realpath(path) == os.path.realpath(sys.executable)})
    return found


def interpreter(path):
    if not os.path.exists(path):
        return None, "is a broken link"
    if not os.access(path, os.X_OK):
        return None, "may not be executed"
    code = "import sys;print('.'.join(map(str,sys.version_info[:3])))"
    try:
        status, out, err = prelude.run([path, "-B", "-I", "-S", "-c", code], 2)
    except OSError as exc:
        return None, "cannot be started: %s" % os.strerror(exc.errno or errno.ENOEXEC)
    if status is None:
        return None, "did not answer in 2 s"
    version = re.match(r"\d+\.\d+\.\d+\Z", out.strip())
    if status == 0 and version:
        return version.group(), None
    said = (err.strip() or out.strip()).splitlines()
    return None, "ended with %d%s" % (status, ": " + said[-1][:200] if said else "")


def groups():
    import grp
    found = []
    for gid in sorted(set(os.getgroups()) | {os.getegid()}):
        try:
            found.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            found.append(str(gid))
    return found


def sudo(ask):
    path, mine = tool("sudo"), [name for name in groups() if name in ADMINS]

    def answer(mode, detail=None):
        return {"mode": mode, "path": path, "detail": detail, "groups": mine}
    if os.geteuid() == 0:
        return answer("root")
    if path is None:
        return answer("none")
    if re.search(r"^NoNewPrivs:\s*1", read(PROC + "/self/status", ""), re.M):
        return answer("refused", "this session may gain no privileges (no_new_privs)")
    info = os.stat(path)
    if not info.st_mode & stat.S_ISUID or os.statvfs(path).f_flag & os.ST_NOSUID:
        return answer("refused", "%s is not setuid here" % path)
    if not ask:
        return answer("unknown", "sudo was not asked: it would write its log")
    status, out, err = prelude.run([path, "-n", "-k", "-l"], 5, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    said = " ".join((err or out).split())[-200:]
    if status is None:
        return answer("unknown", "sudo did not answer in 5 s")
    if status == 0:
        free = re.search(r"NOPASSWD:(?:\s*\w+:)*\s*ALL\s*$", out, re.M)
        return answer("free" if free else "password", None if free else "without a password only for some commands")
    if "tty" in said:
        return answer("requiretty", said)
    if "password is required" in said:
        return answer("password", said)
    return answer("refused", said)


def logind():
    """What becomes of processes when the last session ends: logind.conf(5), and what logind itself says."""
    name, uid = me().pw_name, os.geteuid()
    runtime = "%s/run/user/%d" % (BASE, uid)
    running = os.path.isdir(BASE + "/run/systemd/system")
    kill, exclude, only = logind_files()
    if running and not BASE and kill is not None:
        kill = logind_says(kill)
    return {"systemd": running, "kill_user_processes": kill if running else False, "exclude": exclude, "only": only,
            "linger": os.path.exists("%s/var/lib/systemd/linger/%s" % (BASE, name)),
            "user_manager": os.path.exists(runtime + "/systemd/private"),
            "systemd_run": tool("systemd-run") is not None}


def logind_files():
    """(KillUserProcesses, the users excluded, the only ones meant). The shipped file names the built-in value in a
    comment: distributions differ, upstream is yes since version 230."""
    mains = [BASE + place + "/systemd/logind.conf" for place in ("/etc", "/run", "/usr/lib")]
    main = next((path for path in mains if os.path.isfile(path)), None)
    dropped = {}
    for place in ("/usr/lib", "/usr/local/lib", "/run", "/etc"):  # of two of one name the later place counts
        for path in glob.glob(BASE + place + "/systemd/logind.conf.d/*.conf"):
            dropped[os.path.basename(path)] = path
    text = read(main, "") if main else ""
    said = re.search(r"^#\s*KillUserProcesses=(\w+)", text, re.M)
    found = {"KillUserProcesses": said.group(1) if said else "", "KillExcludeUsers": "root", "KillOnlyUsers": ""}
    for path in ([main] if main else []) + [dropped[name] for name in sorted(dropped)]:
        for key, value in re.findall(r"^\s*(Kill\w+)\s*=\s*(.*?)\s*$", read(path, ""), re.M):
            found[key] = value
    word = found["KillUserProcesses"].lower()
    kill = True if word in ("yes", "1", "true", "on") else False if word in ("no", "0", "false", "off") else None
    return kill, found["KillExcludeUsers"].split(), found["KillOnlyUsers"].split()


def logind_says(otherwise):
    """A property of the running logind; the file may have been changed since it read it."""
    busctl = tool("busctl")
    if busctl is None or not os.path.exists("/run/dbus/system_bus_socket"):
        return otherwise
    status, out, _ = prelude.run([busctl, "--auto-start=no", "get-property", "org.freedesktop.login1",
                                  "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "KillUserProcesses"], 2)
    return {"b true": True, "b false": False}.get(out.strip(), otherwise) if status == 0 else otherwise


def keys():
    """What sshd's StrictModes looks at before it believes an authorized_keys: owner and mode, up to the home."""
    home = prelude.home()
    found = []
    for path in (home, home + "/.ssh", home + "/.ssh/authorized_keys"):
        try:
            info = os.stat(path)
        except OSError as exc:
            found.append({"path": path, "exists": exc.errno not in (errno.ENOENT, errno.ENOTDIR), "fault": None})
            continue
        fault = None
        if info.st_uid not in (0, os.geteuid()):
            fault = "belongs to user %d" % info.st_uid
        elif info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            fault = "is writable by others (mode %04o)" % stat.S_IMODE(info.st_mode)
        found.append({"path": path, "exists": True, "fault": fault})
    return found


# ---- the server that let us in ----

def server():
    """(its kind, the words of its command line), found among our ancestors; the topmost one is the listener."""
    pid, found = os.getppid(), (None, [])
    for _ in range(64):
        name = read("/proc/%d/comm" % pid, "")
        if name.startswith("sshd"):
            found = ("openssh", read("/proc/%d/cmdline" % pid, "").replace("\0", " ").split())
        elif name.startswith("dropbear"):
            found = ("dropbear", read("/proc/%d/cmdline" % pid, "").replace("\0", " ").split())
        above = prelude.process(pid)
        if not above or not above["ppid"]:
            break
        pid = above["ppid"]
    return found


def options(words, letters):
    """Options of a command line that take a value, `-f FILE` or `-fFILE`: [(letter, value)]."""
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if len(word) > 1 and word[0] == "-" and word[1] in letters:
            found.append((word[1], word[2:] or (rest.pop(0) if rest else "")))
    return found


def sshd():
    kind, words = server()
    if prelude.args.get("_sshd"):  # tests: the file in place of the server above us
        kind, words = "openssh", ["sshd:", "sshd", "-f", prelude.args["_sshd"]]
    if kind is None:
        prelude.fail("none", "no SSH server is among the ancestors of this session")
    if kind == "dropbear":
        closed = any(word[0] == "-" and "j" in word[1:] for word in words[1:] if len(word) < 6)
        return {"server": kind, "source": "its command line", "allow_tcp_forwarding": "no" if closed else "yes",
                "max_sessions": None, "max_startups": None, "permit_open": [], "pubkey": True, "strict_modes": True,
                "authorized_keys_file": [".ssh/authorized_keys"], "force_command": None}
    words = words[1:] if words and words[0] == "sshd:" else words
    given = options(words, "fo")
    path = next((value for letter, value in given if letter == "f"), BASE + "/etc/ssh/sshd_config")
    found, source = effective(words, path, given)
    if found is None:
        found, source = parsed(path), path
        for letter, value in given:  # what is said on the command line comes first
            if letter == "o":
                key, _, text = value.partition("=")
                found[key.strip().lower()] = text.strip()

    def value(key):
        return found.get(key, DEFAULTS[key])
    forwarding, sessions = value("allowtcpforwarding"), value("maxsessions")
    if value("disableforwarding") == "yes":
        forwarding = "no"
    opened = [] if value("permitopen") in (None, "any") else value("permitopen").split()
    forced = value("forcecommand")
    return {"server": kind, "source": source, "max_sessions": int(sessions) if (sessions or "").isdecimal() else None,
            "max_startups": value("maxstartups"), "allow_tcp_forwarding": forwarding, "permit_open": opened,
            "pubkey": {"yes": True, "no": False}.get(value("pubkeyauthentication")),
            "strict_modes": {"yes": True, "no": False}.get(value("strictmodes")),
            "authorized_keys_file": (value("authorizedkeysfile") or "").split(),
            "force_command": None if forced in (None, "none") else forced}


def effective(words, path, given):
    """What sshd itself says (-T) for this user and this connection. It wants to read the host keys: root only."""
    binary = words[0] if words and words[0].startswith("/") else tool("sshd")
    if os.geteuid() != 0 or not binary or BASE or not os.access(path, os.R_OK):
        return None, None
    client, _, here, port = (os.environ.get("SSH_CONNECTION", "").split() + ["127.0.0.1", "0", "127.0.0.1", "22"])[:4]
    about = "user=%s,host=%s,addr=%s,laddr=%s,lport=%s" % (me().pw_name, client, client, here, port)
    more = [each for letter, value in given if letter == "o" for each in ("-o", value)]
    status, out, _ = prelude.run([binary, "-T", "-f", path, "-C", about] + more, 3)
    if status != 0:
        return None, None
    found = {}
    for line in out.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), value.strip())
    return found, "sshd -T"


def parsed(path):
    """sshd_config(5) by hand: the first value of a key counts, that of a Match block which is ours before it. A key
    that a Match block sets of which we cannot tell is null."""
    plain, matched, doubtful = {}, {}, set()

    def walk(name, depth, state):
        for line in read(name).splitlines():
            words = re.findall(r'"[^"]*"|[^\s="]+', re.sub(r"(^|\s)#.*", "", line))
            words = [word.strip('"') for word in words]
            if len(words) < 2:
                continue
            key, rest = words[0].lower(), words[1:]
            if key == "match":
                state = matches(rest)
            elif key == "include" and depth < 16:
                for pattern in rest:
                    pattern = pattern if pattern.startswith("/") else "/etc/ssh/" + pattern
                    folder = os.path.dirname(BASE + pattern)
                    if state is False or not os.path.isdir(folder):
                        continue
                    os.listdir(folder)  # one that may not be read looks empty to glob: that is no answer
                    for each in sorted(glob.glob(BASE + pattern)):
                        walk(each, depth + 1, state)
            elif state == "all":
                plain.setdefault(key, " ".join(rest))
            elif state is True:
                matched.setdefault(key, " ".join(rest))
            elif state is None:
                doubtful.add(key)
    walk(path, 0, "all")
    found = dict(plain)
    found.update(matched)
    found.update((key, None) for key in doubtful)
    return found


def matches(words):
    """Whether a Match line is ours: True, False, "all", or None where it asks what we do not know."""
    import fnmatch
    if [word.lower() for word in words] == ["all"]:
        return "all"
    verdict = True
    for kind, patterns in zip(words[::2], words[1::2]):  # noqa: B905
        names = {"user": [me().pw_name], "group": groups()}.get(kind.lower())
        if names is None:
            verdict = None if verdict is True else verdict
            continue
        listed = patterns.split(",")
        ours = any(fnmatch.fnmatchcase(name, each) for name in names for each in listed if each[:1] != "!")
        denied = any(fnmatch.fnmatchcase(name, each[1:]) for name in names for each in listed if each[:1] == "!")
        if denied or not ours:
            return False
    return verdict


# ---- file systems, ports, the way out ----

def mounts():
    paths = [path for path in ("/tmp", "/dev/shm") if os.path.isdir(path)]
    paths = [path for path in (prelude.root_path(), prelude.home()) if path not in paths] + paths
    return probe_storage.every("mounts", paths, ("path", "place", "fs", "shared", "free", "total", "inodes_free",
                                                 "noexec", "read_only", "writable"))


def ports(wanted):
    """How many ports of the engines' range nobody listens on."""
    if not wanted:
        return None
    of = wanted[1] - wanted[0] + 1
    return {"free": of - sum(wanted[0] <= port <= wanted[1] for port in listening()), "of": of}


def reach(told):
    """One TCP connection out; closed at once, nothing is sent."""
    import socket
    host, _, port = told["host"].rpartition(":")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), 0, socket.SOCK_STREAM)
        told["resolved"] = True
        for family, kind, protocol, _, address in addresses[:4]:
            with socket.socket(family, kind, protocol) as tried:
                tried.settimeout(3.0)
                try:
                    tried.connect(address)
                    told.update(ok=True, error=None)
                    return
                except OSError as exc:
                    told["error"] = str(exc)
    except (OSError, ValueError) as exc:
        told["error"] = str(exc)


def outbound(targets):
    """The hosts we were told of, side by side. Proxies of the environment by name only: they may hold passwords."""
    told = [{"host": target, "ok": False, "error": None, "resolved": False} for target in targets[:16]]
    for asked in [Later(reach, each, seconds=4.0) for each in told]:
        asked.wait()
    for each in told:
        each["error"] = None if each["ok"] else each["error"] or "no answer in 4 s"
    named = [each["resolved"] for each in told if re.search(r"[a-zA-Z]", each["host"].rpartition(":")[0])]
    proxies = sorted(name for name in os.environ if re.match(r"(?i)(https?|all)_proxy\Z", name))
    return {"dns": any(named) if named else None, "proxies": proxies,
            "hosts": [{key: each[key] for key in ("host", "ok", "error")} for each in told]}


# ---- the system around ----

def selinux():
    word = read(BASE + "/sys/fs/selinux/enforce", "")
    return {"1": "enforcing", "0": "permissive"}.get(word, "disabled")


def resolved(name):
    import socket
    return socket.getaddrinfo(name, None)[0][4][0]


def clock_source():
    """Who keeps the clock, and whether the kernel thinks it is right: adjtimex(2) with no modes only reads."""
    import ctypes
    names = [read(path, "") for path in glob.glob("/proc/[0-9]*/comm")]
    source = next((name for name in CLOCKS if name in names), None)
    timex = ctypes.create_string_buffer(512)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(timex) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    wide = ctypes.sizeof(ctypes.c_long)
    status = ctypes.c_int.from_buffer(timex, 5 * wide).value  # behind modes (padded), offset, freq, maxerror, esterror
    return {"synchronized": not status & 0x40, "source": source}


def devices():
    """The doors to accelerators and adapters, and whether this user may go through them."""
    import grp
    found = []
    for pattern in ("/dev/kfd", "/dev/dri/renderD*", "/dev/nvidiactl", "/dev/nvidia[0-9]*", "/dev/nvidia-uvm",
                    "/dev/infiniband/uverbs*"):
        for path in sorted(glob.glob(pattern))[:64]:
            try:
                group = grp.getgrgid(os.stat(path).st_gid).gr_name
            except KeyError:
                group = str(os.stat(path).st_gid)
            found.append({"path": path, "ok": os.access(path, os.R_OK | os.W_OK), "group": group})
    return found


def libraries(names):
    """Whether the loader finds them: asked of the loader itself."""
    import ctypes
    found = {}
    for name in names[:32]:
        try:
            ctypes.CDLL(name)
            found[name] = True
        except OSError:
            found[name] = False
    return found


def init():
    """What process 1 is: it has to take in orphans."""
    return read(PROC + "/1/comm", "") or None


def main(args):
    name = os.uname()[1]
    asked = {
        "shell": later(shell), "pythons": later(pythons, seconds=9.0),
        "sudo": later(sudo, bool(args.get("ask_sudo")), seconds=7.0), "logind": later(logind), "keys": later(keys),
        "sshd": later(sshd), "mounts": later(mounts), "ports": later(ports, args.get("ports")),
        "outbound": later(outbound, args.get("outbound") or []),
        "libraries": later(libraries, args.get("libraries") or []),
        "tools": later(lambda: {each: tool(each) for each in TOOLS}),
        "packages": later(lambda: {"manager": next((kind for command, kind in MANAGERS if tool(command)), None)}),
        "selinux": later(selinux), "resolved": later(resolved, name, seconds=3.0), "ntp": later(clock_source),
        "init": later(init), "devices": later(devices),
        "oom": later(lambda: {"overcommit": int(read(PROC + "/sys/vm/overcommit_memory"))})}
    found = {key: fact(key, one.get) for key, one in asked.items()}
    for key, empty in (("pythons", []), ("keys", []), ("mounts", []), ("devices", []), ("tools", {}),
                       ("libraries", {}), ("packages", {}), ("oom", {})):
        found[key] = empty if found[key] is None else found[key]
    return dict(found, schema=1, at=time.time(), hostname=name, unknown=unknown)


def later(function, *given, seconds=5.0):
    return Later(function, *given, seconds=seconds)


prelude.main(main)
