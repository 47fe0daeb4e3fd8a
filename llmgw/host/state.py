"""What is remembered: the database, its log, its copies, and who may write it."""

from __future__ import annotations

import os
from pathlib import Path

from llmgw.config.home import host_name
from llmgw.core.findings.rules import arg, listed
from llmgw.core.fit import gib
from llmgw.engines.base import GIB, MIB
from llmgw.errors import Refused
from llmgw.host import processes
from llmgw.host.checks import Here, Said, Sentence, check, info, many, present, span
from llmgw.store import look

SERVER = "server run"
LARGE_LOG = 64 * MIB
"""Bytes: SQLite starts its log anew at four MB unless a reader keeps it from it."""
LARGE = 2 * GIB
DAY = 86400.0
AHEAD = 120.0
"""Seconds that the newest event may lie in the future before the clock is in doubt."""


def _backups(here: Here) -> list[Path]:
    folder = here.home.backups
    return sorted(folder.glob("state-*.db")) if present(folder) else []


@check("error", "Restore the newest sound copy from backups/ (with the server stopped), or move the file away.")
def state_damaged(here: Here) -> Said:
    """The database does not pass SQLite's own check; a start is refused, running engines are left alone."""
    path = here.home.database
    if not present(path) or (said := look.complaint(path)) is None:
        return None
    sound = next((each for each in reversed(_backups(here)) if _sound(each)), None)
    fix = "There is no sound copy: move it away and add the nodes again; running engines are adopted."
    if sound is not None:
        rest = f"{arg(str(path))}-wal {arg(str(path))}-shm"
        fix = f"Stop the server, then run `cp {arg(str(sound))} {arg(str(path))} && rm -f {rest}`."
    return f"{path} is damaged: {said[:200]}", fix


def _sound(path: Path) -> bool:
    try:
        return look.complaint(path) is None
    except (OSError, Refused):
        return False


@check("error", "Install that version or a later one.")
def state_newer(here: Here) -> Said:
    """The state was written by a newer version of llmgw; a start is refused, nothing is changed."""
    if here.state is None or not here.state.unknown:
        return None
    return f"the state has {listed(here.state.unknown)}, which this version does not know"


@check("note", "Nothing: the next start applies it. A copy lies in backups/.")
def state_older(here: Here) -> Said:
    """The next start changes the shape of the state; an older version cannot read it from then on."""
    if here.state is None or not here.state.pending:
        return None
    return f"the state lacks {listed(here.state.pending)}"


@check("error", "Put it back from backups/, or start without: `llmgw node add` adopts what runs.")
def state_missing(here: Here) -> Said:
    """The database is gone while its copies or the identity are there: a start begins with an empty state."""
    if present(here.home.database) or not present(here.home.path):
        return None
    copies = _backups(here)
    if copies:
        fix = f"cp {arg(str(copies[-1]))} {arg(str(here.home.database))}"
        return f"{here.home.database} is missing; {copies[-1].name} is the newest copy", fix
    if present(here.home.path / "identity.json"):
        return f"{here.home.database} is missing, and there is no copy"
    return None


@check("error", "Correct its owner and mode.")
def state_unwritable(here: Here) -> Said:
    """The database or its log may not be written: a start is refused."""
    names = [here.home.database, *(here.home.path / f"state.db-{end}" for end in ("wal", "shm")), here.home.lock]
    closed = [path.name for path in names if present(path) and not os.access(path, os.R_OK | os.W_OK)]
    if not closed:
        return None
    fix = "chmod 600 " + " ".join(arg(str(here.home.path / name)) for name in closed)
    return f"{listed(closed)} in {here.home.path} may not be read and written by uid {here.uid}", fix


@check("warning", "Find the reader that keeps it (fuser), or start the server again.")
def state_log_large(here: Here) -> Said:
    """A reader that never ends keeps SQLite from starting its log anew: reads get slow and the disk fills."""
    found = info(here.home.path / "state.db-wal")
    if found is None or found.st_size < LARGE_LOG:
        return None
    fix = f"fuser -v {arg(str(here.home.path / 'state.db-wal'))}"
    return f"the log of the state has {found.st_size // MIB} MiB", fix


@check("note", "With the server stopped: sqlite3 state.db VACUUM")
def state_large(here: Here) -> Said:
    """Thirty days of events are some hundred MB at most; more is space that SQLite has not given back."""
    found = info(here.home.database)
    if found is None or found.st_size < LARGE:
        return None
    return (
        f"the state has {gib(found.st_size)}",
        f"With the server stopped: `sqlite3 {arg(str(here.home.database))} VACUUM`.",
    )


@check("warning", "Let the server run: it makes one a day. See its log when it does not.")
def backup_old(here: Here) -> Said:
    """The server copies the state once a day; without a copy a damaged database is lost."""
    found = info(here.home.database)
    if found is None:
        return None
    copies = _backups(here)
    up = processes.started(here.server_pid) if here.server_pid else None
    if not copies:
        if up is None or here.now - up < 3600:
            return None  # the first one is made within the first hour
        return f"there is no copy of the state, and the server has been up for {span(here.now - up)}"
    age = here.now - copies[-1].stat().st_mtime
    if age < 1.5 * DAY:
        return None
    running = f"the server has been up for {span(here.now - up)}" if up else "no server runs"
    return f"the newest copy of the state is {span(age)} old; {running}"


@check("warning", "Remove it: the server makes a new one within the hour.")
def backup_damaged(here: Here) -> Said:
    """The newest copy would not help: it does not pass SQLite's own check."""
    copies = _backups(here)
    if not copies or _sound(copies[-1]):
        return None
    return f"{copies[-1]} is damaged", f"rm {arg(str(copies[-1]))}"


@check("note", "Wait for it; `llmgw server run` does so for a minute.")
def lease_held(here: Here) -> Said:
    """A command is at work without a server; what else acts waits or is refused until it is done."""
    if not here.held or here.recorded is None or here.recorded.purpose == SERVER:
        return None
    return f"the lease is held by {here.recorded}"


@check("warning", "End that process when you know what it is.")
def lease_unclear(here: Here) -> Said:
    """Another process than the one that took the lease holds its lock: a child that outlived it, or a copied file."""
    if not here.held or here.recorded is None or here.held_by in (None, here.recorded.pid):
        return None
    assert here.held_by is not None
    holder = f"pid {here.held_by} ({processes.name(here.held_by)})"
    return f"{here.home.lock} is locked by {holder}, but names {here.recorded}"


@check("note", "Nothing: the next start adopts what runs.")
def lease_left(here: Here) -> Said:
    """Whoever took the lease last did not end properly: it was killed, or the machine went down."""
    last = here.recorded
    if here.held is not False or last is None or not present(here.home.socket) or last.pid is None:
        return None
    gone = "is gone" if not processes.alive(last.pid) else "is another process by now"
    return f"the last control plane was {last}; that process {gone}, and left {here.home.socket.name} behind"


@check("warning", "Run one control plane of a state, on one machine.")
def lease_elsewhere(here: Here) -> Said:
    """The home was last used on another machine: a copy of it there would speak for the same cluster."""
    last = here.recorded
    if last is None or last.host == host_name():
        return None
    return f"the lease was last taken by {last}; this machine is {host_name()}"


@check("warning", "Set the clock: `sudo timedatectl set-ntp true`.")
def clock_behind_state(here: Here) -> Said:
    """The newest event lies in the future: the clock was set back, and ages and retries are wrong until it is past."""
    last = here.state.last_event if here.state else None
    if last is None or last < here.now + AHEAD:
        return None
    return f"the newest event is {span(last - here.now)} ahead of the clock"


@check("warning", "Stop what writes them, or move them out of backups/.")
def backups_large(here: Here) -> Said:
    """Seven copies are kept; what else lies in backups/ nobody removes."""
    folder = here.home.backups
    if not present(folder):
        return None
    others: list[Sentence] = []
    strange = [each for each in folder.iterdir() if not each.name.startswith("state-")]
    size = sum(each.stat().st_size for each in strange if each.is_file())
    if size > GIB:
        others.append(f"{many(len(strange), 'other file')} in {folder} take {gib(size)}")
    return others
