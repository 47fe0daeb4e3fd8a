"""What `engine.py list` says about the replicas on a node."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from llmgw.model.base import Report
from llmgw.model.replica import Process
from llmgw.model.secret import Secret


class Exit(Report):
    """How an engine ended: a status, or the number of the signal that ended it. Both None: nobody saw it end."""

    status: int | None = None
    signal: int | None = None
    at: float | None = None


class Listed(Report):
    """A replica's rank that has a manifest on the node, running or not."""

    replica: str
    rank: int = 0
    attempt: int
    manifest: dict[str, Any] = {}
    port: int | None = None
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str | None = None
    alive: bool
    exit: Exit | None = None
    rss: int | None = None
    key_env: dict[str, Secret] = {}
    log_tail: tuple[str, ...] = Field(default=(), max_length=500)
    oom: bool | None = None

    @property
    def process(self) -> Process | None:
        if self.pid is None or self.start_ticks is None or self.boot_id is None:
            return None
        return Process(boot_id=self.boot_id, pid=self.pid, start_ticks=self.start_ticks)


class Stray(Report):
    """A process that carries our tag and that no manifest names."""

    pid: int
    start_ticks: int
    replica: str | None = None
    rank: int | None = None
    attempt: int | None = None
    cluster: str | None = None
    rss: int | None = None


class Listing(Report):
    boot_id: str
    now: float
    replicas: tuple[Listed, ...] = Field(default=(), max_length=4096)
    strays: tuple[Stray, ...] = Field(default=(), max_length=4096)
