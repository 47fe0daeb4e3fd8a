"""What each key used of each model, counted in memory. The hot path never touches the database."""

from __future__ import annotations

from enum import IntEnum

from llmgw.model.usage import UsageRow


class Outcome(IntEnum):
    """How a request ended; the values are the columns they count in."""

    ANSWERED = 0
    CANCELLED = 3
    FAILED = 4


class Usage:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[int]] = {}

    def add(self, key: str, model: str, tokens: tuple[int, int], outcome: Outcome) -> None:
        row = self._rows.get((key, model))
        if row is None:
            row = self._rows[key, model] = [0, 0, 0, 0, 0]
        row[0] += 1
        row[1] += tokens[0]
        row[2] += tokens[1]
        if outcome:
            row[outcome] += 1

    def take(self) -> list[UsageRow]:
        """Everything counted since the last call. Whoever takes it answers for it."""
        rows, self._rows = self._rows, {}
        return [
            UsageRow(
                key=key,
                model=model,
                requests=row[0],
                prompt_tokens=row[1],
                completion_tokens=row[2],
                cancelled=row[3],
                failed=row[4],
            )
            for (key, model), row in rows.items()
        ]
