"""Looking writes nothing; what acting wrote is taken away again, and the comparison proves it."""

from __future__ import annotations

from pathlib import Path

from tests.fleet.plane import SMOLLM2, Plane, sim


def test_a_probe_writes_nothing(plane: Plane, machines, add):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    before = alpha.tree()
    for _ in range(3):
        plane.llmgw("node", "probe", "alpha")
    assert alpha.tree() == before


def test_purge_leaves_the_node_as_it_was(plane: Plane, machines, add, tmp_path: Path):
    alpha, beta = machines[:2]
    before = alpha.tree()
    plane.start()
    add(plane, alpha, beta)
    plane.add_model(tmp_path, sim("echo", replicas=2))
    assert alpha.tree() != before
    done = plane.llmgw("node", "remove", "alpha", "--purge", "--yes")
    assert "alpha is removed" in done.stdout
    assert alpha.tree() == before
    assert alpha.engines() == []
    assert [one["id"] for one in plane.json("node", "list")] == ["beta"]
    assert len(plane.ready("echo")) == 2


def test_purge_after_the_real_engine(real_plane: Plane, machines, add, tmp_path: Path):
    alpha = machines[0]
    before = alpha.tree()
    real_plane.start()
    add(real_plane, alpha)
    real_plane.add_model(tmp_path, SMOLLM2)
    refused = real_plane.llmgw("node", "remove", "alpha", "--purge", "--yes", check=False)
    assert refused.returncode == 4
    assert "nowhere else to go" in refused.stderr
    real_plane.llmgw("node", "remove", "alpha", "--purge", "--force", "--yes")
    assert alpha.tree() == before


def test_a_removal_that_comes_to_nothing_takes_nothing_out_of_service(plane: Plane, machines, add):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    root = "/root/.local/share/llmgw"
    alpha.shell(f"mkdir /root/theirs && mv {root}/engines /root/engines.aside && ln -s /root/theirs {root}/engines")
    for words in (("--purge",), ("--purge", "--force")):
        refused = plane.llmgw("node", "remove", "alpha", *words, "--yes", check=False)
        assert refused.returncode != 0
        assert "engines is a symbolic link" in refused.stderr
        (node,) = plane.json("node", "list")
        assert (node["drain"], node["cordoned"]) == ("none", False)
    alpha.shell(f"rm {root}/engines && mv /root/engines.aside {root}/engines && rmdir /root/theirs")
    assert "alpha is removed" in plane.llmgw("node", "remove", "alpha", "--purge", "--yes").stdout
