"""What is remembered: the database and its log."""

from __future__ import annotations

import os

from llmgw.core.findings.rules import arg, listed
from llmgw.core.fit import gib
from llmgw.engines.base import GIB, MIB
from llmgw.errors import Refused
from llmgw.host import processes
from llmgw.host.checks import Here, Said, check, fit, info, present, span
from llmgw.store import disk, look, lost

LARGE_LOG = 64 * MIB
"""Bytes: SQLite starts its log anew at four MB unless a reader keeps it from it."""
LARGE = 2 * GIB
AHEAD = 120.0
"""Seconds that the newest event may lie in the future before the clock is in doubt."""
SAID = frozenset({"no_plain_file", "damaged_state", "lost_state"})
"""Why a state cannot be read, where a check of its own says so."""


@check("error", "Restore the newest sound copy from backups/ (with the server stopped), or move the file away.")
def state_damaged(here: Here) -> Said:
    """The database does not pass SQLite's own check, or its log does not begin as one; a start is refused, running
    engines are left alone."""
    path = here.home.database
    try:
        said = look.complaint(path) if present(path) else None
    except Refused as exc:
        if exc.code in SAID:
            return None
        raise
    if said is None:
        return None
    message = f"{path} is damaged: {said[:200]}"
    sound = next((each for each in reversed(lost.copies(path)) if lost.sound(each)), None)
    if disk.log(path) is disk.Log.DAMAGED:
        wal = arg(str(disk.beside(path, "wal")))
        back = f", or restore a copy: `{lost.restore(path, sound, keep_log=True)}`" if sound else ""
        return message, f"With the server stopped, go on without the log: `mv {wal} {wal}.lost`{back}."
    if sound is None:
        fix = "There is no sound copy: move it and backups/ away and add the nodes again; running engines are adopted."
        return message, fix
    return message, f"Stop the server, then run `{lost.restore(path, sound)}`."


@check("error", "Stop the server: it saves what it holds in backups/ as it ends; put that in its place.")
def state_replaced(here: Here) -> Said:
    """The database was removed or replaced under the server, which refuses every change since then; what it wrote until
    then is in a file without a name, and gone when the server is killed."""
    pid = here.server_pid
    if pid is None or not _replaced(here):
        return None
    fix = f"Run `kill {pid}`: it saves what it holds as the newest copy in {here.home.backups}; put that in its place."
    return f"the server (pid {pid}) has another file open than {here.home.database}", fix


def _replaced(here: Here) -> bool:
    return here.server_pid is not None and processes.holds(here.server_pid, here.home.database) is False


def _loss(here: Here) -> lost.Loss | None:
    try:
        return None if _replaced(here) else lost.found(here.home.database)
    except Refused as exc:
        if exc.code in SAID:
            return None
        raise


@check("error", "Put the newest copy back, with the server stopped; whoever means to begin anew moves backups/ away.")
def state_lost(here: Here) -> Said:
    """There was a state, and its file is gone or empty: its copies, its log or the admin token show it. A start is
    refused."""
    loss = _loss(here) if present(here.home.path) else None
    return (loss.message, loss.fix) if loss is not None else None


@check("error", "Put it back from a copy of the home, or start without: `llmgw node add` adopts what runs.")
def state_missing(here: Here) -> Said:
    """The database is gone while the identity is there: a start begins with an empty state."""
    path = here.home.database
    if info(path, follow=False) is not None or not present(here.home.identity_file) or _replaced(here) or _loss(here):
        return None
    return f"{path} is missing, and there is no copy"


@check("error", "Install that version or a later one.")
def state_newer(here: Here) -> Said:
    """The state was written by a newer version of llmgw; a start is refused, nothing is changed."""
    if here.state is None or not here.state.unknown:
        return None
    return f"the state has {listed(here.state.unknown)}, which this version does not know"


@check("note", "Nothing: the next start applies it. A copy lies in backups/.")
def state_older(here: Here) -> Said:
    """The next start changes the shape of the state; an older version cannot read it from then on."""
    if here.state is None or not here.state.pending or (not here.state.applied and _loss(here)):
        return None
    return f"the state lacks {listed(here.state.pending)}"


@check("error", "Correct its owner and mode.")
def state_unwritable(here: Here) -> Said:
    """The database or its log may not be written: a start is refused."""
    names = [here.home.database, *(here.home.path / f"state.db-{end}" for end in ("wal", "shm")), here.home.lock]
    closed = [path.name for path in names if fit(path, None) and not os.access(path, os.R_OK | os.W_OK)]
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


@check("warning", "Set the clock: `sudo timedatectl set-ntp true`.")
def clock_behind_state(here: Here) -> Said:
    """The newest event lies in the future: the clock was set back, and ages and retries are wrong until it is past."""
    last = here.state.last_event if here.state else None
    if last is None or last < here.now + AHEAD:
        return None
    return f"the newest event is {span(last - here.now)} ahead of the clock"
