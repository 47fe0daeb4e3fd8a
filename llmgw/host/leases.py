"""Who may write the state."""

from __future__ import annotations

from llmgw.config.home import host_name
from llmgw.host import processes
from llmgw.host.checks import Here, Said, check, present

SERVER = "server run"


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
