"""Requests a second, from the counters that a snapshot carries."""

from __future__ import annotations

from collections import deque

from llmgw.model.snapshot import Snapshot

WINDOW = 5.0


class Rate:
    """Pictures come at uneven moments, after each event too: the rate is taken over a few seconds, not between two."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._total = 0
        self._marks: deque[tuple[float, int]] = deque()

    def of(self, snapshot: Snapshot) -> float | None:
        """The rate with this picture taken in; None when there is nothing to compare it with."""
        if self._marks:
            # A counter that is lower than before began anew with its control plane: all it has is new.
            for replica, count in snapshot.served.items():
                before = self._served.get(replica, 0)
                self._total += count - before if count >= before else count
            if snapshot.at <= self._marks[-1][0]:
                self._marks.clear()
        self._served = snapshot.served
        self._marks.append((snapshot.at, self._total))
        while len(self._marks) > 2 and self._marks[1][0] <= snapshot.at - WINDOW:
            self._marks.popleft()
        first_at, first = self._marks[0]
        if snapshot.at <= first_at:
            return None
        return (self._total - first) / (snapshot.at - first_at)
