"""`llmgw doctor`: the control plane itself as a report; worst first, each with what mends it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import click

from llmgw import __version__
from llmgw.cli.check import Finding, report
from llmgw.cli.output import say, show_json
from llmgw.config.home import find_home
from llmgw.errors import LlmgwError, Refused
from llmgw.host.checks import Place, aside
from llmgw.host.doctor import Report, examine
from llmgw.mirror import index, sources

T = TypeVar("T")
READ = 5.0
"""Seconds for a bundle of certificates and pip's configuration."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
@click.option("--offline", is_flag=True, help="Ask nothing outside this machine.")
def doctor(as_json: bool, offline: bool) -> None:
    """Look the control plane over: every finding with what mends it. It need not run. Writes nothing.

    Ends with 0 when there is no error among the findings, with 4 when there is.
    """
    home = find_home()
    # Both read files that the environment names: whatever is wrong with those is a finding, or none of ours.
    trust, places = (None, None) if offline else (_of(index.tls), _of(_places))
    found = examine(home, os.environ, places or (), trust)
    name = f"the control plane in {home.path}"
    if as_json:
        show_json(_plain(found))
        if not found.ok:
            raise Refused(f"{name} has errors.", fix="Mend the errors above and check again.", code="findings")
        return
    say(found.running)
    try:
        report([Finding(name, found.problems, None)], as_json=False)
    finally:
        say(_counted(found))


def _plain(found: Report) -> dict[str, object]:
    return {
        "home": str(found.home.path),
        "version": __version__,
        "ok": found.ok,
        "running": found.running,
        "checked": found.checked,
        "findings": [problem.model_dump() for problem in found.problems],
    }


def _counted(found: Report) -> str:
    counts = {level: sum(one.severity == level for one in found.problems) for level in ("error", "warning", "note")}
    words = ", ".join(f"{count} {level}{'s' if count != 1 else ''}" for level, count in counts.items())
    return f"{found.checked} checks: {words}"


def _places() -> Sequence[Place]:
    """What the mirror fetches from, with the operator's own settings for it."""
    found = [Place("the package index", _front(url)) for url in index.indexes()]
    try:
        hub = sources.parse("hf:llmgw/doctor/file")
    except LlmgwError:
        return found
    if isinstance(hub, sources.Https):
        parts = urlsplit(hub.url)
        found.append(Place("the model hub", _front(f"{parts.scheme}://{parts.netloc}")))
    return found


def _of(read: Callable[[], T]) -> T | None:
    try:
        return aside(read).result(READ)
    except Exception:
        return None


def _front(url: str) -> str:
    return f"{url.rstrip('/')}/"
