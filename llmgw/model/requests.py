"""What the admin API takes and gives besides the records themselves; openapi.json comes from these types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from llmgw.model.base import HIGHEST_TERM, Name, Record
from llmgw.model.engine import NodeEngine
from llmgw.model.event import Audit, Event
from llmgw.model.key import ApiKey
from llmgw.model.node import Address, Node, NodeOptions, Problem, as_said


class Step(Record):
    """A step of a first contact, as it was told."""

    step: str
    message: str


class Join(Record):
    """A node that first contact has been made with."""

    name: Name | None = None
    """None: the machine's hostname."""
    address: Address
    host_key: str = ""
    hostname: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    options: Annotated[NodeOptions, AfterValidator(as_said)] = NodeOptions()
    labels: dict[str, str] = {}
    created: tuple[str, ...] = ()
    """Paths that first contact created on the node, for its trace."""
    take_over: bool = False
    trust_key: bool = False
    """The operator accepts the host key it shows now in place of the pinned one."""
    by: str | None = None
    """Whose command this is: `pid 4711 of root on ctl`."""
    story: tuple[Step, ...] = ()
    """How first contact went, for the events."""
    owner_term: int | None = Field(default=None, ge=0, le=HIGHEST_TERM)
    """The term that the node has obeyed, when it was somebody's: taking it over takes a higher one."""


class Joined(Record):
    node: Node
    known: bool
    """It was a node already; it is looked at again."""
    moved_from: Address | None = None
    """Where it was reached until now, where that has changed."""
    adding_by: str | None = None
    """Another `node add` that is under way for the same node."""
    after_event: int
    """Follow events from here to see it become ready."""


class Whoami(Record):
    """What a first contact needs to know of the control plane, and what a face shows of it."""

    version: str
    cluster_id: str
    controller_id: str
    term: int
    public_key: str
    key_line: str
    listen: str | None
    """Where the inference endpoint listens; None when only this command runs."""
    admin_listen: str | None


class SshSetting(Record):
    """One setting of the way to a node, by OpenSSH's own name, and where it comes from."""

    name: str
    value: str
    source: str


class NodeDetail(Record):
    node: Node
    engines: tuple[NodeEngine, ...]
    probe: dict[str, Any] | None
    """The latest document, whole."""
    ssh: tuple[SshSetting, ...] = ()
    """How it is reached."""
    data_path: str | None = None
    """How requests travel: `direct-tcpip`, or `relay` where its server forwards nothing; None while it is down."""


class Checked(Record):
    """A look over a node that changed nothing."""

    node: Name
    problems: tuple[Problem, ...]
    """The worst first."""


class NewKey(Record):
    name: Name
    models: tuple[str, ...] = ()


class MadeKey(Record):
    key: ApiKey
    secret: str
    """Shown this once."""


class Logs(Record):
    replica: str
    lines: tuple[str, ...]


class EventList(Record):
    events: tuple[Event, ...]


class AuditList(Record):
    audit: tuple[Audit, ...]


class KeyList(Record):
    keys: tuple[ApiKey, ...]
    usage: tuple[dict[str, Any], ...] = ()


class Said(Record):
    """A sentence about what was done, and whether anything had to be."""

    message: str
    changed: bool = True


class Removal(Record):
    message: str
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
