"""What is wrong with a node, in sentences with a fix: pure rules over what the probe, the preflight and we ourselves
found out. The scripts bring facts, here they are judged; `docs/findings.md` lists every rule."""

from __future__ import annotations

from collections.abc import Collection

from llmgw.core.findings import (  # noqa: F401 (each module's rules register themselves, in the order they are told)
    account,
    cards,
    cpu,
    disks,
    fabric,
    network,
    nvidia,
    ssh,
    system,
    xid,
)
from llmgw.core.findings.rules import ORDER, RULES, Facts, Rule
from llmgw.model.node import Problem
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe
from llmgw.model.surroundings import Surroundings

__all__ = ["RULES", "Facts", "Rule", "judge"]


def judge(
    probe: Probe | None,
    preflight: Preflight | None = None,
    outside: Surroundings | None = None,
    *,
    node_id: str | None = None,
    ports: tuple[int, int] | None = None,
    accepted: Collection[str] = (),
) -> list[Problem]:
    """Every finding that these facts give, the worst first, one a rule.

    A document that was not asked for is None: what only it could tell is not judged. `node_id` is the name that the
    node has or shall have, None where it is to be its hostname. Errors that the operator has `accepted`, by their code,
    are warnings.
    """
    facts = Facts(probe, preflight, outside or Surroundings(), node_id, ports)
    found = []
    for rule in RULES:
        said = rule.find(facts)
        if said is not None:
            message, fix = (said, rule.fix) if isinstance(said, str) else said
            severity = "warning" if rule.severity == "error" and rule.code in accepted else rule.severity
            found.append(Problem(code=rule.code, severity=severity, message=_plain(message), fix=_plain(fix)))
    return sorted(found, key=lambda problem: ORDER[problem.severity])


def _plain(text: str) -> str:
    """What a node says is in these sentences: nothing that moves a cursor, and no novel (F52)."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)[:1000]
