"""weights.py: whole or not at all, resumed where it was cut, never fuller than the disk."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Node, ScriptError, tree

DATA = os.urandom(3 << 20)
SHA = hashlib.sha256(DATA).hexdigest()
FILE: dict[str, Any] = {"sha256": SHA, "size": len(DATA), "file": "m.gguf"}


def receive(node: Node, data: bytes = DATA, offset: int = 0, **args: Any) -> Any:
    return node.call("weights", action="receive", payload=data[offset:], offset=offset, **{**FILE, **args})


def status(node: Node, **args: Any) -> Any:
    return node.call("weights", action="status", **{**FILE, **args})


def cut(node: Node, after: int) -> None:
    with pytest.raises(ScriptError) as caught:
        node.begin("weights", action="receive", payload=DATA, cut=DATA[:after], offset=0, **FILE).finish()
    assert caught.value.code == "cut"


def error(node: Node, **args: Any) -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        receive(node, **args)
    return caught.value


def test_a_status_writes_nothing(node: Node) -> None:
    path = node.root / f"weights/{SHA}/m.gguf"
    assert status(node) == {"present": False, "path": str(path), "partial": 0}
    assert tree(node.home) == {}


def test_a_file_arrives_whole_and_private(node: Node) -> None:
    found = receive(node)
    path = Path(found["path"])
    assert found == {"present": True, "path": str(node.root / f"weights/{SHA}/m.gguf")}
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o600
    assert status(node)["present"] is True
    assert node.last is not None
    assert receive(node) == found  # again: answered without taking the payload


def test_a_cut_transfer_goes_on_where_it_stopped(node: Node) -> None:
    cut(node, 1 << 20)
    found = status(node)
    assert (found["present"], found["partial"]) == (False, 1 << 20)
    assert receive(node, offset=found["partial"])["present"] is True
    assert Path(found["path"]).read_bytes() == DATA
    assert sorted(path.name for path in Path(found["path"]).parent.iterdir()) == [".lock", "m.gguf"]


def test_a_resume_may_begin_earlier_but_not_later_than_what_is_there(node: Node) -> None:
    cut(node, 1 << 20)
    refused = error(node, offset=(1 << 20) + 1)
    assert (refused.code, refused.body["partial"]) == ("offset", 1 << 20)
    assert receive(node, offset=1000)["present"] is True


def test_a_damaged_part_is_found_and_removed(node: Node) -> None:
    cut(node, 1 << 20)
    part = node.root / f"weights/{SHA}/.m.gguf.part"
    part.write_bytes(b"\0" * (1 << 20))
    assert error(node, offset=1 << 20).code == "digest"
    assert not part.exists()
    assert status(node)["partial"] == 0


def test_a_wrong_digest_leaves_nothing(node: Node) -> None:
    assert error(node, data=b"x" * len(DATA)).code == "digest"
    assert [path.name for path in (node.root / f"weights/{SHA}").iterdir()] == [".lock"]


def test_no_room_is_said_before_the_first_byte(node: Node) -> None:
    refused = error(node, data=b"", size=1 << 60)
    assert refused.code == "disk_full"
    assert refused.body["need"] > refused.body["free"] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: root only")
def test_a_disk_that_fills_up_leaves_no_part(node: Node, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0755", "tmpfs", str(small)], check=True)
    try:
        source = SCRIPT_WITHOUT_MARGIN
        refused = error_with(node, source, root=str(small / "r"))
        assert refused.code == "disk_full"
        assert refused.body["need"] > refused.body["free"] > 0
        assert not list(small.rglob("*.part"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


SCRIPT_WITHOUT_MARGIN = ("prelude.headroom(os.path.dirname(part), size - there + MARGIN)", "pass")


def error_with(node: Node, change: tuple[str, str], **args: Any) -> ScriptError:
    """As when another process takes the room after we looked."""
    node.change = change
    try:
        return error(node, **args)
    finally:
        node.change = None


@pytest.mark.parametrize(
    "args",
    [
        {"sha256": "../x"},
        {"sha256": None},
        {"file": "../m"},
        {"file": ".m"},
        {"file": "a/b"},
        {"file": "a\nb"},
        {"file": ""},
    ],
)
def test_names_that_could_leave_are_refused(node: Node, args: dict[str, Any]) -> None:
    assert error(node, **args).code == "bad_argument"


def test_a_link_in_place_of_the_part_is_refused(node: Node, tmp_path: Path) -> None:
    cut(node, 10)
    part = node.root / f"weights/{SHA}/.m.gguf.part"
    part.unlink()
    target = tmp_path / "precious"
    target.write_text("mine")
    part.symlink_to(target)
    assert error(node).code == "unsafe_root"
    assert target.read_text() == "mine"


def test_a_file_that_is_there_already_is_used_where_it_lies(node: Node, tmp_path: Path) -> None:
    mine = tmp_path / "own.gguf"
    mine.write_bytes(DATA)
    use = {"action": "use", "sha256": None, "file": None}
    assert node.call("weights", **use, path=str(mine)) == {"present": True, "path": str(mine), "size": len(DATA)}
    assert node.call("weights", **use, path=str(tmp_path))["size"] >= len(DATA)
    for path, code in ((str(tmp_path / "none"), "not_found"), ("own.gguf", "bad_argument"), (None, "bad_argument")):
        with pytest.raises(ScriptError) as caught:
            node.call("weights", **use, path=path)
        assert caught.value.code == code
    assert tree(node.home) == {}


def test_progress_is_told_but_not_too_often(node: Node) -> None:
    receive(node)
    assert node.last is not None
    assert node.last.events[-1] == {"state": "verifying", "done": len(DATA), "total": len(DATA)}
    assert len(node.last.events) < 10
