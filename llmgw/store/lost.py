"""Whether a state that is gone or empty is a first start, or one that was lost.

SQLite makes a database of whatever is not there, so a start would begin anew in silence where a disk, a restore or a
slip of the hand took the state away. It was evidently there when a copy of it is, when its log is, or when an empty
file lies beside an admin token, which is made only after something was kept. The other files of a home prove nothing:
they are meant to survive the state, and a start may have been killed right after it made them. Whoever wants to begin
anew says so by moving away what shows that there was something.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.files import plain
from llmgw.errors import Refused
from llmgw.store import disk, look


@dataclass(frozen=True)
class Loss:
    """A state that was there and is not."""

    message: str
    fix: str
    copy: Path | None
    """The newest sound copy."""

    def error(self) -> Refused:
        return Refused(f"{self.message}.", fix=f"Nothing was changed. {self.fix}", code="lost_state")


def found(path: Path) -> Loss | None:
    """What was lost, when it evidently was, and how to go on. None for a state that is there, or never was.

    Writes nothing. Raises Refused as `look.summary`: what is damaged is not lost, what cannot be told is not evident.
    """
    disk.kinds(path)  # a FIFO has no size either
    log = disk.log(path) is not disk.Log.NONE
    gone = not path.exists()
    if gone or disk.blank(path):
        shown = _shown(path, log=log, gone=gone)
    else:
        shown = None if look.summary(path).applied else _shown(path, log=False, gone=False)
    if shown is None:
        return None
    what = "is missing" if gone else "is empty" if disk.blank(path) else "has none of its tables"
    copy = next((each for each in reversed(copies(path)) if sound(each)), None)
    return Loss(f"{path} {what}, but {shown}: a start would begin with an empty state", _fix(path, copy, log), copy)


def copies(path: Path) -> list[Path]:
    """The copies of the database at `path`, the oldest first, sound or not."""
    return [each for each in sorted(_folder(path).glob("state-*.db")) if _filled(each)]


def sound(path: Path) -> bool:
    """Whether a copy passes SQLite's own check."""
    try:
        return look.complaint(path) is None
    except (OSError, Refused):
        return False


def restore(path: Path, copy: Path, *, keep_log: bool = False) -> str:
    """The command that puts a copy in the place of the database. A log that is not the copy's own would be merged into
    it; one that may hold what the copy lacks is kept beside."""
    wal, shm = (disk.beside(path, end) for end in ("wal", "shm"))
    away = f"mv {_arg(wal)} {_arg(wal)}.lost && rm -f {_arg(shm)}" if keep_log else f"rm -f {_arg(wal)} {_arg(shm)}"
    return f"{away} && cp {_arg(copy)} {_arg(path)}"


def _fix(path: Path, copy: Path | None, log: bool) -> str:
    folder, wal = _folder(path), disk.beside(path, "wal")
    steps = [f"mv {_arg(wal)} {_arg(wal)}.lost"] if log else []
    steps += [f"mv {_arg(folder)} {_arg(folder)}.old"] if copies(path) else []
    steps += [f"rm {_arg(path)}"] if path.exists() else []
    anew = f"`{' && '.join(steps)}`; `llmgw node add` adopts what runs"
    if copy is None:
        return f"There is no sound copy to restore. To begin anew: {anew}."
    return (
        f"With the server stopped, run `{restore(path, copy, keep_log=log)}`. To begin anew on purpose instead: {anew}."
    )


def _shown(path: Path, *, log: bool, gone: bool) -> str | None:
    """What shows that there was a state."""
    every = copies(path)
    if log:
        return f"its log {disk.beside(path, 'wal').name} is there"
    if every:
        return f"{every[-1].name} is a copy of what it held"
    # An operator may have put the token there himself, but nobody makes an empty state.db.
    if not gone and _filled(path.parent / "admin.token"):
        return "admin.token was made when there was a state"
    return None


def _folder(path: Path) -> Path:
    return path.parent / "backups"


def _filled(path: Path) -> bool:
    try:
        return plain(path).st_size > 0
    except (OSError, Refused):
        return False


def _arg(path: Path) -> str:
    return shlex.quote(str(path))
