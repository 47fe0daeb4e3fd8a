"""Brings an engine onto a node: which build, is it there, push it, does it run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from llmgw.engines.base import Build, Unsupported
from llmgw.engines.registry import engines
from llmgw.errors import UNCERTAIN, LlmgwError, NodeError
from llmgw.model.engine import InstallState, NodeEngine
from llmgw.model.node import Node
from llmgw.model.probe import Probe
from llmgw.model.weights import Weights
from llmgw.nodes.remote import Remote

Report = Callable[[InstallState, str], Awaitable[None]]
Fetch = Callable[[str, tuple[str, ...]], Awaitable[Weights]]

_RETRIES = (10.0, 60.0, 300.0)


def choose_build(engine: str, version: str, node: Node, probe: Probe) -> Build | Unsupported:
    return engines()[engine].build(version, node, probe)


async def provision(
    remote: Remote, entry: NodeEngine, build: Build, *, fetch: Fetch, report: Report, now: Callable[[], float]
) -> NodeEngine:
    """Converges one engine on one node and returns how that ended. Raises only for what is unknown (a lost link)."""
    try:
        if build.path is not None:
            await report(InstallState.CHECKING, f"running {build.path} --version")
            found = await remote.install_check(build)
            path: str | None = build.path
        else:
            found = await remote.install_status(build)
            if not found.installed:
                found = await _push(remote, build, fetch, report)
            path = found.path
    except UNCERTAIN:
        raise
    except LlmgwError as exc:
        return failed(entry, exc, now())
    return entry.model_copy(
        update={
            "state": InstallState.INSTALLED,
            "build": build.name,
            "detail": found.version_text or "",
            "path": path,
            "checked_at": now(),
            "attempts": 0,
            "next_try_at": None,
        }
    )


async def recheck(remote: Remote, entry: NodeEngine, build: Build, *, now: Callable[[], float]) -> NodeEngine:
    """Whether an installed engine still runs. One that does not is `failed`, and installed again by the next turn."""
    try:
        found = await remote.install_check(build)
    except NodeError as exc:
        return failed(entry, exc, now())
    if not found.installed:
        gone = NodeError(f"it is not there any more: {found.reason or entry.path}", fix="It is installed again.")
        return failed(entry, gone, now()).model_copy(update={"next_try_at": None})
    return entry.model_copy(update={"checked_at": now(), "detail": found.version_text or entry.detail})


def failed(entry: NodeEngine, exc: LlmgwError, now: float) -> NodeEngine:
    """After a failure: tried again later, and later still; the words are the node's own."""
    delay = _RETRIES[min(entry.attempts, len(_RETRIES) - 1)]
    return entry.model_copy(
        update={
            "state": InstallState.FAILED,
            "detail": str(exc),
            "attempts": entry.attempts + 1,
            "next_try_at": now + delay,
        }
    )


async def _push(remote: Remote, build: Build, fetch: Fetch, report: Report) -> Any:
    archive: Weights | None = None
    if build.archive is not None:
        await report(InstallState.DOWNLOADING, f"{build.archive} into the mirror")
        archive = await fetch(build.archive, build.platforms)
        await report(InstallState.DOWNLOADING, f"{archive.file} ({(archive.size or 0) >> 20} MB) to the node")
    latest: list[tuple[InstallState, str]] = []

    def on_event(event: dict[str, Any]) -> None:
        try:
            state = InstallState(str(event.get("state")))
        except ValueError:
            return
        latest.append((state, str(event.get("detail", ""))[:200]))

    found = await remote.install(build, archive, on_event)
    for state, detail in latest[-1:]:
        await report(state, detail)
    return found
