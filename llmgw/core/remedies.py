"""What root's word would mend on a node: for each finding that has one, the remedy, and how freely it is taken.

A remedy is a name of the fixed list in `remote_scripts/privileged.py` and a choice from that list's own words; nothing
that a node or a person says becomes part of a command. What has none here is the operator's to mend: a finding's `fix`
says how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmgw.core.findings import account, system
from llmgw.core.findings.rules import Facts
from llmgw.model.node import Problem
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe

Consent = Literal["given", "asked", "named"]
"""`given`: whoever adds the node asked for it by what they declared; it is done. `asked`: a person in front of a
terminal is asked. `named`: done only where somebody asks for it."""

INSTALLING = 900.0
"""Seconds: lists are fetched, a lock is waited for, a slow mirror answers."""
QUICK = 60.0


@dataclass(frozen=True)
class Remedy:
    """One thing to be done as root. `name` and `args` are what the script is asked for."""

    name: str
    mends: tuple[str, ...]
    """The findings that are to be gone afterwards."""
    does: str
    """What it does, to go on after "to" or "llmgw would": `install infiniband-diags`."""
    command: str
    """The same as a command for a person, who may be root there or not."""
    consent: Consent
    seconds: float = QUICK
    """How long it may take."""
    args: dict[str, Any] = field(default_factory=dict)


Mend = Callable[[Problem, Facts], Remedy | None]


def remedies(problems: Sequence[Problem], probe: Probe | None, preflight: Preflight | None) -> list[Remedy]:
    """The remedies for these findings on this node, those for errors first; installations are one."""
    facts = Facts(probe, preflight)
    found = [
        remedy
        for problem in sorted(problems, key=lambda problem: problem.severity != "error")
        if (mend := MENDS.get(problem.code)) is not None and (remedy := mend(problem, facts)) is not None
    ]
    return _as_one(found)


def _linger(problem: Problem, facts: Facts) -> Remedy:
    does = f"let {facts.user}'s processes live on after a logout (lingering)"
    return Remedy("linger", (problem.code,), does, account.enable_linger(facts), "asked")


def _fabric_tools(problem: Problem, facts: Facts) -> Remedy | None:
    return _install(problem, facts, ("infiniband-diags",), "given")


def _libraries(problem: Problem, facts: Facts) -> Remedy | None:
    packages = system.missing_libraries(facts.preflight) if facts.preflight else ()
    return _install(problem, facts, tuple(packages), "asked")


def _verbs(problem: Problem, facts: Facts) -> Remedy | None:
    return _install(problem, facts, ("libibverbs",), "given")


def _ldd(problem: Problem, facts: Facts) -> Remedy | None:
    return _install(problem, facts, ("ldd",), "named")


def _persistence(problem: Problem, facts: Facts) -> Remedy | None:
    if facts.preflight is not None and facts.preflight.tools.get("nvidia-smi", "?") is None:
        return None
    return Remedy("persistence", (problem.code,), "switch persistence mode on", facts.root("nvidia-smi -pm 1"), "named")


def _peermem(problem: Problem, facts: Facts) -> Remedy:
    does = "load the module nvidia-peermem"
    return Remedy("peermem", (problem.code,), does, facts.root("modprobe nvidia-peermem"), "asked")


MENDS: dict[str, Mend] = {
    "kills_processes": _linger,
    "fabric_tools_missing": _fabric_tools,
    "fabric_no_verbs": _verbs,
    "library_missing": _libraries,
    "ldd_missing": _ldd,
    "fabric_no_peermem": _peermem,
    "persistence_off": _persistence,
}


def _install(problem: Problem, facts: Facts, packages: tuple[str, ...], consent: Consent) -> Remedy | None:
    command = facts.install(*packages)
    if command is None:
        return None
    return Remedy("install", (problem.code,), "", command, consent, INSTALLING, {"packages": packages})


def _as_one(found: Sequence[Remedy]) -> list[Remedy]:
    """One call of the package manager for all that is given, and one for all that is asked for."""
    merged: dict[tuple[str, Consent], Remedy] = {}
    for remedy in found:
        key = (remedy.name, remedy.consent)
        if remedy.name != "install":
            merged[key] = remedy
            continue
        before = merged.get(key)
        packages = tuple(dict.fromkeys((*(before.args["packages"] if before else ()), *remedy.args["packages"])))
        merged[key] = Remedy(
            "install",
            (*(before.mends if before else ()), *remedy.mends),
            f"install {' and '.join(packages)}",
            " && ".join(filter(None, (before.command if before else "", remedy.command))),
            remedy.consent,
            INSTALLING,
            {"packages": packages},
        )
    return list(merged.values())
