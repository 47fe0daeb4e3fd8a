"""A node: a machine reached over SSH, and what is known and wanted of it."""

from __future__ import annotations

import posixpath
import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from llmgw.model.base import Name, Record


class NodeState(StrEnum):
    ADDING = "adding"
    READY = "ready"


class LinkState(StrEnum):
    UP = "up"
    DOWN = "down"


class DrainState(StrEnum):
    NONE = "none"
    DRAINING = "draining"
    DRAINED = "drained"


ENGINE_PORTS = (41000, 41999)
"""On each node, both ends included: where engines listen when the configuration says nothing else."""

_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(:[0-9]{1,3})?")
_PLAIN = re.compile(r"[^\x00-\x20\x7f]{1,255}")


def _plain(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is no name: 1 to 255 characters without spaces and control characters")
    return value


def _absolute(value: str | None) -> str | None:
    if value is not None and (
        not value.startswith("/") or posixpath.normpath(value) != value or not value.isprintable()
    ):
        raise ValueError(f"{value[:80]!r} is no absolute path in its plain form")
    return value


def _fabric(value: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [one for one in value if not _ADAPTER.fullmatch(one)]
    if wrong or not value:
        raise ValueError(f"{(wrong or ['nothing'])[0]!r} is no adapter: as `ibstat -l` lists them, mlx5_0 or mlx5_0:1")
    return value


def _path(value: str) -> str:
    found = _absolute(value)
    assert found is not None
    return found


Plain = Annotated[str, AfterValidator(_plain)]
PlainPath = Annotated[str | None, AfterValidator(_absolute)]
EnginePath = Annotated[str, AfterValidator(_path)]
Adapters = Annotated[tuple[str, ...], AfterValidator(_fabric)]


class Address(Record):
    """Where and as whom a node is reached. `host` is `local` for the embedded server of this machine.

    `config_host` is the name to look up in the operator's OpenSSH configuration, when it differs from `host`.
    """

    host: Plain
    port: int = Field(default=22, ge=1, le=65535)
    user: Plain
    config_host: str | None = None

    @property
    def is_local(self) -> bool:
        return self.host == "local"

    @property
    def typed(self) -> str:
        """What to type for it after `llmgw node add`: by its name in the OpenSSH configuration, where it has one."""
        if self.config_host is None:
            return str(self)
        return f"{self.user}@{self.config_host}" + ("" if self.port == 22 else f":{self.port}")

    def __str__(self) -> str:
        if self.is_local:
            return "local"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" + ("" if self.port == 22 else f":{self.port}")


class NodeOptions(Record):
    """What the operator said about a node with `node add` or `node set`. Stored per node, shown by `node show`."""

    root: PlainPath = None
    """Directory on the node; None means `~/.local/share/llmgw`."""
    nvidia_smi: PlainPath = None
    ib_root: PlainPath = None
    engines: dict[str, str] = {}
    """Engines named by path on purpose: `{"llamacpp": "/opt/llama.cpp/bin/llama-server"}`."""
    fabrics: dict[str, tuple[str, ...]] = {}
    """Name of a fabric → this node's adapters on it: `{"ib0": ("mlx5_0", "mlx5_1")}`."""
    despite: tuple[str, ...] = ()
    """Codes of errors that the operator has accepted: they count as warnings."""
    own_key: bool = True
    """False: the control plane's key was not left there; it comes with the operator's keys, as this user's ssh does."""
    identities: tuple[str, ...] = ()
    """Private keys named for that; without them those of the OpenSSH configuration and the agent."""


class SaidOptions(NodeOptions):
    """The same as somebody says it now, and checked as such. What is stored is read without: its rules were older."""

    engines: dict[str, EnginePath] = {}
    fabrics: dict[Name, Adapters] = {}


def as_said(options: NodeOptions) -> NodeOptions:
    """The same. Raises ValueError for what nobody can mean."""
    SaidOptions.model_validate(options.model_dump())
    return options


class Problem(Record):
    """A finding about a node, in sentences. Which there are: `core/findings/`."""

    code: str
    severity: Literal["note", "warning", "error"] = "warning"
    """`error`: the node cannot serve, nothing new is placed there. `warning`: it serves, but worse or at a risk.
    `note`: worth knowing."""
    message: str
    fix: str = ""


class Node(Record):
    id: Name
    address: Address
    host_key: str
    """The pinned public key, OpenSSH format without comment; empty for `local`."""
    options: NodeOptions = NodeOptions()
    labels: dict[str, str] = {}
    state: NodeState = NodeState.ADDING
    cordoned: bool = False
    cordoned_before_drain: bool = False
    drain: DrainState = DrainState.NONE
    link: LinkState = LinkState.DOWN
    link_since: float | None = None
    """Unix seconds since when the link is what it is; None before the first connection."""
    link_error: str | None = None
    quarantined: str | None = None
    """Why nothing is sent to this node any more: its host key or machine changed. None when it is trusted."""
    problems: tuple[Problem, ...] = ()
    machine_id: str | None = None
    boot_id: str | None = None
    root: str | None = None
    """The absolute root directory on the node, as the node resolved it."""
    python: str | None = None
    """The interpreter the node's ladder found, absolute."""
    created: tuple[str, ...] = ()
    """What first contact created on the node (`~/.ssh`), for the node's own trace of what purge has to undo."""
    adding_by: str | None = None
    """Whose `node add` brought it here, until it is ready: `pid 4711 of root on ctl`."""
    added_at: float = 0.0
    seen_at: float | None = None
    probed_at: float | None = None

    @property
    def reachable(self) -> bool:
        """It is connected and trusted: it can be asked, and requests may go there."""
        return self.link is LinkState.UP and not self.quarantined
