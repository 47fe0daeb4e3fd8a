"""install.py: an engine is there when it ran, and an evil archive never gets to write."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import Node, ScriptError, tree

TOOL = "import sys\nprint('tool version 1.2', sys.argv[1:])\n"
CHECK = ["{python}", "-B", "-I", "-S", "{dir}/tool.py", "--version"]


def wheel(*members: tuple[str, str | bytes, int]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, data)
    return out.getvalue()


def tarball(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for each in members:
            if isinstance(each, tarfile.TarInfo):
                file.addfile(each)
            else:
                info = tarfile.TarInfo(each[0])
                info.size, info.mode = len(each[1]), 0o755
                file.addfile(info, io.BytesIO(each[1]))
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


GOOD = wheel(("tool.py", TOOL, 0o100644), ("pkg/data.txt", "x" * 100, 0), ("pkg/run", "#!/bin/sh\n", 0o100755))


def args(data: bytes = GOOD, kind: str = "wheel", **more: Any) -> dict[str, Any]:
    archive = {"name": "a.whl", "sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "kind": kind}
    given = {"engine": "e", "version": "1", "build": "b", "directory": "1-b", "archive": archive, "check": CHECK}
    return {**given, "requires_python": [3, 6], **more}


def install(node: Node, data: bytes = GOOD, kind: str = "wheel", **more: Any) -> Any:
    return node.call("install", action="receive", payload=data, **args(data, kind, **more))


def refused(node: Node, *given: Any, **more: Any) -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        install(node, *given, **more)
    assert left(node) == []
    return caught.value


def left(node: Node) -> list[str]:
    """What an install that failed left beside its lock."""
    return sorted(path.name for path in (node.root / "engines/e").iterdir() if not path.name.endswith(".lock"))


def status(node: Node, **more: Any) -> Any:
    return node.call("install", action="status", **args(**more))


def test_an_engine_is_unpacked_checked_and_named(node: Node) -> None:
    assert status(node)["installed"] is False
    assert tree(node.home) == {}
    found = install(node)
    home = Path(found["path"])
    assert home == node.root / "engines/e/1-b"
    assert found["installed"] is True
    assert found["version_text"].startswith("tool version 1.2")
    assert Path(found["python"]).exists()
    assert (home / "pkg/data.txt").read_text() == "x" * 100
    assert (home / "pkg/run").stat().st_mode & 0o777 == 0o700
    assert (home / "tool.py").stat().st_mode & 0o777 == 0o600
    assert node.last is not None
    assert [each["state"] for each in node.last.events] == ["verifying", "checking", "checking"]
    assert left(node) == ["1-b"]
    assert status(node)["version_text"] == found["version_text"]
    assert node.call("install", action="check", **args())["installed"] is True


def test_a_second_install_finds_the_first(node: Node) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: install(node), range(3)))
    assert {each["path"] for each in found} == {str(node.root / "engines/e/1-b")}
    assert all(each["installed"] for each in found)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda home: (home / "tool.py").write_text("shorter"), "damaged"),
        (lambda home: (home / "tool.py").unlink(), "missing"),
        (lambda home: (home / "installed.json").write_text("{"), "damaged"),
        (lambda home: (home / "installed.json").unlink(), "not installed"),
    ],
)
def test_a_damaged_engine_is_not_installed_and_is_mended(node: Node, harm: Callable[[Path], Any], reason: str) -> None:
    home = Path(install(node)["path"])
    harm(home)
    found = status(node)
    assert found["installed"] is False
    assert reason in found["reason"]
    assert install(node)["installed"] is True
    assert (home / "tool.py").read_text() == TOOL
    assert left(node) == ["1-b"]


def test_resident_scripts_are_put_beside_and_a_new_text_is_a_new_install(node: Node) -> None:
    def files(text: str) -> dict[str, Any]:
        return {"r.py": {"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}}

    found = install(node, files=files("a = 'é'\n"))
    assert (Path(found["path"]) / "r.py").read_text() == "a = 'é'\n"
    assert status(node, files=files("a = 2\n"))["reason"] == "r.py is of another version"
    install(node, files=files("a = 2\n"))
    assert (Path(found["path"]) / "r.py").read_text() == "a = 2\n"


def test_an_engine_of_files_alone_needs_no_archive(node: Node) -> None:
    text = TOOL
    files = {"tool.py": {"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}}
    given = args(archive={"kind": "none"}, files=files)
    assert node.call("install", action="receive", **given)["installed"] is True
    assert node.call("install", action="status", **given)["installed"] is True
    bad = {"tool.py": {"text": text, "sha256": "0" * 64}}
    with pytest.raises(ScriptError) as caught:
        node.call("install", action="receive", **{**given, "files": bad, "directory": "2-b"})
    assert caught.value.code == "digest"


EVIL_WHEELS = {
    "parent": wheel(("../evil", "x", 0)),
    "deep parent": wheel(("a/../../evil", "x", 0)),
    "absolute": wheel(("/tmp/evil", "x", 0)),
    "backslash": wheel(("a\\..\\evil", "x", 0)),
    "link": wheel(("evil", "/etc/passwd", 0o120777)),
    "device": wheel(("evil", "", 0o020666)),
    "twice": None,
    "file as directory": wheel(("a", "x", 0), ("a/b", "x", 0)),
    "our record": wheel(("installed.json", "{}", 0)),
    "no archive": b"PK\x03\x04 nothing",
    "bomb": wheel(("zeros", b"\0" * (200 << 20), 0)),
    "many": wheel(*((f"f{number}", "", 0) for number in range(20001))),
}


@pytest.mark.parametrize("name", EVIL_WHEELS)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_evil_wheels_are_refused_before_anything_is_written(node: Node, name: str) -> None:
    data = EVIL_WHEELS[name] or wheel(("a", "x", 0), ("a", "y", 0))
    found = refused(node, data)
    assert found.code == "unsafe_archive", found
    assert not list(node.home.rglob("evil"))


EVIL_TARBALLS = {
    "parent": tarball(("../evil", b"x")),
    "absolute": tarball(("/tmp/evil", b"x")),
    "hard link": tarball(("a", b"x"), special("evil", tarfile.LNKTYPE, "a")),
    "link out": tarball(special("evil", tarfile.SYMTYPE, "../../evil")),
    "link absolute": tarball(special("evil", tarfile.SYMTYPE, "/etc/passwd")),
    "link through itself": tarball(special("d", tarfile.SYMTYPE, "x"), ("d/evil", b"x")),
    "link replaced": tarball(special("evil", tarfile.SYMTYPE, "x"), ("evil", b"x")),
    "device": tarball(special("evil", tarfile.CHRTYPE)),
    "fifo": tarball(special("evil", tarfile.FIFOTYPE)),
    "damaged": tarball(("a", b"x" * 10000))[:60],
}


@pytest.mark.parametrize("name", EVIL_TARBALLS)
def test_evil_tarballs_are_refused_before_anything_is_written(node: Node, name: str) -> None:
    assert refused(node, EVIL_TARBALLS[name], "tar.gz").code == "unsafe_archive"


def test_a_tarball_keeps_its_library_links_and_loses_its_set_id_bits(node: Node) -> None:
    setuid = tarfile.TarInfo("bin/su")
    setuid.mode, setuid.size = 0o4755, 0
    data = tarball(
        special(".", tarfile.DIRTYPE),
        ("./lib/libx.so.0", b"library"),
        special("lib/libx.so", tarfile.SYMTYPE, "libx.so.0"),
        ("tool.py", TOOL.encode()),
        setuid,
    )
    home = Path(install(node, data, "tar.gz")["path"])
    assert (home / "lib/libx.so").readlink() == Path("libx.so.0")
    assert (home / "lib/libx.so").read_bytes() == b"library"
    assert (home / "bin/su").stat().st_mode & 0o7777 == 0o700
    assert status(node, data=data, kind="tar.gz")["installed"] is True


def test_a_wrong_digest_is_refused(node: Node) -> None:
    wrong = args()["archive"] | {"sha256": "0" * 64}
    assert refused(node, archive=wrong).code == "digest"


def test_an_interrupted_install_leaves_no_engine_and_the_next_one_works(node: Node) -> None:
    with pytest.raises(ScriptError) as caught:
        node.begin("install", action="receive", payload=GOOD, cut=GOOD[:50], **args()).finish()
    assert caught.value.code == "cut"
    assert left(node) == []
    (node.root / "engines/e/.1-b.new/pkg").mkdir(parents=True)  # as after a kill -9
    (node.root / "engines/e/.1-b.archive").write_bytes(b"half")
    assert install(node)["installed"] is True
    assert left(node) == ["1-b"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('no such backend')", "no such backend"),
        ("import os; os.kill(os.getpid(), 4)", "signal 4"),
    ],
)
def test_an_engine_that_does_not_run_is_not_installed(node: Node, program: str, words: str) -> None:
    found = refused(node, wheel(("tool.py", program, 0)))
    assert found.code == "does_not_run"
    assert words in found.body["message"]
    assert bool(found.body["fix"]) == ("signal 4" in words)


def test_a_check_that_hangs_is_ended(node: Node) -> None:
    node.change = ("CHECK_SECONDS = 60", "CHECK_SECONDS = 1")
    found = refused(node, wheel(("tool.py", "import time; time.sleep(60)", 0)))
    assert found.code == "does_not_run"
    assert "did not answer" in found.body["message"]


def test_a_missing_interpreter_names_what_there_is(node: Node) -> None:
    found = refused(node, requires_python=[3, 99])
    assert found.code == "no_python"
    assert "3.99" in found.body["message"]


@pytest.mark.skipif(not shutil.which("gcc"), reason="builds a library without its dependency: needs gcc")
def test_a_missing_library_is_named(node: Node, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a(void){return 1;}")
    (tmp_path / "b.c").write_text("int a(void);int b(void){return a();}")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libmissing_dep.so", "a.c"], cwd=tmp_path, check=True)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", "libb.so", "b.c", "-L.", "-lmissing_dep"], cwd=tmp_path, check=True
    )
    with_b = wheel(("tool.py", TOOL, 0), ("lib/libb.so", (tmp_path / "libb.so").read_bytes(), 0))
    found = refused(node, with_b)
    assert (found.code, found.body["library"]) == ("missing_library", "libmissing_dep.so")
    whole = wheel(
        ("tool.py", TOOL, 0),
        ("lib/libb.so", (tmp_path / "libb.so").read_bytes(), 0),
        ("other/libmissing_dep.so", (tmp_path / "libmissing_dep.so").read_bytes(), 0),
    )
    assert install(node, whole)["installed"] is True


def test_an_engine_by_its_path_is_run_and_nothing_is_written(node: Node, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho load_backend: loaded >&2; echo 'version: 77 (abc)' >&2\n")
    base = {"action": "check_path", "path": str(program)}
    with pytest.raises(ScriptError) as caught:
        node.call("install", **base)
    assert caught.value.code == "does_not_run"
    program.chmod(0o755)
    assert node.call("install", **base)["version_text"] == "version: 77 (abc)"
    assert node.call("install", **base, check=[str(program), "--version"])["path"] == str(program)
    with pytest.raises(ScriptError) as caught:
        node.call("install", **{**base, "path": "/nowhere"})
    assert caught.value.code == "not_found"
    assert tree(node.home) == {}


@pytest.mark.parametrize("field", ["engine", "directory"])
def test_names_that_could_leave_are_refused(node: Node, field: str) -> None:
    with pytest.raises(ScriptError) as caught:
        install(node, **{field: "../x"})
    assert caught.value.code == "bad_argument"
