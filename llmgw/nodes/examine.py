"""All that can be known of a node without writing a byte on it: probe, preflight, and what we see from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmgw.core.findings import judge
from llmgw.errors import BadReply, LinkLost, LlmgwError, NodeError, Refused, Unreachable
from llmgw.model.node import NodeOptions, Problem
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe
from llmgw.model.surroundings import Surroundings, skew
from llmgw.nodes.remote import Runner, preflight_args, probe_args, typed
from llmgw.ssh.channels import START

UNUSED_PORT = 9
"""discard: nothing listens there on any machine of today."""


class Way(Runner, Protocol):
    """A connection, or the link that holds one: what a look from outside needs of it."""

    @property
    def noise(self) -> str: ...
    @property
    def data_path(self) -> str | None: ...
    @property
    def session_limit(self) -> int: ...


@dataclass(frozen=True)
class Examined:
    probe: Probe | None
    """None where the node ran no script; the findings say why."""
    document: dict[str, Any] | None
    preflight: Preflight | None
    outside: Surroundings
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]


async def examine(
    way: Way,
    options: NodeOptions,
    *,
    where: str,
    node_id: str | None,
    ports: tuple[int, int],
    machines: Sequence[tuple[str, str]] = (),
    ask_sudo: bool = False,
) -> Examined:
    """Looks at a node in every way there is. Writes nothing there, unless sudo is to be asked (it keeps a log).

    `where` names it in sentences, `node_id` is None where its name is to be its hostname. `machines` are the other
    nodes' (id, machine id). Raises LinkLost and TimedOut; what the node itself does wrong is a finding.
    """
    sent = time.time()
    try:
        # Side by side: a server that grants one session at a time is found out by that.
        document, found = await asyncio.gather(
            way.run_script("probe", probe_args(options, node_id or "", ports), deadline=60.0),
            _preflight(way, options, node_id or "", ports, ask_sudo),
        )
        received = time.time()
        probe = typed(Probe, document, where)
    except LinkLost:
        raise
    except (NodeError, BadReply, Refused) as exc:
        return _mute(exc, way)
    forwarding, round_trip = await _forwarding(way)
    outside = Surroundings(
        clock_skew=skew(probe.at, sent, received),
        round_trip=round_trip,
        noise=way.noise,
        forwarding=forwarding,
        sessions=way.session_limit if way.session_limit < START else None,
        same_machine_id=tuple(name for name, machine in machines if machine == probe.machine_id),
        fabrics=options.fabrics,
    )
    preflight = found if isinstance(found, Preflight) else None
    problems = judge(probe, preflight, outside, node_id=node_id, ports=ports, accepted=options.despite)
    if isinstance(found, LlmgwError):
        problems.append(Problem(code="preflight_failed", severity="warning", message=found.message, fix=found.fix))
    return Examined(probe, document, preflight, outside, tuple(problems))


async def _preflight(
    way: Way, options: NodeOptions, node_id: str, ports: tuple[int, int], ask_sudo: bool
) -> Preflight | LlmgwError:
    """The document; or why there is none, which alone keeps nobody from serving."""
    args = preflight_args(options, node_id, ports=ports, ask_sudo=ask_sudo)
    try:
        return typed(Preflight, await way.run_script("preflight", args, deadline=45.0), "it")
    except LinkLost:
        raise
    except LlmgwError as exc:
        return exc


def _mute(exc: LlmgwError, way: Way) -> Examined:
    """A login that runs no script: what it said instead is all there is to judge by."""
    said = str(exc.data.get("stderr") or exc.data.get("noise") or "") or way.noise
    if exc.code == "no_python":
        said = exc.message
    outside = Surroundings(refusal=said)
    problems = judge(None, None, outside)
    if not any(problem.severity == "error" for problem in problems):
        problems.insert(0, Problem(code=exc.code, severity="error", message=exc.message, fix=exc.fix))
    return Examined(None, None, None, outside, tuple(problems))


async def _forwarding(way: Way) -> tuple[bool | None, float | None]:
    """Whether the server forwards TCP, and how long an answer takes in seconds. A closed port tells both."""
    began = time.monotonic()
    try:
        await way.open_stream(UNUSED_PORT, asyncio.Protocol)
    except Unreachable:
        took = time.monotonic() - began
        return (True, took) if way.data_path == "direct-tcpip" else (False, None)
    except LinkLost:
        raise
    except LlmgwError:
        return None, None
    return None, None
