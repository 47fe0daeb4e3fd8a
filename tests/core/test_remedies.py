"""Which findings have a remedy, which one on this node, and that what is asked for is what the finding's fix says."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from llmgw.core.findings import RULES
from llmgw.core.packages import PACKAGES
from llmgw.core.remedies import MENDS, Remedy, remedies
from llmgw.model.node import Problem
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe
from tests.core.findings.node import GPU, NVIDIA, PREFLIGHT, PROBE, changed, judged

SCRIPT = Path(__file__).resolve().parents[2] / "remote_scripts" / "privileged.py"
PORT = {"hca": "mlx5_0", "port": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "sm_lid": 1}
FABRIC = {"fabrics": {"ib0": ("mlx5_0",)}}
KILLS = {"logind.kill_user_processes": True}


def table(name: str) -> Any:
    """A table of the script, read and not run."""
    for node in ast.parse(SCRIPT.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{name} is not in {SCRIPT.name}")


def found(
    probe: dict[str, Any] | None = None,
    preflight: dict[str, Any] | None = None,
    outside: dict[str, Any] | None = None,
) -> list[Remedy]:
    problems = list(judged(probe, preflight, outside).values())
    documents = (
        Probe.model_validate(changed(PROBE, probe or {})),
        Preflight.model_validate(changed(PREFLIGHT, preflight or {})),
    )
    return remedies(problems, *documents)


def test_a_healthy_node_needs_none() -> None:
    assert found() == []


def test_killed_processes_are_offered_lingering() -> None:
    (remedy,) = found(preflight=KILLS)
    assert (remedy.name, remedy.mends, remedy.consent) == ("linger", ("kills_processes",), "asked")
    assert remedy.command == "sudo loginctl enable-linger anna"
    assert "anna" in remedy.does
    assert remedy.args == {}


def test_the_tools_of_a_declared_fabric_are_installed_unasked() -> None:
    (remedy,) = found(probe={"fabric.+": PORT}, outside=FABRIC)
    assert (remedy.name, remedy.consent, remedy.args) == ("install", "given", {"packages": ("infiniband-diags",)})
    assert (remedy.does, remedy.command) == ("install infiniband-diags", "sudo apt-get install infiniband-diags")
    assert found(probe={"fabric.+": PORT}) == [], "no fabric is declared"


def test_two_installations_that_are_asked_for_are_one() -> None:
    absent = {"libraries": {"libgomp.so.1": False, "libstdc++.so.6": False}, "tools.ldd": None}
    library, ldd = found(preflight=absent)
    assert (library.args["packages"], library.consent) == (("libgomp", "libstdc++"), "asked")
    assert library.command == "sudo apt-get install libgomp1 libstdc++6"
    assert (ldd.args["packages"], ldd.consent) == (("ldd",), "named")


def test_what_a_fabric_needs_is_installed_at_once() -> None:
    (remedy,) = found({"fabric.+": PORT}, {"libraries": {"libibverbs.so.1": False}}, FABRIC)
    assert (remedy.consent, set(remedy.mends)) == ("given", {"fabric_tools_missing", "fabric_no_verbs"})
    assert set(remedy.args["packages"]) == {"infiniband-diags", "libibverbs"}


def test_errors_come_first() -> None:
    facts = {"probe": {"fabric.+": PORT}, "preflight": KILLS, "outside": FABRIC}
    assert [remedy.name for remedy in found(**facts)] == ["linger", "install"]


def test_the_command_is_none_of_the_words_of_a_finding() -> None:
    problem = Problem(code="kills_processes", severity="error", message="x", fix="Ask somebody, or do nothing.")
    (remedy,) = remedies([problem], Probe.model_validate(PROBE), None)
    assert remedy.command == "sudo loginctl enable-linger anna"


def test_cards_that_are_unloaded_may_be_kept_loaded() -> None:
    card = {**GPU, "persistence": False}
    (remedy,) = found(probe={"gpus": [card], "nvidia": NVIDIA}, preflight={"tools.nvidia-smi": "/usr/bin/nvidia-smi"})
    assert (remedy.name, remedy.consent, remedy.command) == ("persistence", "named", "sudo nvidia-smi -pm 1")
    assert found(probe={"gpus": [card], "nvidia": NVIDIA}, preflight={"tools.nvidia-smi": None}) == []


def test_as_root_no_command_says_sudo() -> None:
    root = {"user": {"name": "root", "uid": 0, "home": "/root"}, "fabric.+": PORT}
    (remedy,) = found(probe=root, outside=FABRIC)
    assert remedy.command == "apt-get install infiniband-diags"


def test_what_no_package_manager_has_is_left_to_the_operator() -> None:
    assert found({"fabric.+": PORT}, {"packages.manager": "apk"}, FABRIC) == []
    assert found({"fabric.+": PORT, "os.id": "unheard-of"}, {"packages.manager": None}, FABRIC) == []
    assert found(preflight={"libraries": {"libfuture.so.9": False}}) == []


def test_without_documents_there_is_nothing_to_mend() -> None:
    problem = Problem(code="python_missing", severity="error", message="no python3")
    assert remedies([problem], None, None) == []


# ---- the script's list and this one are the same ----


def test_every_remedy_mends_a_finding_that_exists() -> None:
    assert set(MENDS) <= {rule.code for rule in RULES}


def test_the_script_knows_the_packages_for_the_same_managers() -> None:
    theirs = table("PACKAGES")
    assert theirs == {name: PACKAGES[name] for name in theirs}


@pytest.mark.parametrize("manager", ["apt", "dnf", "zypper", "pacman", "apk"])
@pytest.mark.parametrize(
    ("package", "code", "probe", "preflight", "outside"),
    [
        ("infiniband-diags", "fabric_tools_missing", {"fabric.+": PORT}, {}, FABRIC),
        ("libgomp", "library_missing", {}, {"libraries": {"libgomp.so.1": False}}, {}),
        ("libstdc++", "library_missing", {}, {"libraries": {"libstdc++.so.6": False}}, {}),
        ("libibverbs", "fabric_no_verbs", {}, {"libraries": {"libibverbs.so.1": False}}, FABRIC),
        ("ldd", "ldd_missing", {}, {"tools.ldd": None}, {}),
    ],
)
def test_what_is_installed_is_what_the_fix_says(
    manager: str, package: str, code: str, probe: Any, preflight: Any, outside: Any
) -> None:
    fix = judged(probe, {**preflight, "packages.manager": manager}, outside)[code].fix
    name = table("PACKAGES")[package].get(manager)
    assert fix.split()[-1] == name if name else fix.startswith("Install ")
