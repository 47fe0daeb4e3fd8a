"""Nodes obey one control plane and its newest term: a copy, an old backup, a stranger are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.fleet.plane import Plane, sim


def test_another_control_plane_must_take_a_node_over(plane: Plane, machines, add, fleet, tmp_path: Path, mirror: Path):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    plane.add_model(tmp_path, sim("echo"))
    (pid,) = alpha.engines()
    other = Plane(tmp_path / "other", engines={"sim": ["builtin"]}, mirror=mirror, user_home=tmp_path / "operator")
    try:
        other.start()
        before = alpha.tree()
        words = ("node", "add", f"root@{alpha.address}", "-i", str(fleet.key))
        refused = other.llmgw(*words, check=False)
        assert refused.returncode == 4
        assert "belongs to another control plane" in refused.stderr
        assert "--take-over" in refused.stderr
        assert alpha.tree() == before
        plane.kill()
        other.llmgw(*words, "--take-over")
        # What the other one started is shown and left alone.
        shown = other.until(lambda: other.json("ctl", "replicas")["unclaimed"], "it is shown")
        assert [one["foreign"] for one in shown] == [True]
        assert alpha.engines() == [pid]
    finally:
        other.close()


def test_a_restored_backup_is_refused_until_it_takes_the_node_over(plane: Plane, machines, add, tmp_path: Path):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    plane.add_model(tmp_path, sim("echo"))
    (pid,) = alpha.engines()
    plane.stop()
    shutil.copytree(plane.home, tmp_path / "backup", ignore=shutil.ignore_patterns("*.sock"))
    for _ in range(3):
        plane.start()
        plane.until(lambda: plane.ready("echo"), "it is adopted")
        plane.stop()
    shutil.rmtree(plane.home)
    shutil.copytree(tmp_path / "backup", plane.home)
    plane.start()
    told = plane.until(lambda: plane.events("node.look"), "the node refuses it", limit=30)
    assert "has obeyed term" in told[0]["message"]
    assert "--take-over" in told[0]["message"]
    assert alpha.engines() == [pid]
    add(plane, alpha, words=("--take-over",))
    plane.until(lambda: plane.ready("echo"), "it is adopted", limit=30)
    assert alpha.engines() == [pid]


def test_a_standby_takes_over(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, machines[0])
    plane.add_model(tmp_path, sim("echo"))
    first = plane.process
    import os
    import subprocess

    from tests.fleet.plane import LLMGW

    standby = subprocess.Popen(
        (LLMGW, "server", "run", "--standby"), env=plane.environ, stderr=plane.log.open("ab"), cwd=os.getcwd()
    )
    try:
        assert first is not None
        first.kill()
        first.wait()
        plane.process = standby
        plane.until(plane.listening, "the standby serves", limit=20)
        plane.until(lambda: plane.ready("echo"), "it has adopted the engine", limit=20)
    finally:
        standby.kill()
        standby.wait()
