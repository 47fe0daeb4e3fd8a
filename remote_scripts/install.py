"""Engines on a node: receives an archive, unpacks it, proves that it runs, and only then gives it its name.

Archives are unpacked by hand, since Python 3.6 has no filters: a member that would leave the directory, a device, a
duplicate or a bomb refuses the whole archive before anything is written (F69).
"""
import hashlib
import os
import re
import shutil
import signal
import stat
import sys

import prelude

RECORD = {"archive": (str, None), "files": dict, "tree": dict, "version_text": (str, None), "python": (str, None)}
MARGIN = 64 << 20
MAX_MEMBERS = 20000
MAX_BYTES = 20 << 30
MAX_RATIO = 200
CHECK_SECONDS = 60
# As glibc's ldd says it (a symbol version, a library), and as musl's does.
MISSING = re.compile(r"(\S+): version `(\S+)' not found|(\S+) => not found|loading shared library (\S+):")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Place(object):
    """Where an engine lies: the finished directory, the one being built beside it, and the archive on its way."""

    def __init__(self, args):
        self.base = os.path.join(prelude.root_path(), "engines", prelude.checked(args.get("engine"), "engine"))
        name = prelude.checked(args.get("directory"), "directory")
        self.path = os.path.join(self.base, name)
        self.new, self.old = (os.path.join(self.base, ".%s.%s" % (name, kind)) for kind in ("new", "old"))
        self.archive = os.path.join(self.base, ".%s.archive" % name)
        self.lock = os.path.join(self.base, ".%s.lock" % name)

    def clear(self):
        """Away with what an interrupted install left."""
        for path in (self.new, self.old):
            if os.path.lexists(path):
                shutil.rmtree(path)
        if os.path.lexists(self.archive):
            os.unlink(self.archive)


# ---- status ----

def status(args):
    return look(Place(args), args)


def look(place, args):
    """Whether the engine lies there whole, by the list of its files that was written last."""
    try:
        mark = prelude.read_json(os.path.join(place.path, "installed.json"), RECORD)
        fault = fault_in(place.path, mark, args) if mark else "not installed"
    except (ValueError, KeyError):
        mark, fault = None, "its record is damaged"
    if fault:
        return {"installed": False, "reason": fault, "path": place.path}
    return {"installed": True, "path": place.path, "version_text": mark["version_text"], "python": mark["python"]}


def fault_in(path, mark, args):
    wanted = (args.get("archive") or {}).get("sha256")
    if wanted and mark["archive"] != wanted:
        return "another archive is installed there"
    for name, entry in (args.get("files") or {}).items():
        if mark["files"].get(name) != entry["sha256"]:
            return "%s is of another version" % name
    for name, size in mark["tree"].items():
        try:
            if os.lstat(os.path.join(path, name)).st_size != size:
                return "%s is damaged" % name
        except OSError:
            return "%s is missing" % name
    if mark["python"] and not os.access(mark["python"], os.X_OK):
        return "its interpreter %s is gone" % mark["python"]
    return None


# ---- receive ----

def receive(args):
    prelude.act()
    place = Place(args)
    prelude.under("engines", args["engine"])
    with prelude.Lock(place.lock):
        found = look(place, args)
        if found["installed"]:
            return found
        python = find_python(args.get("requires_python"))
        place.clear()
        try:
            return build(place, args, python)
        except OSError as exc:
            if exc.errno in prelude.DISK_FULL:
                place.clear()
                prelude.full(place.base, 2 * int((args.get("archive") or {}).get("size") or 0) + MARGIN)
            raise
        finally:
            place.clear()


def build(place, args, python):
    archive = args.get("archive") or {"kind": "none"}
    os.mkdir(place.new, 0o700)
    if archive["kind"] != "none":
        fetch(place, archive)
    prelude.watch()
    if archive["kind"] != "none":
        unpack(place, archive["kind"])
        os.unlink(place.archive)
    put_files(place.new, args.get("files") or {})
    prelude.event(state="checking", detail="shared libraries")
    note = check_libraries(place.new)
    text = run_check(args, place.new, python)
    tree = {name: os.lstat(os.path.join(place.new, name)).st_size for name in walk(place.new)}
    prelude.write_json(os.path.join(place.new, "installed.json"), {
        "engine": args["engine"], "version": args.get("version"), "build": args.get("build"), "python": python,
        "archive": archive.get("sha256"), "files": {name: each["sha256"] for name, each in
                                                    (args.get("files") or {}).items()},
        "version_text": text, "tree": tree, "note": note})
    if os.path.lexists(place.path):
        os.rename(place.path, place.old)
    os.rename(place.new, place.path)
    prelude.sync_dir(place.base)
    return {"installed": True, "path": place.path, "version_text": text, "python": python, "note": note}


def fetch(place, archive):
    """The payload into a file beside, hashed as it comes."""
    size = int(archive["size"])
    prelude.headroom(place.base, size + MARGIN)
    digest, progress = hashlib.sha256(), prelude.Progress(size, state="downloading", detail=archive["name"])
    fd = prelude.open_file(place.archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def sink(data):
        prelude.write_all(fd, data)
        digest.update(data)
        progress.add(len(data))

    try:
        prelude.receive(size, sink)
    finally:
        os.close(fd)
    prelude.event(state="verifying", detail=archive["name"], done=size, total=size)
    if digest.hexdigest() != archive["sha256"]:
        wrong = (archive["name"], digest.hexdigest(), archive["sha256"])
        prelude.fail("digest", "%s has the digest %s, not %s" % wrong,
                     "The archive was damaged on the way or has changed at its source: fetch it again.")


# ---- archives ----

def unpack(place, kind):
    if kind == "wheel":
        import zipfile
        source = open_archive(zipfile.ZipFile, place.archive)
        members = [zip_member(info) for info in source.infolist()]
    elif kind == "tar.gz":
        import tarfile
        source = open_archive(tarfile.open, place.archive)
        members = [tar_member(info) for info in source]
    else:
        prelude.fail("bad_argument", "no archive kind %r" % kind)
    total = approve(members, os.path.getsize(place.archive))
    prelude.headroom(place.base, total + MARGIN)
    progress = prelude.Progress(total, state="unpacking", detail="%d files" % len(members))
    for kind, name, info, detail in members:
        path = os.path.join(place.new, name)
        os.makedirs(path if kind == "dir" else os.path.dirname(path), 0o700, exist_ok=True)
        if kind == "link":
            os.symlink(detail, path)
        elif kind == "file":
            with (source.open(info) if hasattr(source, "infolist") else source.extractfile(info)) as stream:
                copy(stream, path, 0o700 if detail else 0o600, progress)
    source.close()


def open_archive(opener, path):
    try:
        return opener(path)
    except Exception as exc:  # whatever zipfile and tarfile make of damaged bytes
        return prelude.fail("unsafe_archive", "the archive cannot be read: %s" % exc)


def copy(stream, path, mode, progress):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        while True:
            data = stream.read(1 << 20)
            if not data:
                break
            prelude.write_all(fd, data)
            progress.add(len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def zip_member(info):
    """(kind, name, info, executable) of a member of a wheel; links and devices have no place in one."""
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR) or info.flag_bits & 1:
        refuse(info.filename, "is a link, a device or encrypted")
    kind = "dir" if info.filename.endswith("/") else "file"
    return kind, inside(info.filename), info, bool(mode & 0o100)


def tar_member(info):
    """(kind, name, info, executable or target): links are usual among libraries, to a plain name inside only."""
    name = inside(info.name)
    if info.isdir():
        return "dir", name, info, None
    if info.isreg():
        return "file", name, info, bool(info.mode & 0o100)
    if not info.issym():
        refuse(info.name, "is a hard link, a device or a pipe")
    target = info.linkname
    if not target or target.startswith("/") or "\\" in target or "\0" in target:
        refuse(info.name, "links to %r" % target)
    reached = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if reached.startswith("..") or ".." in target.split("/"):
        refuse(info.name, "links to %r" % target)
    return "link", name, info, target


def inside(name):
    """The name, when it stays in the directory."""
    parts = name.rstrip("/").split("/")
    if parts[:1] == ["."]:
        parts = parts[1:]
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[\\\0-\x1f]", name) or len(name) > 1000:
        if name.strip("./") == "" and name in (".", "./"):
            return "."
        refuse(name, "would leave the directory")
    return "/".join(parts)


def refuse(name, why):
    prelude.fail("unsafe_archive", "the archive is refused: %r %s" % (name, why), "Take it from another source.")


def approve(members, packed):
    """Limits on the whole, before anything is written. Answers with the size unpacked."""
    sizes = [info.file_size if hasattr(info, "file_size") else info.size for kind, _, info, _ in members
             if kind == "file"]
    if len(members) > MAX_MEMBERS or sum(sizes) > MAX_BYTES or sum(sizes) > MAX_RATIO * packed + (64 << 20):
        refuse("%d members, %d bytes" % (len(members), sum(sizes)), "is larger than any engine")
    kinds = {}
    for kind, name, _, _ in members:
        if name in kinds and not kind == kinds[name] == "dir":
            refuse(name, "appears twice")
        kinds[name] = kind
    for name in kinds:
        parent = os.path.dirname(name)
        while parent:
            if kinds.get(parent, "dir") != "dir":
                refuse(name, "lies below something that is no directory")
            parent = os.path.dirname(parent)
    if "installed.json" in kinds:
        refuse("installed.json", "is a name of ours")
    return sum(sizes)


def put_files(folder, files):
    """The resident scripts beside their engine."""
    for name, entry in files.items():
        data = entry["text"].encode("utf-8")
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            prelude.fail("digest", "%s does not match its digest" % name)
        path = os.path.join(folder, prelude.checked(name, "file name"))
        if os.path.lexists(path):
            refuse(name, "is a name of ours")
        prelude.write_file(path, data)


def walk(folder):
    for parent, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), folder)


# ---- does it run ----

def check_libraries(folder):
    """ldd over every ELF file: a missing library by its name beats a loader's message later. Why it was skipped."""
    ldd = shutil.which("ldd", path=PATH)
    files = [name for name in walk(folder) if is_elf(os.path.join(folder, name))]
    if not ldd and files:
        return "shared libraries were not checked: this node has no ldd"
    places = {os.path.dirname(os.path.join(folder, name)) for name in files}
    env = {"PATH": PATH, "LANG": "C", "LD_LIBRARY_PATH": ":".join(sorted(places))}
    for name in files[:300]:
        _, out, err = prelude.run([ldd, os.path.join(folder, name)], 20, env=env)
        for line in (out + err).splitlines():
            match = MISSING.search(line)
            if match:
                what = match.group(3) or match.group(4) or "%s in %s" % (match.group(2), match.group(1))
                prelude.fail("missing_library", "%s needs %s, which this node does not have" % (name, what),
                             "Install the package with that library, or choose another build.", library=what)
    return None


def is_elf(path):
    if os.path.islink(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def run_check(args, folder, python, given=None):
    """Runs the engine's own check; what it says first is its version."""
    if not args.get("check"):
        return None
    words = {"{dir}": folder, "{python}": python or sys.executable, "{path}": given or ""}
    argv = [re.sub(r"\{(dir|python|path)\}", lambda match: words[match.group(0)], word) for word in args["check"]]
    prelude.event(state="checking", detail=os.path.basename(argv[0]))
    env = {"PATH": PATH, "HOME": prelude.home(), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    env.update(args.get("env") or {})
    try:
        status, out, err = prelude.run(argv, CHECK_SECONDS, env=env, cwd=folder)
    except OSError as exc:
        noexec = os.statvfs(folder).f_flag & os.ST_NOEXEC
        return prelude.fail("does_not_run", "%s cannot be started: %s" % (argv[0], exc.strerror or exc),
                            "%s is mounted noexec: name another --root." % folder if noexec else "")
    if status != 0:
        why = "did not answer in %d s" % CHECK_SECONDS if status is None else "ended with status %d" % status
        if status is not None and status < 0:
            why = "was ended by signal %d" % -status
        illegal = status == -signal.SIGILL
        tail = [line for line in (out + "\n" + err).splitlines() if line.strip()][-20:]
        prelude.fail("does_not_run", "the engine %s%s" % (why, ": " + tail[-1] if tail else ""),
                     "This CPU lacks an instruction the engine was built for: choose another build." if illegal else "",
                     output=tail)
    lines = [line.strip() for line in (out if out.strip() else err).splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"version|llama\.cpp", line, re.I)]
    return (named or lines or [""])[0][:200]


def find_python(minimum):
    """The newest interpreter on this node that an engine's wheel can use, None when it needs none."""
    if not minimum:
        return None
    minimum, seen = tuple(minimum), []
    names = [sys.executable] + ["python3.%d" % minor for minor in range(14, 9, -1)]
    names += ["python3", "/usr/bin/python3", "/usr/local/bin/python3"]
    code = "import sys as s;print(*s.version_info[:2],s.implementation.name+s.abiflags,s.executable)"
    for name in names:
        path = shutil.which(name)
        try:
            answer = prelude.run([path, "-B", "-I", "-S", "-c", code], 5)[1].split(None, 3) if path else []
        except OSError:
            continue
        if len(answer) == 4:
            version = (int(answer[0]), int(answer[1]))
            if version >= minimum and answer[2] == "cpython":  # a free-threaded build loads no abi3 module
                return answer[3].strip()
            seen.append("%d.%d" % version)
    found = ", ".join(sorted(set(seen))) or "none"
    return prelude.fail("no_python", "the engine needs Python %d.%d or newer, this node has %s" % (minimum + (found,)),
                        "Install a newer python3 there, or choose an engine build without Python.")


def check(args):
    """The check once more, where the engine lies."""
    place = Place(args)
    found = look(place, args)
    if found["installed"]:
        check_libraries(place.path)
        found["version_text"] = run_check(args, place.path, found["python"]) or found["version_text"]
    return found


def check_path(args):
    """An engine that the operator named by its path: nothing is written."""
    path = args.get("path") or ""
    if not path.startswith("/") or not os.path.isfile(path):
        prelude.fail("not_found", "%s does not exist on this node" % path)
    if not os.access(path, os.X_OK):
        prelude.fail("does_not_run", "%s is not executable by this user" % path, "chmod +x it.")
    given = dict(args, check=args.get("check") or [path, "--version"])
    text = run_check(given, os.path.dirname(path), find_python(args.get("requires_python")), path)
    return {"installed": True, "path": path, "version_text": text, "python": None}


ACTIONS = {"status": status, "receive": receive, "check": check, "check_path": check_path}


def main(args):
    action = ACTIONS.get(args.get("action"))
    return action(args) if action else prelude.fail("bad_argument", "no action %r" % (args.get("action"),))


prelude.main(main)
