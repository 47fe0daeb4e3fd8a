"""What the feed tells the application. Messages are the only way in: whatever arrives later may come from anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from llmgw.model.event import Event
from llmgw.model.requests import Whoami
from llmgw.model.snapshot import Snapshot


@dataclass
class Connected(Message):
    """A control plane answers, for the first time or again."""

    me: Whoami


@dataclass
class Pictured(Message):
    """A new picture of everything. `rate` is in requests a second; None until two pictures can be compared."""

    snapshot: Snapshot
    rate: float | None


@dataclass
class Happened(Message):
    """Events, oldest first. `anew`: these are of another history, forget the ones before."""

    events: tuple[Event, ...]
    anew: bool = False


@dataclass
class Lost(Message):
    """The control plane is not to be had just now. The feed goes on trying."""

    why: str
