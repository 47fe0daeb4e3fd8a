"""Weights: a file of the mirror, and how far its fetch has come."""

from __future__ import annotations

from enum import StrEnum

from llmgw.model.base import Record


class FetchState(StrEnum):
    ABSENT = "absent"
    FETCHING = "fetching"
    PRESENT = "present"
    FAILED = "failed"


class Weights(Record):
    """What the mirror knows of one source."""

    source: str
    state: FetchState = FetchState.ABSENT
    file: str | None = None
    sha256: str | None = None
    size: int | None = None
    done: int = 0
    """Bytes fetched so far."""
    error: str | None = None
    path: str | None = None
    """Where it lies on the control plane; None for a file that lies on the nodes already."""
    on_node: str | None = None
    """Where it lies on the nodes already (`node:`): used as found, never brought there."""

    @property
    def progress(self) -> float | None:
        if self.state is FetchState.PRESENT:
            return 1.0
        return self.done / self.size if self.size else None
