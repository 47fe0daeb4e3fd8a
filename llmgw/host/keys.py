"""The files that survive the database: who this control plane is, its key, the pins, the token."""

from __future__ import annotations

import json
import stat

from llmgw.core.findings.rules import arg, listed
from llmgw.errors import LlmgwError, Refused
from llmgw.host.checks import Here, Said, check, info, mode, present
from llmgw.pki import sshkey
from llmgw.ssh.identity import HostKeys, parse_public_key

SHORTEST_TOKEN = 16
RESTORE = "Put the right file back from a copy of the home."


@check("error", "Put it back from a copy of the home: nodes obey only the controller it names.")
def identity_missing(here: Here) -> Said:
    """The next start takes a new identity, and every node refuses to obey it."""
    path = here.home.path / "identity.json"
    if present(path) or not present(here.home.database):
        return None
    return f"{path} is missing, though there is a state: the next start takes a new identity"


@check("error", "Put it back from a copy of the home: nodes obey only the controller it names.")
def identity_damaged(here: Here) -> Said:
    """Who this control plane is cannot be read; a start is refused."""
    path = here.home.path / "identity.json"
    if not present(path):
        return None
    try:
        body = json.loads(path.read_text())
        good = bool(body["cluster_id"]) and bool(body["controller_id"])
    except (ValueError, KeyError, TypeError):
        good = False
    return None if good else f"{path} is damaged"


@check(
    "warning", "Put the identity.json back that belongs to this state, or take the nodes over (node add --take-over)."
)
def identity_differs(here: Here) -> Said:
    """The state was written by another controller than identity.json names: the nodes may obey that one only."""
    if here.state is None or here.state.controller is None:
        return None
    try:
        named = str(json.loads((here.home.path / "identity.json").read_text())["controller_id"])
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        return None  # identity_damaged and identity_missing say so
    last = here.state.controller
    return (
        f"identity.json names controller {named[:8]}…, the state was last written by {last[:8]}…"
        if named != last
        else None
    )


@check("error", RESTORE + " Without it every node has to be added again.")
def key_missing(here: Here) -> Said:
    """The next start makes a new key, which opens no node."""
    path = here.home.path / sshkey.NAME
    nodes = here.state.nodes if here.state else None
    if info(path, follow=False) is not None or not nodes:
        return None
    return f"{path} is missing, and the state knows {nodes} nodes that let that key in"


@check("error", RESTORE)
def key_unusable(here: Here) -> Said:
    """The key to every node: others may use it, it belongs to somebody else, or it is no key; a start is refused."""
    try:
        sshkey.present_key(here.home.path)
    except FileNotFoundError:
        return None
    except Refused as exc:
        return exc.message.rstrip("."), exc.fix
    return None


@check("note", "Nothing: the next start writes it again.")
def key_public_differs(here: Here) -> Said:
    """The public half beside the key is another one; whoever copied it onto a node is not let in."""
    path = (here.home.path / sshkey.NAME).with_suffix(".pub")
    if not present(path):
        return None
    try:
        line = sshkey.present_key(here.home.path)
    except (FileNotFoundError, Refused):
        return None
    return (
        None if path.read_text(errors="replace").split()[:2] == line.split() else f"{path} is not the key's other half"
    )


@check("error", RESTORE + " A line that is missing is pinned again by `llmgw node add`.")
def known_hosts_damaged(here: Here) -> Said:
    """The pins of the nodes' host keys cannot be read; a start is refused, or a node with a bad line stays down."""
    path = here.home.known_hosts
    if not present(path):
        return None
    try:
        HostKeys(path)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split()
            if words and not words[0].startswith("#"):
                try:
                    parse_public_key(" ".join(words[1:3]))
                except LlmgwError:
                    return f"{path}:{number} holds no key for {words[0][:60]}"
    except UnicodeDecodeError:
        return f"{path} is no text"
    except LlmgwError as exc:
        return exc.message.rstrip(".")
    return None


@check("error", "Remove the file: the next start makes a new one.")
def token_weak(here: Here) -> Said:
    """The admin token opens every node to whoever knows it; an empty or short one is guessed."""
    path = here.home.token
    if not present(path):
        return None
    size = len(path.read_text(errors="replace").strip())
    if size >= SHORTEST_TOKEN:
        return None
    return f"{path} holds {size} characters", f"Run `rm {arg(str(path))}`, then start the server again."


@check("warning", "Take them from others with `chmod 600`.")
def files_open(here: Here) -> Said:
    """Files of the home that others may read or write, should they ever get into it or into a copy of it."""
    home = here.home
    names = (home.token, home.database, home.known_hosts, home.path / "identity.json", home.socket, home.lock)
    loose = []
    for path in names:
        found = info(path, follow=False)
        wrong = 0o022 if path == home.path / "identity.json" or path == home.known_hosts else 0o077
        if found is not None and not stat.S_ISLNK(found.st_mode) and found.st_mode & wrong:
            loose.append((path, mode(found)))
    if not loose:
        return None
    fix = "chmod 600 " + " ".join(arg(str(path)) for path, _ in loose)
    return f"others may use {listed(f'{path.name} (mode {bits})' for path, bits in loose)} in {home.path}", fix


@check("error", "Put the file itself there.")
def files_linked(here: Here) -> Said:
    """A link where a file of the home should be: locks and replacing by rename do not work through it."""
    home = here.home
    names = (home.database, home.lock, home.token, home.known_hosts, home.path / sshkey.NAME)
    linked = [path.name for path in names if (found := info(path, follow=False)) and stat.S_ISLNK(found.st_mode)]
    return f"{listed(linked)} in {home.path} are links" if linked else None
