"""The control plane's line in this user's authorized_keys: added once, replaced in place, taken out again.

Every other byte of the file stays as it was. Where its last line lacks a newline ours goes to the top, since that
newline would be a change which nobody could take back.
"""
import os
import stat

import prelude

TRIES = 3
MOST = 4 << 20
DROPBEAR = b'no-pty,no-agent-forwarding,no-X11-forwarding,permitopen="127.0.0.1:*"'
# dropbear(8), from 2022.82 on: it ignores a key with a restriction that it does not know, its `restrict` forbids all
# forwarding whatever else is said, and it has no word for remote listeners.


def lines_of(data):
    return data.splitlines(True) if b"\r" not in data else [line + b"\n" for line in data.split(b"\n")[:-1]] + (
        [data.split(b"\n")[-1]] if not data.endswith(b"\n") and data else [])


def is_ours(line, key):
    """A line that holds our key, whatever its options and its comment."""
    return not line.lstrip().startswith(b"#") and key in line.split()


def added(data, line, key):
    """The file with exactly one line of ours."""
    lines, done = [], False
    for each in lines_of(data):
        if not is_ours(each, key):
            lines.append(each)
        elif not done:
            done = True
            lines.append(line + (b"\n" if each.endswith(b"\n") else b""))
    if not done:
        at = len(lines) if not lines or lines[-1].endswith(b"\n") else 0
        lines.insert(at, line + b"\n")
    return b"".join(lines)


def removed(data, key):
    return b"".join(each for each in lines_of(data) if not is_ours(each, key))


def under_dropbear():
    """Whether the server that let us in is dropbear: one of our ancestors."""
    pid = os.getppid()
    while pid:
        try:
            with open("/proc/%d/comm" % pid) as file:
                if file.read().startswith("dropbear"):
                    return True
        except OSError:
            return False
        above = prelude.process(pid)
        pid = above["ppid"] if above else 0
    return False


def for_dropbear(line, key):
    """The line with what dropbear knows of its restrictions."""
    words = line.split()
    return b" ".join([DROPBEAR] + words[words.index(key) - 1:])


def read(path):
    """(contents, what tells this state of the file from any other), or (b"", None) when there is none."""
    try:
        plain = stat.S_ISREG(os.stat(path).st_mode)  # before it is opened: a FIFO would wait for ever
        if not plain:
            prelude.fail("keys_unusable", "%s is no plain file" % path, "Look at it by hand.")
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if info.st_size > MOST:
                prelude.fail("keys_unusable", "%s has %d MB: no server reads that" % (path, info.st_size >> 20),
                             "Look at it by hand.")
            return file.read(), info
    except FileNotFoundError:
        return b"", None


def same(one, other):
    if one is None or other is None:
        return one is other
    return (one.st_ino, one.st_size, one.st_mtime_ns) == (other.st_ino, other.st_size, other.st_mtime_ns)


def write(path, data, before):
    """Beside it, then renamed: owner, mode and labels as before. False when somebody else wrote in between."""
    # Not named by our pid: machines that share this home have the same ones.
    beside = "%s.llmgw-%s" % (path, os.urandom(6).hex())
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except PermissionError:
        prelude.fail("keys_unusable", "this user may write nothing beside %s" % path,
                     "Correct the owner and mode of %s, or use --no-key." % os.path.dirname(path))
    try:
        try:
            prelude.write_all(fd, data)
        except OSError as exc:
            exc.filename = path  # no call on a descriptor knows it
            raise
        if before is not None:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                try:
                    os.fchown(fd, before.st_uid, before.st_gid)
                except PermissionError:  # a group that this user is not in: a file of our own group serves as well
                    if before.st_uid != os.geteuid():
                        raise
            os.fchmod(fd, stat.S_IMODE(before.st_mode))
            copy_labels(path, fd)
        os.fsync(fd)
        if not same(read(path)[1], before):
            return False
        os.rename(beside, path)
        beside = None
    finally:
        os.close(fd)
        if beside is not None:
            os.unlink(beside)
    prelude.sync_dir(os.path.dirname(path))
    return True


def copy_labels(path, fd):
    """SELinux labels and ACLs, where there are any and we may."""
    try:
        for name in os.listxattr(path):
            os.setxattr(fd, name, os.getxattr(path, name))
    except OSError:
        pass


def change(path, make):
    """Rewrites the file through `make(bytes)`. True when that changed anything."""
    for _ in range(TRIES):
        data, before = read(path)
        new = make(data)
        if new == data:
            return False
        if write(path, new, before):
            return True
    return prelude.fail("busy", "%s keeps changing while we write it" % path, "Try again.")


def trace(created, key):
    """Notes in the trace what was made, where this node has one already; the caller keeps it otherwise."""
    if prelude.args.get("node_id") and prelude.found_host():
        host = prelude.found_host()
        with prelude.Lock(os.path.join(host, "lock")):
            prelude.note(created, [key])


def noted():
    """What was made for us here: by the trace, and by what the caller kept."""
    kept = list(prelude.args.get("trace") or ())
    if prelude.args.get("node_id"):
        kept += prelude.trace_of(prelude.host_path()).get("created", [])
    return kept


def look(folder, path, key):
    """Whether our line is there, and what would have to be made for it. Writes nothing."""
    data = read(path)[0]
    return {"present": any(is_ours(each, key) for each in lines_of(data)), "path": path,
            "missing": [each for each in (folder, path) if not os.path.lexists(each)]}


def add(folder, path, line, key):
    created = []
    if not os.path.isdir(folder):
        os.mkdir(folder, 0o700)
        created.append(folder)
    if not os.path.lexists(path):
        created.append(path)
    changed = change(os.path.realpath(path), lambda data: added(data, line, key))
    trace(created, key.decode())
    return {"changed": changed, "path": path, "created": created, "removed": []}


def remove(folder, path, key):
    """Takes our line out; the file and the folder go too when we made them and nothing else is in them."""
    if not os.path.isfile(path):
        return {"changed": False, "path": path, "created": [], "removed": []}
    changed, made, gone = change(os.path.realpath(path), lambda data: removed(data, key)), noted(), []
    if path in made and os.path.getsize(path) == 0:
        os.unlink(path)
        gone.append(path)
    if folder in made and not os.listdir(folder):
        os.rmdir(folder)
        gone.append(folder)
    return {"changed": changed, "path": path, "created": [], "removed": gone}


def main(args):
    key = (args.get("key") or "").encode()
    line = (args.get("line") or "").encode()
    if not key or b" " in key or b"\n" in line or b"\r" in line:
        prelude.fail("bad_argument", "the key must be one word and the line one line")
    folder = os.path.join(prelude.home(), ".ssh")
    path = os.path.join(folder, "authorized_keys")
    if args.get("action") == "look":
        return look(folder, path, key)
    if args.get("action") == "remove":
        return remove(folder, path, key)
    if args.get("action") != "add" or not is_ours(line, key):
        prelude.fail("bad_argument", "the line does not hold the key")
    return add(folder, path, for_dropbear(line, key) if under_dropbear() else line, key)


prelude.main(main)
