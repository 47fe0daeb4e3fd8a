"""`llmgw doctor`: looks the control plane over, whether it runs or not, and writes nothing.

Every check is made on its own: one that fails or hangs costs its own answer, and the report names it.
"""

from __future__ import annotations

import errno
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from llmgw.config.home import Home
from llmgw.core.findings.rules import ORDER, Severity, listed
from llmgw.errors import LlmgwError

# Whoever asks for CHECKS here has them all: each module registers its own.
from llmgw.host import (
    configuration,
    copies,
    environment,
    files,
    homes,
    keys,
    leases,
    machine,
    openssh,
    outside,
    ports,
    program,
    running,
    state,
)
from llmgw.host.checks import CHECKS, Check, Here, Place, Said, Sentence, aside
from llmgw.host.facts import LOCAL, look, reason
from llmgw.model.node import Problem

SUBJECTS = (
    homes,
    files,
    configuration,
    ports,
    keys,
    state,
    copies,
    leases,
    running,
    environment,
    program,
    machine,
    openssh,
    outside,
)
LIMIT = 20.0
"""Seconds for all checks together; SQLite's check of a large state takes the longest."""
SLOW = frozenset({"state_damaged", "backup_damaged", "state_lost"})
"""Checks that read a whole database."""
SOON = 8.0
"""Seconds for every other check."""


Unseen = tuple[str, Severity]
"""What was not looked at, and how bad that is."""


@dataclass(frozen=True)
class Report:
    home: Home
    running: str
    """Who runs, in a line."""
    checked: int
    problems: tuple[Problem, ...]
    """The worst first."""

    @property
    def ok(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)


def examine(
    home: Home, environ: Mapping[str, str], places: Sequence[Place] = (), tls: ssl.SSLContext | None = None
) -> Report:
    """All checks. `places` are asked for an answer, trusting what `tls` does. Raises nothing that a check may find."""
    here = look(home, environ, places, tls)
    begun = time.monotonic()
    asked = [(each, aside(lambda each=each: each.find(here))) for each in CHECKS]  # type: ignore[misc]
    problems: list[Problem] = []
    unseen: dict[str, list[Unseen]] = {}
    for each, answer in asked:
        limit = LIMIT if each.code in SLOW else min(SOON, LIMIT)
        found = _answer(each, answer, begun + limit - time.monotonic())
        if isinstance(found, BaseException):
            unseen.setdefault(_why(found, limit), []).append((each.code, _weight(each, found)))
        else:
            problems += found
    if here.state_error is not None and getattr(here.state_error, "code", None) not in state.SAID:
        why = _why(here.state_error, LOCAL)
        unseen.setdefault(why, []).append(("what the state holds", _weight(None, here.state_error)))
    problems += [_not_checked(why, names) for why, names in unseen.items()]
    problems.sort(key=lambda problem: ORDER[problem.severity])
    try:
        who = running.described(here)
    except Exception as exc:
        who = f"a control plane answers, in words that mean nothing ({_why(exc, LIMIT)})"
    return Report(home, who, len(CHECKS), tuple(problems))


def _answer(each: Check, asked: Future[Said], seconds: float) -> list[Problem] | BaseException:
    try:
        return _problems(each, asked.result(max(0.0, seconds)))
    except Exception as exc:
        return exc


def _problems(each: Check, said: Said) -> list[Problem]:
    every: list[Sentence] = said if isinstance(said, list) else [said] if said is not None else []
    pairs = [(one, each.fix) if isinstance(one, str) else one for one in every]
    return [Problem(code=each.code, severity=each.severity, message=text, fix=fix) for text, fix in pairs]


def _why(exc: BaseException, limit: float) -> str:
    if isinstance(exc, TimeoutError):
        return f"no answer within {limit:g} s"
    if isinstance(exc, LlmgwError):
        return exc.message.rstrip(".")
    if isinstance(exc, OSError):
        # What keeps one file of a directory from being looked at keeps all of them.
        named = exc.filename if exc.errno not in (errno.EACCES, errno.ELOOP, errno.ENOTDIR) else None
        return f"{named}: {reason(exc)}" if named else reason(exc)
    return f"{type(exc).__name__}: {reason(exc)[:200]}"


def _weight(each: Check | None, exc: BaseException) -> Severity:
    """Where it is known why a thing is not looked at, that is all there is to say. A check that hangs or breaks may
    hide an error, and what it stumbled over may be one; so may a log that is not merged yet."""
    known = isinstance(exc, (LlmgwError, PermissionError)) or (type(exc) is OSError and exc.errno is None)
    known = known and getattr(exc, "code", None) != "unmerged_log"
    return "note" if known or (each is not None and each.severity == "note") else "warning"


def _not_checked(why: str, names: Sequence[Unseen]) -> Problem:
    """Unknown is no finding, and no clean bill either."""
    fix = "Run it as the owner of the home, or as root." if why == "Permission denied" else ""
    severity: Severity = "warning" if any(weight == "warning" for _, weight in names) else "note"
    message = f"not checked: {listed((name for name, _ in names), 6)} ({why})"
    return Problem(code="not_checked", severity=severity, message=message, fix=fix)


__all__ = ["CHECKS", "SUBJECTS", "Here", "Report", "examine"]
