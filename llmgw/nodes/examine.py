"""All that can be known of a node without writing a byte on it: probe, preflight, and what we see from outside."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

from llmgw.core.findings import judge
from llmgw.core.findings.rules import ORDER
from llmgw.errors import BadReply, LinkLost, LlmgwError, NodeError, Refused, Unreachable
from llmgw.model.node import NodeOptions, Problem
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe
from llmgw.model.surroundings import Surroundings, skew
from llmgw.nodes.remote import Runner, preflight_args, probe_args
from llmgw.nodes.replies import typed
from llmgw.ssh.channels import START

RAN_NOTHING = ("no_answer", "sessions_refused")
UNUSED_PORT = 9
"""discard: nothing listens there on any machine of today."""


class Machine(NamedTuple):
    """A node there is, by what tells machines apart."""

    id: str
    machine_id: str
    boot_id: str | None
    host_key: str = ""


class Examinable(Runner, Protocol):
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
    preflight: Preflight | None
    outside: Surroundings
    node_id: str | None
    ports: tuple[int, int]
    extra: tuple[Problem, ...] = ()
    """What kept us from looking, as findings."""
    accepted: tuple[str, ...] = ()

    @functools.cached_property
    def problems(self) -> tuple[Problem, ...]:
        """The findings, the worst first."""
        known = {"node_id": self.node_id, "ports": self.ports, "accepted": self.accepted}
        found = [*judge(self.probe, self.preflight, self.outside, **known), *self.extra]  # type: ignore[arg-type]
        return tuple(sorted(found, key=lambda problem: ORDER[problem.severity]))

    def with_fabrics(self, fabrics: dict[str, tuple[str, ...]]) -> Examined:
        """Judged with fabrics that were declared since."""
        return replace(self, outside=self.outside.model_copy(update={"fabrics": fabrics}))

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]


async def examine(
    way: Examinable,
    options: NodeOptions,
    *,
    where: str,
    node_id: str | None,
    ports: tuple[int, int],
    machines: Sequence[Machine] = (),
    host_key: str | None = None,
    key_line: str | None = None,
    ask_sudo: bool = False,
) -> Examined:
    """Looks at a node in every way there is. Writes nothing there, unless sudo is to be asked (it keeps a log).

    `where` names it in sentences, `node_id` is None where its name is to be its hostname. `machines` are the nodes
    there are; the one with its `host_key` is this very node. Raises LinkLost and TimedOut; what the node itself does
    wrong is a finding.
    """
    # Side by side: a server that grants one session at a time is found out by that.
    looking = asyncio.ensure_future(_preflight(way, options, node_id or "", ports, ask_sudo))
    try:
        sent = time.time()
        document = await way.run_script("probe", probe_args(options, node_id or "", ports), deadline=60.0)
        received = time.time()
        probe = typed(Probe, document, where)
        found = await looking
    except LinkLost:
        raise
    except (NodeError, BadReply, Refused) as exc:
        return _mute(exc, way, node_id, ports)
    finally:
        looking.cancel()
        looking.add_done_callback(_taken)
    forwarding, round_trip = await _forwarding(way)
    alike = [one for one in machines if one.machine_id == probe.machine_id and one.host_key != host_key]
    outside = Surroundings(
        clock_skew=skew(probe.at, sent, received),
        round_trip=round_trip,
        noise=way.noise,
        forwarding=forwarding,
        sessions=way.session_limit if way.session_limit < START else None,
        same_machine_id=tuple(one.id for one in alike if one.boot_id != probe.boot_id),
        same_machine=tuple(one.id for one in alike if one.boot_id == probe.boot_id),
        own_key=options.own_key,
        key_line=key_line,
        fabrics=options.fabrics,
    )
    if isinstance(found, Preflight):
        return Examined(probe, found, outside, node_id, ports, accepted=options.despite)
    failed = Problem(code="preflight_failed", severity="warning", message=found.message, fix=found.fix)
    return Examined(probe, None, outside, node_id, ports, extra=(failed,), accepted=options.despite)


def _taken(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _preflight(
    way: Examinable, options: NodeOptions, node_id: str, ports: tuple[int, int], ask_sudo: bool
) -> Preflight | LlmgwError:
    """The document; or why there is none, which alone keeps nobody from serving."""
    args = preflight_args(options, node_id, ports=ports, ask_sudo=ask_sudo)
    try:
        return typed(Preflight, await way.run_script("preflight", args, deadline=45.0), "it")
    except LinkLost:
        raise
    except LlmgwError as exc:
        return exc


def _mute(exc: LlmgwError, way: Examinable, node_id: str | None, ports: tuple[int, int]) -> Examined:
    """A login that runs no script: what it said instead is all there is to judge by. A script that ran, and failed, or
    answered nonsense, says it itself."""
    said = ""
    if exc.code == "no_python":
        said = exc.message
    elif exc.code in RAN_NOTHING:
        said = str(exc.data.get("stderr") or exc.data.get("noise") or "").strip() or way.noise.strip()
        said = said or "nothing"
    mute = Examined(None, None, Surroundings(refusal=said), node_id, ports)
    if mute.errors:
        return mute
    return replace(mute, extra=(Problem(code=exc.code, severity="error", message=exc.message, fix=exc.fix),))


class _Nobody(asyncio.Protocol):
    """Hangs up at once, where somebody answers after all."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


async def _forwarding(way: Examinable) -> tuple[bool | None, float | None]:
    """Whether the server forwards TCP, and how long an answer takes in seconds. A closed port tells both."""
    began = time.monotonic()
    try:
        await way.open_stream(UNUSED_PORT, _Nobody)
    except Unreachable:
        pass
    except LinkLost:
        raise
    except LlmgwError:
        return None, None
    took = time.monotonic() - began
    return (True, took) if way.data_path == "direct-tcpip" else (False, None)
