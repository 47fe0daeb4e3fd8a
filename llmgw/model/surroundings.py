"""What the control plane itself measures or knows of a node, from outside. Times in seconds."""

from __future__ import annotations

from llmgw.model.base import Record


class Surroundings(Record):
    clock_skew: float | None = None
    """The node's clock less ours, at least so much: see `skew`."""
    round_trip: float | None = None
    noise: str = ""
    """What the login printed around the answer of a script."""
    refusal: str = ""
    """What the login said in place of running the first command, when it ran none."""
    forwarding: bool | None = None
    """Whether a direct-tcpip channel was granted; None where it was not tried."""
    sessions: int | None = None
    """How many sessions the server granted side by side, where a limit was met."""
    same_machine_id: tuple[str, ...] = ()
    """Other nodes that have the same machine id, and booted apart from it."""
    same_machine: tuple[str, ...] = ()
    """Other nodes that have the same machine id and the same boot id."""
    own_key: bool = True
    """False: none of our keys is to be left there (`--no-key`)."""
    key_line: str | None = None
    """The line of our key, where it is known."""
    fabrics: dict[str, tuple[str, ...]] = {}
    """Fabrics declared for this node: name → adapters, `mlx5_0` or `mlx5_0:1`."""


def skew(at: float, sent: float, received: float) -> float:
    """By how much a node's clock is off, in seconds, given that it read `at` between two moments of ours.

    0 when it may be right; what lies between sending and receiving is not held against it.
    """
    return at - sent if at < sent else at - received if at > received else 0.0
