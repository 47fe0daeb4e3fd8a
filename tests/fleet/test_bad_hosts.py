"""`node add` on a host that cannot be had: one sentence, one next step, the right exit status, nothing written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.machines import Machine
from tests.fleet.plane import SMOLLM2, Plane, sim


def refused(plane: Plane, *words: str, status: int) -> str:
    done = plane.llmgw("node", "add", *words, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert plane.json("node", "list") == []
    return done.stderr


def unplaceable(plane: Plane) -> list[dict]:
    return [one for one in plane.json("model", "list") if (one["status"] or {}).get("state") == "unplaceable"]


@pytest.fixture
def running(plane: Plane) -> Plane:
    plane.start()
    return plane


def test_an_unknown_name(running: Plane):
    assert "no-such-host.invalid" in refused(running, "root@no-such-host.invalid", status=5)


def test_a_closed_port(running: Plane, machines):
    assert "nothing listens at port 2222" in refused(running, f"root@{machines[0].address}:2222", status=5)


def test_no_route(running: Plane, machines):
    said = refused(running, "root@10.231.77.250", status=5)
    assert "10.231.77.250" in said


def test_a_refused_login(running: Plane, machines, tmp_path: Path):
    alpha = machines[0]
    before = alpha.tree()
    other = tmp_path / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    said = refused(running, f"root@{alpha.address}", "-i", str(other), status=4)
    assert str(other) in said
    assert alpha.tree() == before


def test_a_wrong_fingerprint(running: Plane, machines, fleet):
    alpha = machines[0]
    before = alpha.tree()
    said = refused(
        running, f"root@{alpha.address}", "-i", str(fleet.key), "--fingerprint", "SHA256:" + "A" * 43, status=4
    )
    assert said.count("SHA256:") >= 2
    assert alpha.tree() == before


def test_a_changed_host_key(running: Plane, machines, fleet, tmp_path: Path):
    """The operator's own known_hosts holds another key."""
    alpha = machines[0]
    home = Path(running.environ["HOME"])
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    other = (fleet.key.with_suffix(".pub")).read_text().split()[:2]
    (home / ".ssh/known_hosts").write_text(f"{alpha.address} {' '.join(other)}\n")
    before = alpha.tree()
    said = refused(running, f"root@{alpha.address}", "-i", str(fleet.key), status=4)
    assert said.count("SHA256:") >= 2
    assert alpha.tree() == before


@pytest.fixture
def without_python(machines: list[Machine]) -> Iterator[Machine]:
    alpha = machines[0]
    alpha.shell("chmod 000 /usr/bin/python3.11")
    yield alpha
    alpha.shell("chmod 755 /usr/bin/python3.11")


def test_a_node_without_python(running: Plane, without_python: Machine, fleet):
    before = without_python.tree()
    said = refused(running, f"root@{without_python.address}", "-i", str(fleet.key), status=4)
    assert "python3" in said
    assert "3.6" in said
    assert without_python.tree() == before


def test_no_host_in_the_target(running: Plane):
    assert "names no host" in refused(running, "root@", status=2)
    assert "is no port" in refused(running, "root@host:ssh", status=2)


def test_the_same_machine_under_two_names(running: Plane, machines, add, fleet):
    alpha = machines[0]
    add(running, alpha)
    done = running.llmgw("node", "add", f"root@{alpha.address}", "-i", str(fleet.key), "--name", "other", check=False)
    assert done.returncode == 4
    assert "same machine as alpha" in done.stderr


def test_adding_again_is_safe(running: Plane, machines, add):
    assert add(running, machines[0]) == ["alpha"]
    running.llmgw("ctl", "cordon", "alpha")
    assert add(running, machines[0]) == ["alpha"]
    (node,) = running.json("node", "list")
    assert node["cordoned"]
    assert node["state"] == "ready"
    keys = machines[0].shell("cat /root/.ssh/authorized_keys")
    assert keys.count("llmgw:") == 1


def test_two_machines_with_one_hostname(running: Plane, machines, add, fleet):
    alpha, beta = machines[:2]
    add(running, alpha)
    beta.shell("hostname alpha")
    try:
        done = running.llmgw("node", "add", f"root@{beta.address}", "-i", str(fleet.key), check=False)
        assert done.returncode == 4
        assert "another machine" in done.stderr
        assert "--name" in done.stderr
    finally:
        beta.shell("hostname beta")


def test_a_full_disk_on_the_node_is_told_by_install(real_plane: Plane, machines, fleet, tmp_path: Path):
    """The engine's wheel does not fit: a sentence with need and room, no half of it left, other nodes undisturbed."""
    alpha = machines[0]
    alpha.shell("mkdir -p /mnt/small && mount -t tmpfs -o size=20m tmpfs /mnt/small")
    try:
        real_plane.start()
        done = real_plane.llmgw(
            "node", "add", f"root@{alpha.address}", "-i", str(fleet.key), "--root", "/mnt/small/llmgw", check=False
        )
        assert done.returncode == 1, done.stderr
        assert "is a node, but none of its engines runs there" in done.stderr
        (failed,) = [event for event in real_plane.events("engine.install") if event["severity"] == "error"]
        assert "free" in failed["message"]
        assert "MB" in failed["message"] or "MiB" in failed["message"]
        assert alpha.shell("find /mnt/small -name '*.part' -o -name '*.whl'") == ""
        real_plane.add_model(tmp_path, SMOLLM2, wait=False)
        status = real_plane.until(
            lambda: [
                one for one in real_plane.json("model", "list") if (one["status"] or {}).get("state") == "unplaceable"
            ],
            "it cannot be placed",
        )
        assert "llamacpp" in status[0]["status"]["reason"]
    finally:
        alpha.shell("umount -l /mnt/small && rmdir /mnt/small")


def test_weights_that_do_not_fit_are_not_sent(plane: Plane, machines, fleet, tmp_path: Path):
    alpha = machines[0]
    alpha.shell("mkdir -p /mnt/small && mount -t tmpfs -o size=40m tmpfs /mnt/small")
    try:
        plane.start()
        plane.llmgw("node", "add", f"root@{alpha.address}", "-i", str(fleet.key), "--root", "/mnt/small/llmgw")
        plane.add_model(tmp_path, {**sim("big"), "source": SMOLLM2["source"]}, wait=False)
        status = plane.until(
            lambda: unplaceable(plane),
            "it cannot be placed",
        )
        assert "of disk in /mnt/small/llmgw" in status[0]["status"]["reason"]
    finally:
        alpha.shell("umount -l /mnt/small && rmdir /mnt/small")
