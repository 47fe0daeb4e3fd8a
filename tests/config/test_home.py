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


@pytest.mark.parametrize("name", ["~nosuchuser/x", "~nosuchuser"])
def test_the_home_of_a_user_that_nobody_knows(name: str) -> None:
    with pytest.raises(UsageError, match=r"LLMGW_HOME is ~nosuchuser.*no home directory"):
        find_home({"LLMGW_HOME": name})


def test_a_relative_one_in_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="LLMGW_HOME is rel, and the current directory cannot be told"):
        find_home({"LLMGW_HOME": "rel"})


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


@pytest.mark.parametrize("target", ["circle", "nowhere"])
def test_a_link_to_nowhere_where_the_home_should_be(tmp_path: Path, target: str) -> None:
    (tmp_path / "circle").symlink_to(target)
    with pytest.raises(Refused, match="it is a link that leads to no directory") as caught:
        Home(tmp_path / "circle").ensure()
    assert "LLMGW_HOME" in caught.value.fix
    assert os.listdir(tmp_path) == ["circle"]


OWN = [
    "state.lock",
    "identity.json",
    "id_ed25519",
    "id_ed25519.pub",
    "embedded_host_key",
    "admin.token",
    "known_hosts",
    "state.db",
    "state.db-wal",
    "state.db-shm",
]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("kind", ["FIFO", "directory", "link that leads nowhere"])
def test_what_is_no_file_is_refused_before_anything_opens_it(tmp_path: Path, name: str, kind: str) -> None:
    """Whoever opens a FIFO waits in the kernel for ever; whoever takes a link to nowhere for a missing file
    replaces it."""
    path = tmp_path / name
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("nowhere")
    with pytest.raises(Refused, match=f"{path} cannot be read: it is no plain file but a {kind}") as caught:
        Home(tmp_path).ensure()
    assert f"`mv {path} {path}.aside`" in caught.value.fix
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", [name for name in OWN if not name.startswith("state.db")])
def test_what_is_far_too_large_is_refused_before_anything_reads_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 60 << 30)
    with pytest.raises(Refused, match=f"{tmp_path / name} is larger than"):
        Home(tmp_path).ensure()


@pytest.mark.parametrize("name", ["admin.token", "known_hosts", "id_ed25519.pub"])
def test_what_is_no_text_is_refused_before_anything_stumbles_over_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match=f"{tmp_path / name} cannot be read: it is no text"):
        Home(tmp_path).ensure()


@pytest.mark.parametrize("text", ["", "\n", " \t\n"])
def test_an_empty_token_is_refused(tmp_path: Path, text: str) -> None:
    """Compared with what a client sends that sends none, it would be the right one."""
    (tmp_path / "admin.token").write_text(text)
    with pytest.raises(Refused, match="is empty: whoever sends no token at all would be let in") as caught:
        Home(tmp_path).ensure()
    assert f"`mv {tmp_path / 'admin.token'} " in caught.value.fix


def test_a_directory_where_the_socket_should_be(tmp_path: Path) -> None:
    (tmp_path / "admin.sock").mkdir()
    with pytest.raises(Refused, match="no socket can be made there"):
        Home(tmp_path).ensure()


def test_mount_points_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "1 0 0:1 / / rw - ext4 /dev/x rw",
        f"2 1 0:2 / {tmp_path}/a\\040b rw - xfs /dev/y rw",
        f"3 1 0:3 / {tmp_path}/\xe4\xff rw - nfs4 z rw",
    ]
    text = "\n".join(lines).encode("latin-1")
    monkeypatch.setattr(home_module.Path, "read_bytes", lambda path: text)
    assert file_system(tmp_path / "a b" / "c") == "xfs"
    assert file_system(Path(os.fsdecode(bytes(tmp_path) + b"/\xe4\xff/c"))) == "nfs4"
    assert file_system(tmp_path) == "ext4"


def test_the_identity_is_made_once_and_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = home.identity()
    assert home.identity() == first
    assert Home(tmp_path).identity() == first
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "identity.json").unlink()
    assert home.identity() != first


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"cluster_id": "x"}',
        '"x"',
        "\x00",
        "[" * 60_000,
        '{"cluster_id": "", "controller_id": ""}',
        '{"cluster_id": ["c"], "controller_id": 5}',
        '{"cluster_id": "two words", "controller_id": "x"}',
    ],
)
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
