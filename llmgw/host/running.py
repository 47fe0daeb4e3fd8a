"""The control plane that runs, by its own word: its version, its nodes, its replicas. And what starts it at a boot."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmgw import __version__
from llmgw.core.findings.rules import listed, quoted
from llmgw.host import processes
from llmgw.host.checks import Here, Said, Sentence, check, legible, many, present, span
from llmgw.host.leases import SERVER

SLOW = 0.25
"""Seconds for an answer to a question that needs no thought, at best of a few."""
CROWDED = 0.8
SYSTEMD = Path("/run/systemd/system")
UNITS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
USER_UNITS = ("~/.config/systemd/user", "/etc/systemd/user")


def _list(here: Here, name: str) -> list[Mapping[str, Any]]:
    """A list of the snapshot; empty where the server is of a version that has no such list."""
    found = here.server.snapshot.get(name) if here.server and here.server.snapshot else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


@check("note", "llmgw server run")
def server_down(here: Here) -> Said:
    """Nobody serves: engines go on running, requests are not answered, nothing is repaired."""
    if here.server is not None or here.held or not here.used:
        return None
    return f"no control plane runs in {here.home.path}"


@check("error", "See its log; end it (`kill PID`) and start it again: engines go on running.")
def server_silent(here: Here) -> Said:
    """A server holds the lease and does not answer on its socket: it hangs, or the socket was removed under it."""
    holder = here.recorded
    if here.server is not None or not here.held or holder is None or holder.purpose != SERVER:
        return None
    pid = here.held_by or holder.pid
    young = (begun := processes.started(pid)) is not None and here.now - begun < 15 if pid else False
    if young and not present(here.home.socket):
        return None  # it is starting
    why = here.server_error or f"{here.home.socket.name} is not there"
    fix = f"Run `kill {pid}`, then start it again: engines go on running."
    return f"pid {pid} holds the lease ({SERVER}), but does not answer: {why}", fix


@check("warning", "Start the server again: engines go on running.")
def server_other_version(here: Here) -> Said:
    """Commands and server are of different versions: the server is still the one from before an upgrade."""
    said = here.server.whoami.get("version") if here.server else None
    return f"the server is llmgw {said}, this command {__version__}" if said not in (None, __version__) else None


@check("warning", "See what the machine is busy with (top), and the server's log with -v.")
def server_slow(here: Here) -> Said:
    """Its event loop is busy: every request and every token waits for it as long as this answer did."""
    if here.server is None or here.server.seconds < SLOW:
        return None
    return f"the server took {here.server.seconds * 1000:.0f} ms to say who it is"


@check("warning", "Raise LimitNOFILE of its unit, or ulimit -Hn.")
def server_files(here: Here) -> Said:
    """Each client, node and file is a descriptor; at the limit new requests are refused."""
    found = processes.files(here.server_pid) if here.server_pid else None
    if found is None or found[0] < CROWDED * found[1]:
        return None
    return f"the server has {found[0]} of {found[1]} possible files open"


@check("warning", "`llmgw node show NODE` says why; `llmgw node check NODE` looks it over.")
def nodes_down(here: Here) -> Said:
    """Nodes without a connection: their engines may run, no request reaches them."""
    nodes = _list(here, "nodes")
    down = [node for node in nodes if node.get("link") == "down" and not node.get("quarantined")]
    if not down:
        return None
    first = down[0].get("link_error")
    why = f"; {down[0].get('id')}: {quoted(str(first), 120)}" if first else ""
    return f"{len(down)} of {many(len(nodes), 'node')} are down: {listed(node.get('id') for node in down)}{why}"


@check("warning", "See `llmgw node show NODE`; if the new key is right: `llmgw node add HOST --trust-key SHA256:…`.")
def nodes_quarantined(here: Here) -> Said:
    """Nodes whose host key or machine changed: nothing is sent to them until somebody says that it is meant so."""
    found = [str(node.get("id")) for node in _list(here, "nodes") if node.get("quarantined")]
    if here.server is None and here.state is not None:
        found = list(here.state.quarantined)
    return f"{many(len(found), 'node')} quarantined: {listed(found)}" if found else None


@check("warning", "llmgw node check NODE")
def nodes_with_errors(here: Here) -> Said:
    """Nodes that a finding keeps from serving: nothing new is placed there."""
    found = []
    for node in _list(here, "nodes"):
        codes = [each["code"] for each in node.get("problems") or () if each.get("severity") == "error"]
        if codes:
            found.append(f"{node.get('id')} ({listed(codes)})")
    return f"{many(len(found), 'node')} cannot serve: {listed(found)}" if found else None


@check("warning", "Read `llmgw ctl logs REPLICA` and `llmgw ctl events`.")
def replicas_failed(here: Here) -> Said:
    """Replicas that were given up for now."""
    replicas = _list(here, "replicas")
    failed = [each for each in replicas if each.get("state") == "failed"]
    if not failed:
        return None
    names = listed(each.get("id") for each in failed)
    why = quoted(str(failed[0].get("reason") or ""), 120)
    return f"{len(failed)} of {many(len(replicas), 'replica')} failed: {names}" + (f"; {why}" if why else "")


@check("warning", "`llmgw ctl models` says why.")
def models_unserved(here: Here) -> Said:
    """Models that are wanted and of which no replica is ready nor on its way."""
    found = [each for each in _list(here, "status") if each.get("wanted") and each.get("state") == "unplaceable"]
    if not found:
        return None
    why = quoted(str(found[0].get("reason") or ""), 120)
    return f"no node takes {listed(each.get('model') for each in found)}" + (f": {why}" if why else "")


def _units(here: Here) -> Iterator[tuple[Path, str]]:
    """Unit files that start `llmgw server run`, with their text."""
    user = Path(here.environ.get("HOME") or "~").expanduser()
    for place in (*UNITS, *USER_UNITS):
        folder = Path(place.replace("~", str(user)))
        for path in sorted(folder.glob("*llmgw*.service")) if present(folder) else ():
            text = (legible(path) or b"").decode(errors="replace")
            if "server run" in text:
                yield path, text


@check("note", "Write a unit that runs `llmgw server run`, and enable it.")
def unit_missing(here: Here) -> Said:
    """Nothing starts the control plane after a boot."""
    if not here.used or not present(SYSTEMD) or next(_units(here), None) is not None:
        return None
    return "no systemd unit starts `llmgw server run`: nobody serves after the next boot"


@check("warning", "Have systemd start it: `systemctl enable UNIT`.")
def unit_disabled(here: Here) -> Said:
    """There is a unit, but no target wants it: nothing starts the control plane after a boot."""
    found: list[Sentence] = []
    for path, text in _units(here) if present(SYSTEMD) else ():
        wanted = re.findall(r"^(?:WantedBy|RequiredBy)=(.+)$", text, re.M)
        targets = [target for words in wanted for target in words.split()]
        roots = {Path("/etc/systemd/system"), path.parent}
        links = [root / f"{target}.{kind}" / path.name for root in roots for target in targets for kind in _KINDS]
        if not any(link.is_symlink() for link in links):
            user = "--user " if "/user" in str(path.parent) else ""
            found.append((f"{path} is not enabled", f"systemctl {user}enable {path.stem}"))
    return found


_KINDS = ("wants", "requires")


@check("warning", "Correct its ExecStart, then `systemctl daemon-reload`.")
def unit_broken(here: Here) -> Said:
    """The program that the unit starts is not there any more: a virtual environment that was moved."""
    found: list[Sentence] = []
    for path, text in _units(here):
        for line in re.findall(r"^ExecStart=[-@:+!]*(\S.*)$", text, re.M):
            try:
                program = shlex.split(line)[0]
            except (ValueError, IndexError):
                continue
            if program.startswith("/") and not present(Path(program)):
                fix = f"Correct {path}, then `systemctl daemon-reload`."
                found.append((f"{path} starts {program}, which does not exist", fix))
    return found


def described(here: Here) -> str:
    """Who runs, in a line: `llmgw 0.1.0, pid 4711, up for 3 h 2 min, 4 nodes`."""
    if here.server is None:
        return "no control plane runs"
    words = [f"llmgw {here.server.whoami.get('version')}"]
    if pid := here.server_pid:
        begun = processes.started(pid)
        words += [f"pid {pid}"] + ([f"up for {span(here.now - begun)}"] if begun else [])
    if here.server.snapshot is not None:
        words.append(many(len(_list(here, "nodes")), "node"))
    return ", ".join(words) + f"; it answers in {here.server.seconds * 1000:.1f} ms"
