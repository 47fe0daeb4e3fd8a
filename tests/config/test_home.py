"""The control plane's home: private, ours, on a disk of this machine; its files whole or not there at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llmgw.config import home as home_module
from llmgw.config.home import Home, file_system, find_home, write_private
from llmgw.errors import DiskFull, Refused, UsageError


def test_where_it_is() -> None:
    assert find_home({"LLMGW_HOME": "/x/y"}).path == Path("/x/y")
    assert find_home({"LLMGW_HOME": "rel"}).path == Path.cwd() / "rel"
    assert find_home({}, uid=0).path == Path("/var/lib/llmgw")
    assert find_home({}, uid=1000).path == Path("~/.local/state/llmgw").expanduser()
    assert find_home({"LLMGW_HOME": ""}, uid=0).path == Path("/var/lib/llmgw")


def test_it_is_made_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "a" / "b")
    home.ensure()
    home.ensure()
    assert home.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o750])
def test_a_directory_that_others_may_enter_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    """It may be anything, /tmp or /proc: its mode is not ours to change."""
    tmp_path.chmod(mode)
    with pytest.raises(Refused, match="may be entered by others") as caught:
        Home(tmp_path).ensure()
    assert "chmod 700" in caught.value.fix
    assert tmp_path.stat().st_mode & 0o7777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_one_that_belongs_to_somebody_else_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "theirs")
    home.path.mkdir()
    os.chown(home.path, 12345, 12345)
    with pytest.raises(Refused, match="belongs to uid 12345, not to you") as caught:
        home.ensure()
    assert caught.value.code == "foreign_home"
    assert "LLMGW_HOME" in caught.value.fix


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(home_module, "file_system", lambda path: kind)
    with pytest.raises(Refused, match=rf"network file system \({kind}\)") as caught:
        Home(tmp_path / "h").ensure()
    assert caught.value.code == "network_home"


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "overlay", None])
def test_a_local_one_or_one_that_cannot_be_told_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    monkeypatch.setattr(home_module, "file_system", lambda path: kind)
    Home(tmp_path / "h").ensure()


def test_the_file_system_is_that_of_the_deepest_mount() -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(Path("/")) is not None


def test_a_file_where_the_home_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="cannot be made the control plane's home") as caught:
        Home(tmp_path / "file").ensure()
    assert caught.value.exit_status == 4
    with pytest.raises(Refused):
        Home(tmp_path / "file" / "below").ensure()


def test_the_identity_is_made_once_and_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = home.identity()
    assert home.identity() == first
    assert Home(tmp_path).identity() == first
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "identity.json").unlink()
    assert home.identity() != first


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"cluster_id": "x"}', '"x"', "\x00"])
def test_a_damaged_identity_is_never_replaced_in_silence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "identity.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"identity\.json is damaged"):
        Home(tmp_path).identity()
    assert path.read_text() == text


def test_an_identity_of_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="damaged"):
        Home(tmp_path).identity()


def test_a_private_file_is_0600_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    before = os.umask(0)
    try:
        write_private(path, "one")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    inode = path.stat().st_ino
    write_private(path, "two")
    assert path.read_text() == "two"
    assert path.stat().st_ino != inode, "renamed into place"
    assert [entry.name for entry in tmp_path.iterdir()] == ["admin.token"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "identity.json"
    write_private(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(home_module.os, "fsync", full)
    with pytest.raises(DiskFull, match=r"identity\.json cannot be written"):
        write_private(path, json.dumps({"new": 1}))
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.json"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """F70."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    path = tmp_path / "admin.token"
    path.with_name(f".admin.token.{os.getpid()}").symlink_to(precious)
    with pytest.raises(Refused):
        write_private(path, "secret")
    assert precious.read_text() == "precious"


def test_a_home_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be written: No such file or directory"):
        write_private(tmp_path / "missing" / "x", "text")
