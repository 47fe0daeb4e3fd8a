"""The files that survive the database: who this control plane is, its key, the pins, the token."""

from __future__ import annotations

from llmgw.config.files import LARGE
from llmgw.config.home import Identity
from llmgw.core.findings.rules import arg
from llmgw.errors import LlmgwError, Refused, UsageError
from llmgw.host.checks import Here, Said, check, fit, info, legible, present
from llmgw.pki import sshkey
from llmgw.ssh import embedded
from llmgw.ssh.identity import HostKeys, parse_public_key

SHORTEST_TOKEN = 16
RESTORE = "Put the right file back from a copy of the home."


def _identity(here: Here) -> Identity | None:
    """None where it is not there, or cannot be read. Raises UsageError for a damaged one."""
    return here.home.known_identity() if fit(here.home.identity_file) else None


@check("error", "Put it back from a copy of the home: nodes obey only the controller it names.")
def identity_missing(here: Here) -> Said:
    """The next start takes a new identity, and every node refuses to obey it."""
    path = here.home.identity_file
    if info(path, follow=False) is not None or not present(here.home.database):
        return None
    return f"{path} is missing, though there is a state: the next start takes a new identity"


@check("error", "Put it back from a copy of the home: nodes obey only the controller it names.")
def identity_damaged(here: Here) -> Said:
    """Who this control plane is cannot be read; a start is refused."""
    try:
        _identity(here)
    except UsageError as exc:
        return exc.message.rstrip(".")
    return None


@check(
    "warning", "Put the identity.json back that belongs to this state, or take the nodes over (node add --take-over)."
)
def identity_differs(here: Here) -> Said:
    """The state was written by another controller than identity.json names: the nodes may obey that one only."""
    if here.state is None or here.state.controller is None:
        return None
    try:
        identity = _identity(here)
    except UsageError:
        return None  # identity_damaged says so
    last = str(here.state.controller)
    if identity is None or identity.controller_id == last:
        return None
    return f"identity.json names controller {identity.controller_id[:8]}…, the state was last written by {last[:8]}…"


@check("error", RESTORE + " Without it every node has to be added again.")
def key_missing(here: Here) -> Said:
    """The next start makes a new key, which opens no node."""
    path = here.home.key
    nodes = here.state.nodes if here.state else None
    if info(path, follow=False) is not None or not nodes:
        return None
    return f"{path} is missing, and the state knows {nodes} nodes that let that key in"


@check("error", RESTORE)
def key_unusable(here: Here) -> Said:
    """The key to every node: others may use it, it belongs to somebody else, or it is no key; a start is refused."""
    try:
        if fit(here.home.key):
            sshkey.present_key(here.home.path)
    except Refused as exc:
        return exc.message.rstrip("."), exc.fix
    return None


@check("error", "Remove it: the next start makes a new one.")
def embedded_key_unusable(here: Here) -> Said:
    """The key that this machine shows when it is a node itself is none; a start is refused."""
    path = here.home.embedded_host_key
    if legible(path) is None:
        return None
    try:
        embedded._host_key(path)  # it makes one only where there is none
    except Refused as exc:
        return f"{path}: {exc.message.rstrip('.')}", f"rm {arg(str(path))}"
    return None


@check("note", "Nothing: the next start writes it again.")
def key_public_differs(here: Here) -> Said:
    """The public half beside the key is another one; whoever copied it onto a node is not let in."""
    path = here.home.key.with_suffix(".pub")
    public = legible(path)
    if public is None or not fit(here.home.key):
        return None
    try:
        line = sshkey.present_key(here.home.path)
    except Refused:
        return None  # key_unusable says so
    return None if public.split()[:2] == line.encode().split() else f"{path} is not the key's other half"


@check("error", RESTORE + " A line that is missing is pinned again by `llmgw node add`.")
def known_hosts_damaged(here: Here) -> Said:
    """The pins of the nodes' host keys cannot be read; a start is refused, or a node with a bad line stays down."""
    path = here.home.known_hosts
    text = legible(path, LARGE)
    if text is None:
        return None
    try:
        HostKeys(path)
        for number, line in enumerate(text.decode().splitlines(), 1):
            words = line.split()
            if words and not words[0].startswith("#"):
                try:
                    parse_public_key(" ".join(words[1:3]))
                except LlmgwError:
                    return f"{path}:{number} holds no key for {words[0][:60]}"
    except UnicodeDecodeError:
        return None  # files_unusable says so
    except LlmgwError as exc:
        return exc.message.rstrip(".")
    return None


@check("error", "Remove the file: the next start makes a new one.")
def token_weak(here: Here) -> Said:
    """The admin token opens every node to whoever knows it; a short one is guessed."""
    path = here.home.token
    token = legible(path)
    size = len(token.decode(errors="replace").strip()) if token is not None else 0
    if not size or size >= SHORTEST_TOKEN:
        return None  # of an empty one files_unusable says so
    return f"{path} holds {size} characters", f"Run `rm {arg(str(path))}`, then start the server again."
