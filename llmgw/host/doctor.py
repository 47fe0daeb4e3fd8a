"""`llmgw doctor`: looks the control plane over, whether it runs or not, and writes nothing.

Every check is made on its own: one that fails or hangs costs its own answer, and the report names it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from llmgw.config.home import Home
from llmgw.core.findings.rules import ORDER, listed
from llmgw.errors import LlmgwError

# Whoever asks for CHECKS here has them all: each module registers its own.
from llmgw.host import (
    configuration,
    environment,
    homes,
    keys,
    machine,
    openssh,
    outside,
    ports,
    program,
    running,
    state,
)
from llmgw.host.checks import CHECKS, Check, Here, Place, Said, Sentence, aside
from llmgw.host.facts import look, reason
from llmgw.model.node import Problem

SUBJECTS = (
    homes,
    configuration,
    ports,
    keys,
    state,
    running,
    environment,
    program,
    machine,
    openssh,
    outside,
)
LIMIT = 20.0
"""Seconds for all checks together; SQLite's check of a large state takes the longest."""


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
    ends = time.monotonic() + LIMIT
    asked = [(each, aside(lambda each=each: each.find(here))) for each in CHECKS]  # type: ignore[misc]
    problems: list[Problem] = []
    unseen: dict[str, list[str]] = {}
    for each, answer in asked:
        found = _answer(answer, ends - time.monotonic())
        if isinstance(found, BaseException):
            unseen.setdefault(_why(found), []).append(each.code)
        else:
            problems += _problems(each, found)
    if here.state_error is not None and not any(problem.code == "state_damaged" for problem in problems):
        unseen.setdefault(_why(here.state_error), []).append("what the state holds")
    problems += [_not_checked(why, codes) for why, codes in unseen.items()]
    problems.sort(key=lambda problem: ORDER[problem.severity])
    return Report(home, running.described(here), len(CHECKS), tuple(problems))


def _answer(asked: Future[Said], seconds: float) -> Said | BaseException:
    try:
        return asked.result(max(0.0, seconds))
    except Exception as exc:
        return exc


def _problems(each: Check, said: Said) -> list[Problem]:
    every: list[Sentence] = said if isinstance(said, list) else [said] if said is not None else []
    pairs = [(one, each.fix) if isinstance(one, str) else one for one in every]
    return [Problem(code=each.code, severity=each.severity, message=text, fix=fix) for text, fix in pairs]


def _why(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return f"no answer within {LIMIT:g} s"
    if isinstance(exc, LlmgwError):
        return exc.message.rstrip(".")
    if isinstance(exc, OSError):
        return (
            f"{exc.filename}: {reason(exc)}" if exc.filename and not isinstance(exc, PermissionError) else reason(exc)
        )
    return f"{type(exc).__name__}: {reason(exc)}"


def _not_checked(why: str, codes: Sequence[str]) -> Problem:
    """Unknown is no finding, and no clean bill either."""
    fix = "Run it as the owner of the home, or as root." if why == "Permission denied" else ""
    return Problem(code="not_checked", severity="note", message=f"not checked: {listed(codes, 6)} ({why})", fix=fix)


__all__ = ["CHECKS", "SUBJECTS", "Here", "Report", "examine"]
