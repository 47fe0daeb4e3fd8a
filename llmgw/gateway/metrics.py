"""Counters of the hot path and their Prometheus text. Plain dicts: a labelled client library is slower."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CANCELLED = 499
"""The status of a request whose client left: nobody ever sees it but the metrics."""


Gauge = tuple[str, str, dict[str, str], float]
"""Name, help, labels, value."""


@dataclass(slots=True)
class Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Metrics:
    """Labels are canonical model names from the route table only, so a client cannot make them grow."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], int] = {}
        self.first_byte: dict[str, Histogram] = {}
        self.tokens: dict[tuple[str, str], int] = {}
        self.retries = 0

    def answered(self, model: str, status: int) -> None:
        self.answers[model, status] = self.answers.get((model, status), 0) + 1

    def began(self, model: str, seconds: float) -> None:
        histogram = self.first_byte.get(model)
        if histogram is None:
            histogram = self.first_byte[model] = Histogram()
        histogram.add(seconds)

    def used(self, model: str, tokens: tuple[int, int]) -> None:
        for kind, count in zip(("prompt", "completion"), tokens, strict=True):
            if count:
                self.tokens[model, kind] = self.tokens.get((model, kind), 0) + count

    def render(self, gauges: Iterable[Gauge]) -> str:
        """The text format. `gauges` are (name, help, labels, value) of what is true right now."""
        return "\n".join([*self._counters(), *_gauges(gauges), ""])

    def _counters(self) -> Iterator[str]:
        yield from _head("llmgw_requests_total", "counter", "Requests by model and status; 499 is a client that left.")
        for (model, status), count in sorted(self.answers.items()):
            yield _line("llmgw_requests_total", {"model": model, "status": str(status)}, count)
        yield from _head("llmgw_tokens_total", "counter", "Tokens by model and kind, as the engines counted them.")
        for (model, kind), count in sorted(self.tokens.items()):
            yield _line("llmgw_tokens_total", {"model": model, "kind": kind}, count)
        yield from _head("llmgw_upstream_retries_total", "counter", "Requests sent again to another replica.")
        yield _line("llmgw_upstream_retries_total", {}, self.retries)
        name = "llmgw_first_byte_seconds"
        yield from _head(name, "histogram", "From the whole request to the first byte of the answer.")
        for model, histogram in sorted(self.first_byte.items()):
            below = 0
            for limit, count in zip((*map(str, BUCKETS), "+Inf"), histogram.counts, strict=True):
                below += count
                yield _line(f"{name}_bucket", {"model": model, "le": limit}, below)
            yield _line(f"{name}_sum", {"model": model}, histogram.total)
            yield _line(f"{name}_count", {"model": model}, below)


def _gauges(gauges: Iterable[Gauge]) -> Iterator[str]:
    seen = ""
    for name, text, labels, value in gauges:
        if name != seen:
            yield from _head(name, "gauge", text)
            seen = name
        yield _line(name, labels, value)


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
