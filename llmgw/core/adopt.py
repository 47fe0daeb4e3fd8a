"""What a look at a node means for the replicas recorded there: adopted, dead, absent, or somebody else's.

A look is the only thing that answers an open intent. Nothing is concluded about a node that was not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmgw.model.listing import Exit, Listed, Listing
from llmgw.model.replica import Process, Replica, ReplicaState, Shard
from llmgw.model.snapshot import Unclaimed

S = ReplicaState
_STARTED = (S.STARTING, S.LOADING, S.READY, S.LOST)


@dataclass(frozen=True)
class Alive:
    """The recorded (or a newer) attempt runs: it is ours, with this identity and on this port."""

    replica: str
    shard: Shard
    listed: Listed | None = None
    """None where its record on the node is gone and only the process tells."""


@dataclass(frozen=True)
class Dead:
    """It was started and runs no more; `cause` in the node's own words."""

    replica: str
    attempt: int
    cause: str
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class NeverStarted:
    """It was about to be started and nothing of it is there: the launch did not happen."""

    replica: str


@dataclass(frozen=True)
class Gone:
    """It was to be stopped, and nothing of it is left."""

    replica: str


Verdict = Alive | Dead | NeverStarted | Gone


def judge(node: str, listing: Listing, replicas: Iterable[Replica]) -> list[Verdict]:
    """One verdict for every replica that has a shard on `node` and something to be said about it."""
    listed = {(entry.replica, entry.rank): entry for entry in listing.replicas}
    verdicts: list[Verdict] = []
    for replica in replicas:
        for shard in replica.shards:
            if shard.node != node or replica.state is S.STOPPED:
                continue
            verdict = _judge(replica, shard, listed.get((replica.id, shard.rank)), listing)
            if verdict is not None:
                verdicts.append(verdict)
    return verdicts


def _judge(replica: Replica, shard: Shard, entry: Listed | None, listing: Listing) -> Verdict | None:
    if entry is not None and entry.alive and entry.process is not None and entry.attempt >= shard.attempt:
        if replica.state is S.FAILED and entry.process == shard.process:
            return None  # It was failed while it ran, because it hung: the next launch ends it first (F36).
        found = shard.model_copy(
            update={"attempt": entry.attempt, "process": entry.process, "port": entry.port or shard.port}
        )
        return Alive(replica.id, found, entry)
    if _runs_unrecorded(replica, shard, listing):
        return Alive(replica.id, shard)
    if replica.state.going:
        left = (entry is not None and entry.alive) or any(stray.replica == replica.id for stray in listing.strays)
        return None if left else Gone(replica.id)
    if replica.state not in _STARTED:
        return None
    if entry is None or entry.attempt < shard.attempt:
        if replica.state is S.STARTING or (replica.state is S.LOST and shard.process is None):
            return NeverStarted(replica.id)
        return Dead(replica.id, shard.attempt, _vanished(shard.process, listing.boot_id))
    return Dead(replica.id, entry.attempt, cause_of_death(entry, listing.boot_id), entry.log_tail)


def _runs_unrecorded(replica: Replica, shard: Shard, listing: Listing) -> bool:
    """Its record on the node is gone (somebody deleted files), the very process we know is not: it serves."""
    process = shard.process
    if process is None or process.boot_id != listing.boot_id or replica.state in (S.FAILED, S.PLACED, S.FETCHING):
        return False
    return any(
        (stray.pid, stray.start_ticks, stray.replica) == (process.pid, process.start_ticks, replica.id)
        for stray in listing.strays
    )


def cause_of_death(entry: Listed, boot_id: str) -> str:
    """`killed by signal 9 (SIGKILL): the kernel's out-of-memory killer`, `exited with status 1: …last words…`."""
    if entry.boot_id is not None and entry.boot_id != boot_id:
        return "the node was rebooted"
    words = last_words(entry.log_tail)
    if entry.exit is None:
        return f"it is not running any more{': ' + words if words else ''}"
    if entry.exit.signal is not None:
        who = ""
        if entry.oom:
            who = ", by the kernel's out-of-memory killer"
        elif entry.exit.signal == 9:
            who = " by somebody on the node" if entry.oom is False else ", by somebody or for lack of memory"
        return f"killed by signal {_signal(entry.exit)}{who}"
    return f"exited with status {entry.exit.status}{': ' + words if words else ''}"


_CAUSE = re.compile(r"\b(error|fatal|panic)\b\s*[:\]]|^\w*(Error|Exception)\b", re.IGNORECASE)
_LOUD = re.compile(r"error|failed|exception|cannot|unable|no such|out of memory|invalid|fatal|abort", re.IGNORECASE)
_USAGE = re.compile(r"\s*(usage:|\[?--?\w)")


def last_words(tail: Iterable[str], limit: int = 300) -> str:
    """The line of a log that most likely says what went wrong.

    The first that names an error, else the first loud one, else the last; a help text that follows is passed over.
    """
    lines = [line.strip() for line in tail if line.strip() and not _USAGE.match(line)]
    for sign in (_CAUSE, _LOUD):
        for line in lines:
            if sign.search(line):
                return line[:limit]
    return lines[-1][:limit] if lines else ""


def unclaimed(node: str, listing: Listing, known: Iterable[str], cluster: str) -> list[Unclaimed]:
    """Living engines on `node` with our tag that this state has never recorded, those of other clusters marked."""
    ours = set(known)
    found = [
        Unclaimed(
            node=node,
            replica=entry.replica,
            rank=entry.rank,
            attempt=entry.attempt,
            cluster=entry.manifest.get("cluster"),
            foreign=entry.manifest.get("cluster") != cluster,
            model=entry.manifest.get("model"),
            pid=entry.pid,
            port=entry.port,
            rss=entry.rss,
        )
        for entry in listing.replicas
        if entry.alive and entry.pid is not None and entry.replica not in ours
    ]
    found += [
        Unclaimed(
            node=node,
            replica=stray.replica or "?",
            rank=stray.rank or 0,
            attempt=stray.attempt or 0,
            cluster=stray.cluster,
            foreign=stray.cluster != cluster,
            pid=stray.pid,
            rss=stray.rss,
        )
        for stray in listing.strays
        if stray.replica not in ours
    ]
    return found


def _vanished(process: Process | None, boot_id: str) -> str:
    if process is not None and process.boot_id != boot_id:
        return "the node was rebooted"
    return "it is not on the node any more, and neither is its record there"


def _signal(exit_: Exit) -> str:
    import signal as names

    number = exit_.signal or 0
    try:
        return f"{number} ({names.Signals(number).name})"
    except ValueError:
        return str(number)
