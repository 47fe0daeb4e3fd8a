"""Files that somebody deletes on a node, and an sshd that forwards nothing: noticed, named, mended."""

from __future__ import annotations

from pathlib import Path

from tests.fleet.plane import Plane, sim
from tests.fleet.test_links import ask


def test_deleted_files_do_not_end_a_living_engine_and_are_put_back(plane: Plane, machines, add, tmp_path: Path):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    plane.add_model(tmp_path, sim("echo"))
    key = plane.key()
    (pid,) = alpha.engines()
    alpha.shell("rm -rf /root/.local/share/llmgw")
    plane.llmgw("node", "probe", "alpha")
    assert alpha.engines() == [pid]
    assert ask(plane, key)
    assert [one["state"] for one in plane.replicas()] == ["ready"]
    # Added again, the node is checked, and what is gone is installed again.
    add(plane, alpha)
    plane.until(lambda: "sim_engine.py" in alpha.shell("ls -R /root/.local/share/llmgw/engines || true"), "it is back")


def test_an_engine_that_does_not_answer_yet_says_what_it_says(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, machines[0])
    plane.add_model(tmp_path, sim("slow", "--load-time", "600"), wait=False)

    def reason() -> str:
        (model,) = plane.json("model", "list")
        return str((model["status"] or {}).get("reason", ""))

    plane.until(lambda: "no answer for" in reason() and "503" in reason(), "it says what comes instead of an answer")
