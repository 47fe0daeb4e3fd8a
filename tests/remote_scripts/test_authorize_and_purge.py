"""authorize.py keeps every byte that is not ours; purge.py leaves a node as it was before us."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Node, ScriptError, tree

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIOurKeyOurKeyOurKeyOurKeyOurKeyOurKeyOurKeyO"
LINE = f'restrict,port-forwarding,permitopen="127.0.0.1:*" ssh-ed25519 {KEY} llmgw'
OTHER = b"ssh-ed25519 AAAAotherother someone@somewhere\n"
ODD = (
    b"# a comment with "
    + KEY.encode()
    + b'\n\n  from="10.0.0.0/8",command="echo \\"hi there\\"" ssh-rsa AAAAB3 x\r\nbroken \xff\xfe line\n'
)


def authorize(node: Node, action: str = "add", **args: Any) -> Any:
    return node.call("authorize", action=action, **{"line": LINE, "key": KEY, **args})


def keys(node: Node) -> Path:
    return node.home / ".ssh/authorized_keys"


def write(node: Node, data: bytes, mode: int = 0o644) -> None:
    keys(node).parent.mkdir(mode=0o700, exist_ok=True)
    keys(node).write_bytes(data)
    keys(node).chmod(mode)


def test_both_are_made_when_there_is_none(node: Node) -> None:
    made = [str(keys(node).parent), str(keys(node))]
    assert authorize(node, "look") == {"present": False, "path": str(keys(node)), "missing": made}
    assert not keys(node).parent.exists()
    found = authorize(node)
    assert found == {"changed": True, "path": str(keys(node)), "created": made, "removed": []}
    assert keys(node).read_text() == LINE + "\n"
    assert keys(node).stat().st_mode & 0o777 == 0o600
    assert keys(node).parent.stat().st_mode & 0o777 == 0o700
    assert authorize(node) == {"changed": False, "path": str(keys(node)), "created": [], "removed": []}
    assert authorize(node, "look") == {"present": True, "path": str(keys(node)), "missing": []}
    assert authorize(node, "remove", trace=made)["removed"] == made[::-1]


@pytest.mark.parametrize("before", [b"", OTHER, OTHER[:-1], OTHER + ODD, ODD + OTHER[:-1], ODD + b"\n\n"])
def test_add_and_remove_give_every_byte_back(node: Node, before: bytes) -> None:
    write(node, before)
    assert authorize(node)["changed"] is True
    during = keys(node).read_bytes()
    assert during.count(LINE.encode() + b"\n") == 1
    assert during.replace(LINE.encode() + b"\n", b"") == before
    assert authorize(node)["changed"] is False
    assert authorize(node, "remove")["changed"] is True
    assert keys(node).read_bytes() == before
    assert keys(node).stat().st_mode & 0o777 == 0o644
    assert authorize(node, "remove")["changed"] is False
    assert sorted(path.name for path in keys(node).parent.iterdir()) == ["authorized_keys"]


def test_a_line_of_ours_with_other_options_is_replaced_where_it_stands(node: Node) -> None:
    write(node, OTHER + b"ssh-ed25519 " + KEY.encode() + b" old\n" + ODD + b"no-pty ssh-ed25519 " + KEY.encode())
    assert authorize(node)["changed"] is True
    assert keys(node).read_bytes() == OTHER + LINE.encode() + b"\n" + ODD


def test_a_linked_file_stays_a_link(node: Node, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.mkdir()
    (real / "keys").write_bytes(OTHER)
    write(node, b"")
    keys(node).unlink()
    keys(node).symlink_to(real / "keys")
    authorize(node)
    assert keys(node).is_symlink()
    assert (real / "keys").read_bytes() == OTHER + LINE.encode() + b"\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: root only")
def test_the_owner_stays(node: Node) -> None:
    write(node, OTHER, 0o640)
    os.chown(keys(node), 65534, 65534)
    authorize(node)
    info = keys(node).stat()
    assert (info.st_uid, info.st_gid, info.st_mode & 0o777) == (65534, 65534, 0o640)


@pytest.mark.parametrize(
    "args", [{"line": LINE + "\nssh-rsa AAAA evil"}, {"key": ""}, {"key": "other"}, {"action": "x"}]
)
def test_nonsense_is_refused(node: Node, args: dict[str, Any]) -> None:
    with pytest.raises(ScriptError) as caught:
        authorize(node, **args)
    assert caught.value.code == "bad_argument"
    assert tree(node.home) == {}


# ---- purge ----


def work(node: Node, **args: Any) -> None:
    """All that acting scripts leave on a node."""
    data = b"weights"
    sha = hashlib.sha256(data).hexdigest()
    node.call("weights", action="receive", payload=data, sha256=sha, size=len(data), file="m.gguf", offset=0, **args)
    files = {"e.py": {"text": "", "sha256": hashlib.sha256(b"").hexdigest()}}
    node.call("install", action="receive", engine="e", directory="1-b", archive={"kind": "none"}, files=files, **args)
    argv = [sys.executable, "-S", "-c", "import time;time.sleep(60)"]
    shard = {"replica": "m", "rank": 0, "cluster": "k"}
    node.call("engine", action="start", attempt=1, argv=argv, ports=[41700, 41799], **shard, **args)


def stop(node: Node, **args: Any) -> None:
    shard = {"replica": "m", "rank": 0, "cluster": "k"}
    node.call("engine", action="stop", attempt=None, grace=2, remove=False, **shard, **args)


def purge(node: Node, **args: Any) -> Any:
    return node.call("purge", action="purge", cluster="k", **args)


def test_a_root_that_others_use_too_keeps_what_is_theirs(node: Node) -> None:
    """Whatever does not have the shape of what llmgw puts there stays, and is named."""
    theirs = ["weights/llama-70b/model.gguf", "weights/notes", "engines/mine/bin", "engines/e/readme", "hosts/x/y", "z"]
    for name in theirs:
        (node.root / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (node.root / name).write_text("precious")
    before = tree(node.root)
    work(node)
    stop(node)
    shutil.rmtree(node.root / "hosts/x")  # no node of another machine: a purge that shares nothing
    found = purge(node)
    after = tree(node.root)
    assert after == {name: kept for name, kept in before.items() if not name.startswith("hosts")}
    assert str(node.root / "weights") in found["left"]
    assert str(node.root / "engines") in found["left"]


@pytest.mark.parametrize("before", [None, OTHER[:-1]])
def test_a_node_is_left_as_it_was(node: Node, before: bytes | None) -> None:
    (node.home / "keep").write_text("mine")
    if before is not None:
        write(node, before)
    start = tree(node.home)
    created = authorize(node)["created"]
    work(node, trace=created)
    stop(node)
    planned = node.call("purge", action="plan", cluster="k")
    digest = hashlib.sha256(b"weights").hexdigest()
    own = ("hosts/n1", "engines/e/1-b", "engines/e/.1-b.lock", f"weights/{digest}")
    assert set(planned["remove"]) == {str(node.root / name) for name in own}
    authorize(node, "remove")
    found = purge(node)
    assert found["left"] == []
    assert str(node.root) in found["removed"]
    assert tree(node.home) == start


def test_in_the_other_order_what_is_left_is_named_and_handed_on(node: Node) -> None:
    created = authorize(node)["created"]
    work(node, trace=created)
    stop(node)
    found = purge(node)
    assert set(found["left"]) == set(created)
    authorize(node, "remove", trace=found["left"])
    assert tree(node.home) == {}


def test_authorize_notes_it_in_the_trace_when_there_is_one(node: Node) -> None:
    work(node)
    stop(node)
    authorize(node)
    authorize(node, "remove")
    assert purge(node)["left"] == []
    assert tree(node.home) == {}


def test_nothing_is_purged_while_something_runs(node: Node) -> None:
    work(node)
    before = tree(node.root)
    with pytest.raises(ScriptError) as caught:
        purge(node)
    assert caught.value.code == "still_running"
    assert caught.value.body["pids"]
    assert tree(node.root) == before
    stop(node)
    purge(node)
    assert tree(node.home) == {}


def test_a_root_that_was_there_and_what_else_lies_in_it_stay(node: Node) -> None:
    root = node.home / "data"
    root.mkdir(mode=0o700)
    (root / "theirs").write_text("mine")
    before = tree(node.home)
    node.base["root"] = str(root)
    work(node)
    stop(node)
    found = purge(node)
    assert found["left"] == [str(root / "theirs")]
    assert tree(node.home) == before


def test_a_shared_home_loses_its_stores_with_the_last_node(node: Node) -> None:
    work(node)
    stop(node)
    node.base["node_id"] = "n2"
    work(node)
    stop(node)
    node.base["node_id"] = "n1"
    purge(node)
    assert (node.root / "engines/e/1-b").is_dir()
    assert not (node.root / "hosts/n1").exists()
    node.base["node_id"] = "n2"
    assert purge(node)["left"] == []
    assert tree(node.home) == {}


def test_a_purge_of_nothing_says_so(node: Node) -> None:
    assert purge(node) == {"removed": [], "left": []}
    assert tree(node.home) == {}


def test_a_purge_obeys_only_its_own_control_plane(node: Node) -> None:
    work(node)
    stop(node)
    with pytest.raises(ScriptError) as caught:
        purge(node, controller_id="c2", term=99)
    assert caught.value.code == "foreign_controller"
    assert (node.root / "engines").exists()
