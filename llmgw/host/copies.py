"""The copies of the state, of which the server makes one a day."""

from __future__ import annotations

from llmgw.core.findings.rules import arg
from llmgw.core.fit import gib
from llmgw.engines.base import GIB
from llmgw.errors import Refused
from llmgw.host import processes
from llmgw.host.checks import Here, Said, Sentence, check, info, many, present, span
from llmgw.store import look, lost

DAY = 86400.0


@check("warning", "Move it away: the server makes the directory.")
def backups_unusable(here: Here) -> Said:
    """What bears the name of the directory of the copies is none: no copies are made."""
    found = info(here.home.backups, follow=False)
    if found is None or here.home.backups.is_dir():
        return None
    path = arg(str(here.home.backups))
    return f"{here.home.backups} is no directory", f"mv {path} {path}.aside"


@check("warning", "Let the server run: it makes one a day. See its log when it does not.")
def backup_old(here: Here) -> Said:
    """The server copies the state once a day; without a copy a damaged database is lost."""
    found = info(here.home.database)
    if found is None:
        return None
    copies = lost.copies(here.home.database)
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
    copies = lost.copies(here.home.database)
    if not copies or lost.sound(copies[-1]):
        return None
    return f"{copies[-1]} is damaged", f"rm {arg(str(copies[-1]))}"


@check("warning", "Put it back with the server stopped, or rename it when the state is the right one.")
def backup_newer(here: Here) -> Said:
    """A copy that the server saved when the state was replaced under it holds later events than the state has."""
    copies = lost.copies(here.home.database)
    if here.state is None or not copies or ".rescued-" not in copies[-1].name:
        return None
    try:
        saved = look.summary(copies[-1]).last_event or 0.0
    except Refused:
        return None  # backup_damaged says so
    if saved <= (here.state.last_event or 0.0):
        return None
    back = lost.restore(here.home.database, copies[-1])
    fix = f"With the server stopped, run `{back}`; or rename the copy when the state is the right one."
    return f"{copies[-1]} holds what was written before the state was replaced, and the state does not", fix


@check("warning", "Stop what writes them, or move them out of backups/.")
def backups_large(here: Here) -> Said:
    """Seven copies are kept; what else lies in backups/ nobody removes."""
    folder = here.home.backups
    if not present(folder) or not folder.is_dir():
        return None
    others: list[Sentence] = []
    strange = [each for each in folder.iterdir() if not each.name.startswith("state-")]
    size = sum(each.stat().st_size for each in strange if each.is_file())
    if size > GIB:
        others.append(f"{many(len(strange), 'other file')} in {folder} take {gib(size)}")
    return others
