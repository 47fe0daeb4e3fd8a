"""What a check of the control plane is: one thing that may be wrong here, how bad it is, and what mends it.

A check is a function over what was found out beforehand; it may also look at files itself. It answers with its
sentence, with the sentence and a fix that fits this machine, with several of them, or with None. What could not be
looked at is no finding of its own: the check raises, and the report says that it was not checked, and why.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from inspect import getdoc
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from llmgw.config.files import SMALL, plain, read_plain
from llmgw.config.home import Home
from llmgw.config.settings import Settings
from llmgw.core.findings.rules import Severity
from llmgw.errors import ConfigError, Refused
from llmgw.store.lease import Holder
from llmgw.store.look import Summary

T = TypeVar("T")
Sentence = str | tuple[str, str]
Said = Sentence | list[Sentence] | None


@dataclass(frozen=True)
class Place:
    """Something outside that is fetched from: `the package index` at its URL."""

    name: str
    url: str

    def __str__(self) -> str:
        """Without the password that an index's URL may hold."""
        parts = urlsplit(self.url)
        return f"{self.name} ({parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')})"


@dataclass(frozen=True)
class Answer:
    """What came of asking a place."""

    place: Place
    error: str | None = None
    untrusted: bool = False
    """It answered with a certificate that is not trusted here."""
    date: float | None = None
    """Its own idea of the time, Unix seconds, out of the answer's head."""
    asked: float = 0.0
    """When it was asked, by our clock."""


@dataclass(frozen=True)
class Server:
    """The control plane that answers on this home's socket, as it describes itself."""

    whoami: Mapping[str, Any]
    seconds: float
    """How long the quickest of its answers took."""
    snapshot: Mapping[str, Any] | None = None
    """None: it did not answer that, or in another form."""


@dataclass
class Here:
    """All that was found out before judging."""

    home: Home
    uid: int
    environ: Mapping[str, str]
    config: Path
    settings: Settings | None
    """None: the configuration cannot be read."""
    config_error: ConfigError | None = None
    server: Server | None = None
    server_error: str | None = None
    """Why nobody answers on the socket, when it is there."""
    held: bool | None = None
    """Whether a process holds the lease; None: it cannot be told."""
    held_by: int | None = None
    """That process."""
    recorded: Holder | None = None
    """Whom the lock's file names: the last one who took it."""
    state: Summary | None = None
    state_error: Exception | None = None
    """Why the database could not be read, when it is there."""
    answers: tuple[Answer, ...] = ()
    now: float = field(default_factory=time.time)

    @property
    def effective(self) -> Settings:
        """The configuration, or the defaults where it is damaged."""
        return self.settings or Settings()

    @property
    def sheltered(self) -> bool:
        """The configuration lies in a home that nobody else may enter."""
        found = info(self.home.path)
        return self.config.parent == self.home.path and found is not None and not found.st_mode & 0o077

    @property
    def mirror(self) -> Path:
        named = self.effective.mirror.dir
        return Path(named).expanduser() if named else self.home.mirror

    @property
    def used(self) -> bool:
        """Something has been started here before."""
        return present(self.home.database) or present(self.home.identity_file)

    @property
    def server_pid(self) -> int | None:
        return self.held_by if self.server is not None else None


@dataclass(frozen=True)
class Check:
    code: str
    severity: Severity
    means: str
    """Why it matters, in a sentence or two."""
    fix: str
    find: Callable[[Here], Said]

    @property
    def subject(self) -> str:
        return self.find.__module__.rpartition(".")[2]


CHECKS: list[Check] = []
"""Every check there is, in the order of the modules that hold them."""

Find = Callable[[Here], Said]


def check(severity: Severity, fix: str = "") -> Callable[[Find], Find]:
    """A check. The function's name is its code, its docstring says why it matters."""

    def register(find: Find) -> Find:
        means = " ".join((getdoc(find) or "").split("\n\n")[0].split())
        CHECKS.append(Check(find.__name__, severity, means, fix, find))
        return find

    return register


def aside(work: Callable[[], T]) -> Future[T]:
    """Does `work` in a thread that nobody has to wait for: a dead file server or name service may hold it for ever."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:
            future.set_exception(exc)

    Thread(target=run, daemon=True).start()
    return future


def info(path: Path, *, follow: bool = True) -> os.stat_result | None:
    """None where there is nothing of that name. Raises OSError for what cannot be looked at."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None


def present(path: Path) -> bool:
    return info(path) is not None


def fit(path: Path, most: int | None = SMALL) -> bool:
    """Whether there is a plain file of at most `most` bytes (None: of any size); files_unusable says what is none.
    Raises OSError for what cannot be looked at."""
    try:
        plain(path, most)
    except (FileNotFoundError, NotADirectoryError, Refused):
        return False
    return True


def legible(path: Path, most: int = SMALL) -> bytes | None:
    """What a file says; None where `fit` is false. Nothing else than a plain file is ever opened."""
    return read_plain(path, most) if fit(path, most) else None


def standing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.parents) if present(each))


def mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def loose(found: os.stat_result, uid: int) -> bool:
    """Whether others than its owner may write it. A group that bears the user's own number has nobody else in it."""
    return bool(found.st_mode & 0o002 or (found.st_mode & 0o020 and found.st_gid not in (0, uid)))


def span(seconds: float) -> str:
    """`4711` → `1 h 18 min`; the two largest units."""
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    rest, parts = int(seconds), []
    for size, name in units:
        if rest >= size:
            parts.append(f"{rest // size} {name}")
            rest %= size
    return " ".join(parts[:2]) or "0 s"


def many(count: int, one: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
