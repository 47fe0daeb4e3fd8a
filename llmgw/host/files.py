"""The files of the home as files: what they are, and who may use them."""

from __future__ import annotations

import os
import stat

from llmgw.core.findings.rules import arg, listed
from llmgw.host.checks import Here, Said, check, fit, info, mode, present


@check("error", "Move it away, and put the file itself there.")
def files_unusable(here: Here) -> Said:
    """What bears the name of a file of the home is a FIFO, a directory, a link to nowhere, far too large, empty or
    no text; a start is refused."""
    if not present(here.home.path):
        return None
    if not os.access(here.home.path, os.X_OK):
        raise PermissionError("Permission denied")
    return [(exc.message.rstrip("."), exc.fix) for exc in here.home.strangers()]


@check("warning", "Take them from others with `chmod 600`.")
def files_open(here: Here) -> Said:
    """Files of the home that others may read or write, should they ever get into it or into a copy of it."""
    home = here.home
    names = (home.token, home.database, home.known_hosts, home.identity_file, home.socket, home.lock)
    loose = []
    for path in names:
        found = info(path, follow=False)
        wrong = 0o022 if path == home.identity_file or path == home.known_hosts else 0o077
        kind = stat.S_IFMT(found.st_mode) if found is not None else None
        if found is not None and kind in (stat.S_IFREG, stat.S_IFSOCK) and found.st_mode & wrong:
            loose.append((path, mode(found)))
    if not loose:
        return None
    fix = "chmod 600 " + " ".join(arg(str(path)) for path, _ in loose)
    return f"others may use {listed(f'{path.name} (mode {bits})' for path, bits in loose)} in {home.path}", fix


@check("error", "Put the file itself there.")
def files_linked(here: Here) -> Said:
    """A link where a file of the home should be: locks and replacing by rename do not work through it."""
    home = here.home
    names = (home.database, home.lock, home.token, home.known_hosts, home.key)
    linked = [
        path.name
        for path in names
        if (found := info(path, follow=False)) and stat.S_ISLNK(found.st_mode) and fit(path, None)
    ]
    return f"{listed(linked)} in {home.path} are links" if linked else None
