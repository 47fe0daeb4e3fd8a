"""The home, its disk and the files in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.config.home import Home
from llmgw.host.doctor import examine
from tests.host.conftest import Look, codes, said, tree

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_a_sound_home_has_no_errors_and_keeps_every_byte(home: Home, look: Look):
    before = tree(home.path)
    report = look()
    assert codes(report, "error") == set()
    assert report.ok
    assert codes(report) & {"server_down"}
    assert report.running == "no control plane runs"
    assert tree(home.path) == before


def test_a_home_that_is_not_there_stays_so(tmp_path: Path):
    report = examine(Home(tmp_path / "none"), {"HOME": str(tmp_path)})
    assert report.ok
    assert "does not exist" in said(report, "home_missing")
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    report = examine(Home(tmp_path / "file" / "home"), {"HOME": str(tmp_path)})
    assert "is no directory" in said(report, "home_uncreatable")
    assert "is no directory" in said(examine(Home(tmp_path / "file"), {"HOME": str(tmp_path)}), "home_no_directory")


def test_others_may_enter(home: Home, look: Look):
    home.path.chmod(0o755)
    text = said(look(), "home_open")
    assert "mode 0755" in text
    subprocess.run(["sh", "-c", text.partition(" → ")[2]], check=True)
    assert "home_open" not in codes(look())


@ROOT
def test_files_of_another_user(home: Home, look: Look):
    os.chown(home.database, 65534, 65534)
    text = said(look(), "home_mixed")
    assert "state.db in" in text
    subprocess.run(["sh", "-c", text.partition(" → sudo ")[2]], check=True)
    assert "home_mixed" not in codes(look())


@ROOT
def test_the_home_of_another_user_seen_by_root(home: Home, look: Look):
    os.chown(home.path, 65534, 65534)
    assert "belongs to uid 65534, not to uid 0" in said(look(), "home_foreign")


@ROOT
def test_the_home_of_another_user_who_keeps_it_closed(home: Home, tmp_path: Path):
    """Nothing is known then but who it belongs to, and that is said as one note, not as many."""
    os.chown(home.path, 12345, 12345)
    for above in (tmp_path, *tmp_path.parents[:3]):
        if above.stat().st_uid == 0 and above != Path("/tmp"):
            above.chmod(0o755)
    inside, outside = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            report = examine(home, {"HOME": "/nonexistent"})
            lines = [f"{one.code}|{one.severity}|{one.message}|{one.fix}" for one in report.problems]
            os.write(outside, "\n".join(lines).encode())
        finally:
            os._exit(0)
    os.close(outside)
    with os.fdopen(inside) as file:
        found = [line.split("|") for line in file.read().splitlines()]
    os.waitpid(child, 0)
    by_code = {code: (severity, message, fix) for code, severity, message, fix in found}
    assert by_code["home_foreign"][0] == "error"
    assert "belongs to uid 12345" in by_code["home_foreign"][1]
    assert "sudo -u '#12345' llmgw doctor" in by_code["home_foreign"][2]
    unseen = [message for code, _, message, _ in found if code == "not_checked"]
    assert len(unseen) == 1
    assert unseen[0].endswith("(Permission denied)")
    assert "owner" in by_code["not_checked"][2]
    assert "state_damaged" not in by_code


def test_whoever_writes_above_may_replace_it(home: Home, look: Look):
    home.path.parent.chmod(0o777)
    text = said(look(), "home_parent_open")
    assert f"chmod go-w {home.path.parent}" in text


def test_a_path_too_long_for_a_socket(used: Path, tmp_path: Path):
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    shutil.copytree(used, deep)
    assert "107 are possible" in said(examine(Home(deep), {"HOME": str(tmp_path)}), "socket_path_long")


def test_what_a_dead_process_left(home: Home, look: Look):
    (home.path / ".admin.token.999999999").touch()
    (home.path / f".known_hosts.{os.getpid()}").touch()
    assert ".admin.token.999999999 in" in said(look(), "home_leftovers")


@ROOT
def test_a_full_disk(used: Path, disk: Callable[[str], Path], tmp_path: Path):
    place = disk("size=20m,mode=0700") / "home"
    shutil.copytree(used, place)
    ballast = place.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass
    report = examine(Home(place), {"HOME": str(tmp_path)})
    assert "0 KiB are free" in said(report, "home_full")
    assert "home_low" not in codes(report)
    assert "tmpfs" in said(report, "home_in_memory")
    assert not report.ok
    ballast.unlink()
    report = examine(Home(place), {"HOME": str(tmp_path)})
    assert "home_full" not in codes(report)
    assert "MiB are free" in said(report, "home_low")


@ROOT
def test_no_file_entries_left(used: Path, disk: Callable[[str], Path], tmp_path: Path):
    place = disk("size=50m,nr_inodes=40,mode=0700") / "home"
    shutil.copytree(used, place)
    assert "more files only" in said(examine(Home(place), {"HOME": str(tmp_path)}), "home_inodes")


@ROOT
def test_a_disk_that_became_read_only(used: Path, disk: Callable[[str], Path], tmp_path: Path):
    """As a kernel does after an I/O error: everything can still be read, and is."""
    mounted = disk("size=50m,mode=0700")
    shutil.copytree(used, mounted / "home")
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    report = examine(Home(mounted / "home"), {"HOME": str(tmp_path)})
    text = said(report, "home_read_only")
    assert "state_damaged" not in codes(report)
    assert "is mounted read-only" in text
    subprocess.run(["sh", "-c", text.partition(" → ")[2]], check=True)
    assert "home_read_only" not in codes(examine(Home(mounted / "home"), {"HOME": str(tmp_path)}))


@ROOT
def test_the_mirror_on_a_disk_of_its_own(home: Home, look: Look, disk: Callable[[str], Path]):
    mirror = disk("size=8m")
    home.config.write_text(f"mirror: {{dir: {mirror}}}\n")
    assert f"8 MiB are free for weights at {mirror}" in said(look(), "mirror_low")
    subprocess.run(["mount", "-o", "remount,ro", mirror], check=True)
    assert "mounted read-only" in said(look(), "mirror_unusable")


def test_a_mirror_below_a_file(home: Home, look: Look, tmp_path: Path):
    (tmp_path / "file").touch()
    home.config.write_text(f"mirror: {{dir: {tmp_path}/file/mirror}}\n")
    assert "is no directory" in said(look(), "mirror_unusable")
