"""Who adds a node, what they want, and what they can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llmgw.core.fabric import Group
from llmgw.core.remedies import Remedy
from llmgw.model.node import ENGINE_PORTS, NodeOptions, Problem
from llmgw.model.secret import Secret


class Say(Protocol):
    """Tells of a step."""

    async def __call__(self, step: str, text: str, **more: Any) -> None: ...


class Operator(Protocol):
    """Who adds the node: a person in front of a terminal, or what was said on the command line."""

    async def say(self, step: str, text: str, **more: Any) -> None:
        """Told of every step, in a sentence."""

    async def trust(self, host: str, key: str, fingerprint: str) -> bool:
        """Whether a host key that nobody knows yet is to be pinned."""

    async def go_on(self, problems: Sequence[Problem]) -> bool:
        """Whether to add a node in spite of these errors."""

    async def mend(self, remedy: Remedy) -> bool:
        """Whether to run a remedy as root on the node."""

    async def password(self, remedy: Remedy, why: str) -> Secret | None:
        """The password of sudo there; None where nobody answers. `why` says whose it is."""

    async def fabrics(self, found: Sequence[Group]) -> dict[str, tuple[str, ...]]:
        """Name of a fabric → adapters, for the groups that are on one."""


@dataclass(frozen=True)
class Wish:
    """What the operator typed after `node add`."""

    target: str
    name: str | None = None
    options: NodeOptions = field(default_factory=NodeOptions)
    labels: dict[str, str] = field(default_factory=dict)
    fingerprint: str | None = None
    """The host key to expect; goes before whatever any file holds."""
    trust_key: bool = False
    """It is a changed key, and the operator accepts it."""
    take_over: bool = False
    mend: bool = False
    """Take every remedy there is, unasked."""
    wait: float | None = None
    """Seconds to wait for sshd. None: not for the first answer, and three minutes for one that was there before."""
    ports: tuple[int, int] = ENGINE_PORTS
    by: str | None = None
    pins: Path | None = None
    """The control plane's own known_hosts: a node that is added again must show the key it has shown before."""
