"""`llmgw doctor` as an operator meets it: with a server, after it was killed, while it hangs, without any."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LLMGW, Run
from tests.fleet.plane import Plane


def findings(done: Any) -> dict[str, str]:
    return {one["code"]: one["message"] for one in json.loads(done.stdout)["findings"]}


def marks(home: Path) -> dict[str, tuple[int, int]]:
    """What a server that runs does not change by itself within a second: its files, not its log's index."""
    found = {path: path.lstat() for path in home.glob("*") if not path.name.endswith(("-shm", "-wal"))}
    return {str(path): (info.st_ino, info.st_mode) for path, info in found.items() if not stat.S_ISDIR(info.st_mode)}


def test_before_anything_was_started(llmgw: Run, home: Path, tmp_path: Path):
    config = tmp_path / "llmgw.yaml"  # at the default ports somebody may listen
    config.write_text("listen: 127.0.0.1:0\nadmin_listen: null\n")
    done = llmgw("doctor", "--offline", LLMGW_CONFIG=str(config))
    assert done.returncode == 0
    assert "home_missing" in done.stdout
    assert "no control plane runs" in done.stderr
    assert "0 errors" in done.stderr
    assert not home.exists()


def test_errors_end_with_four(llmgw: Run, home: Path):
    home.mkdir(mode=0o755)
    (home / "llmgw.yaml").write_text("lisen: x\n")
    done = llmgw("doctor", "--offline")
    assert done.returncode == 4
    assert "error    home_open: others may enter" in done.stdout
    assert f"chmod 700 {home}" in done.stdout
    assert "llmgw.yaml:1: lisen: unknown key. Did you mean 'listen'?" in done.stdout
    assert "cannot serve as it is" in done.stderr
    assert [each.name for each in home.iterdir()] == ["llmgw.yaml"]


def test_json_has_stable_keys(llmgw: Run, home: Path):
    home.mkdir(mode=0o755)
    done = llmgw("doctor", "--json", "--offline")
    assert done.returncode == 4
    body = json.loads(done.stdout)
    assert set(body) == {"home", "version", "ok", "running", "checked", "findings"}
    assert body["ok"] is False
    assert body["home"] == str(home)
    assert all(set(one) == {"code", "severity", "message", "fix"} for one in body["findings"])


def test_a_broken_bundle_of_certificates_is_a_finding(llmgw: Run, tmp_path: Path):
    (tmp_path / "bad.pem").write_text("x")
    done = llmgw("doctor", "--json", "--offline", PIP_CERT=str(tmp_path / "bad.pem"))
    assert done.returncode == 4
    assert "trust_unreadable" in findings(done)


def test_a_server_from_its_start_to_its_death(plane: Plane):
    def doctor(**environ: str) -> Any:
        return plane.llmgw("doctor", "--json", "--offline", check=False)

    # It runs: its own ports are no finding, and nothing changes.
    before = marks(plane.home)
    done = doctor()
    assert done.returncode == 0, done.stdout
    found = findings(done)
    assert not set(found) & {"server_down", "port_in_use", "listen_differs", "config_newer", "not_checked"}, found
    assert plane.process is not None
    assert f"pid {plane.process.pid}" in json.loads(done.stdout)["running"]
    assert marks(plane.home) == before

    # The configuration is changed under it.
    config = plane.home / "llmgw.yaml"
    config.write_text(config.read_text().replace(str(plane.admin_port), "45672"))
    soon = time.time() + 5
    os.utime(config, (soon, soon))
    found = findings(doctor())
    assert "45672" in found["listen_differs"]
    assert "after the server started" in found["config_newer"]

    # It hangs.
    plane.process.send_signal(signal.SIGSTOP)
    try:
        deadline = time.monotonic()
        done = doctor()
        assert done.returncode == 4
        assert f"pid {plane.process.pid} holds the lease" in findings(done)["server_silent"]
        assert time.monotonic() - deadline < 20
    finally:
        plane.process.send_signal(signal.SIGCONT)

    # It is killed: what it left is said, and left.
    plane.kill()
    before = marks(plane.home)
    done = doctor()
    assert done.returncode == 0
    found = findings(done)
    assert "left admin.sock behind" in found["lease_left"]
    assert "server_down" in found
    assert "server_silent" not in found
    assert marks(plane.home) == before
    plane.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk can only be mounted by root")
def test_on_a_machine_whose_only_disk_is_full_to_the_last_byte():
    """Not even a temporary file can be made: that must not keep the one who is to say so from starting."""
    top = Path(LLMGW).parents[2]
    kept = next((top.relative_to(place) for place in ("/tmp", "/var/tmp") if top.is_relative_to(place)), None)
    keep = f"mount --bind {top} /media && mkdir -p /mnt/{kept} || exit 98\n" if kept else ""  # a checkout below /tmp
    script = (
        "mount -t tmpfs -o size=64k,mode=1777 none /mnt && mkdir -m 700 /mnt/home && cd /mnt || exit 99\n"
        f"{keep}"
        "cat /dev/zero > /mnt/ballast 2>/dev/null\n"
        "for place in /tmp /var/tmp /usr/tmp; do [ ! -d $place ] || mount --bind /mnt $place; done\n"
        + (f"mount --bind /media {top}\n" if kept else "")
        + f"exec {LLMGW} doctor --json --offline\n"
    )
    # A compiler is what ctypes makes a temporary file for, when asyncssh looks for a library. /tmp is hidden in there.
    tools = Path("/run") / f"llmgw-test-{os.getpid()}"
    tools.mkdir()
    (tools / "gcc").symlink_to("/bin/false")
    try:
        environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "LLMGW_HOME": "/mnt/home"}
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=environ, capture_output=True, text=True)
    finally:
        shutil.rmtree(tools)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 4, done.stderr
    found = findings(done)
    assert "0 KiB are free at /mnt/home" in found["home_full"]
    assert "0 KiB are free in /tmp" in found["tmp_unusable"]
