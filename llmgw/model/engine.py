"""Engines: an inference server program of a version, and how far a node has come with it."""

from __future__ import annotations

from enum import StrEnum

from llmgw.model.base import Record


class InstallState(StrEnum):
    UNKNOWN = "unknown"
    QUEUED = "queued"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    UNPACKING = "unpacking"
    PACKAGES = "packages"
    CHECKING = "checking"
    INSTALLED = "installed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"


class NodeEngine(Record):
    """An engine on a node. Offered to placement only when `state` is `installed`."""

    node: str
    engine: str
    version: str
    build: str = ""
    state: InstallState = InstallState.UNKNOWN
    detail: str = ""
    path: str | None = None
    """Absolute directory (or program, for an engine named by path) on the node."""
    checked_at: float | None = None
    attempts: int = 0
    next_try_at: float | None = None
