"""Weights on a node: whether a file is there, receiving it with resume, or using one that lies there already.

A file lies under its own digest and gets its name by a rename after the whole was hashed: what has the name is whole.
"""
import hashlib
import os
import re

import prelude

MARGIN = 64 << 20


def place(args):
    """(directory, path, path while incomplete) for the digest and the file name in the arguments."""
    digest, name = args.get("sha256") or "", args.get("file") or ""
    if not re.match(r"[0-9a-f]{64}\Z", digest):
        prelude.fail("bad_argument", "sha256 must be 64 hexadecimal digits")
    if not name or name.startswith(".") or len(name) > 200 or re.search(r"[/\0-\x1f\x7f]", name):
        prelude.fail("bad_argument", "%r is no safe file name" % name)
    folder = os.path.join(prelude.root_path(), "weights", digest)
    return folder, os.path.join(folder, name), os.path.join(folder, ".%s.part" % name)


def size_of(path):
    """Size of a plain file of ours, None when there is none."""
    try:
        fd = prelude.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def status(args):
    """Looks only: a file of the right size has been verified, since it was renamed after that."""
    path, part = place(args)[1:]
    size = size_of(path)
    present = size is not None and args.get("size") in (None, size)
    return {"present": present, "path": path, "partial": 0 if present else size_of(part) or 0}


def receive(args):
    prelude.act()
    folder, path, part = place(args)
    prelude.under("weights", args["sha256"])
    size, offset = int(args["size"]), int(args.get("offset") or 0)
    with prelude.Lock(os.path.join(folder, ".lock")):
        if size_of(path) == size:
            return {"present": True, "path": path}
        fd = prelude.open_file(part, os.O_RDWR | os.O_CREAT)
        try:
            os.set_blocking(fd, True)
            digest = continue_at(fd, part, offset, size)
            fill(fd, part, size, offset, digest)
        finally:
            os.close(fd)
        os.rename(part, path)
        prelude.sync_dir(folder)
    return {"present": True, "path": path}


def continue_at(fd, part, offset, size):
    """Cuts the partial file at `offset` and hashes what stays, after a look at the room for the rest."""
    there = os.fstat(fd).st_size
    if not 0 <= offset <= min(there, size):
        prelude.fail("offset", "cannot go on at byte %d: %d bytes are here" % (offset, there), partial=there)
    prelude.headroom(os.path.dirname(part), size - there + MARGIN)
    digest, done = hashlib.sha256(), 0
    progress = prelude.Progress(size, state="verifying")
    while done < offset:
        data = os.pread(fd, min(1 << 20, offset - done), done)
        if not data:
            prelude.fail("offset", "the partial file ended early", partial=done)
        digest.update(data)
        done += len(data)
        progress.add(len(data))
    os.ftruncate(fd, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return digest


def fill(fd, part, size, offset, digest):
    """Payload into the file. Cut off: it stays for a resume. Wrong or no room: it goes."""
    progress = prelude.Progress(size, offset, state="downloading")

    def sink(data):
        prelude.write_all(fd, data)
        digest.update(data)
        progress.add(len(data))

    try:
        prelude.receive(size - offset, sink)
        prelude.watch()
        os.fsync(fd)
    except OSError as exc:
        if exc.errno in prelude.DISK_FULL:
            os.ftruncate(fd, 0)  # gives the room back at once, though the file is still open
            os.unlink(part)
            prelude.full(os.path.dirname(part), size + MARGIN)
        raise
    prelude.event(state="verifying", done=size, total=size)
    if digest.hexdigest() != prelude.args["sha256"]:
        os.unlink(part)
        prelude.fail("digest", "what arrived has the digest %s, not %s" % (digest.hexdigest(), prelude.args["sha256"]),
                     "The file at its source has changed, or was damaged on the way: fetch it again.")


def use(args):
    """A file or a folder of weights that an operator put here: only looked at, never moved or removed."""
    path = args.get("path") or ""
    if not path.startswith("/"):
        prelude.fail("bad_argument", "%r is no absolute path" % path)
    if not os.path.exists(path):
        prelude.fail("not_found", "%s does not exist on this node" % path)
    if not os.access(path, os.R_OK):
        prelude.fail("denied", "%s cannot be read by this user" % path, "Give this user the right to read it.")
    size = os.path.getsize(path) if os.path.isfile(path) else sum(sizes(path))
    if args.get("size") not in (None, size):
        prelude.fail("digest", "%s has %d bytes, not %d" % (path, size, args["size"]))
    return {"present": True, "path": path, "size": size}


def sizes(folder):
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.path.getsize(os.path.join(parent, name))
            except OSError:
                continue


ACTIONS = {"status": status, "receive": receive, "use": use}


def main(args):
    action = ACTIONS.get(args.get("action"))
    return action(args) if action else prelude.fail("bad_argument", "no action %r" % (args.get("action"),))


prelude.main(main)
