"""What the gateway costs: CPU a request and a streamed chunk, beside others in front of the same engine.

Absolute times on a shared machine mean little, so every proxy is measured in each of several rounds, in turn, and the
median is shown with its ratio to vllm-router and nginx of the same run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import proxies
from tests.bench.proxies import KEY, Missing, Proxy

Start = Callable[[int, Path], AbstractContextManager[Proxy]]


@dataclass
class Plan:
    rounds: int = 3
    seconds: float = 5.0
    warmup: float = 1.0
    connections: int = 32
    streams: tuple[int, ...] = (1, 100, 500)


@dataclass
class Result:
    name: str
    missing: str = ""
    request_us: list[float] = field(default_factory=list)
    requests_s: list[float] = field(default_factory=list)
    chunk_us: dict[int, list[float]] = field(default_factory=dict)
    first_ms: list[float] = field(default_factory=list)


def load(mode: str, proxy: Proxy, plan: Plan, connections: int) -> dict:
    job = {
        "mode": mode, "port": proxy.port, "pids": proxy.pids, "key": KEY, "model": "bench",
        "connections": connections, "seconds": plan.seconds, "warmup": plan.warmup,
    }  # fmt: skip
    done = subprocess.run(proxies.module("load", job), capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    if result["failed"]:
        raise RuntimeError(f"{proxy.name}: {result['failed']} {mode} failed: {result.get('why')}")
    return result


def measure(start: Start, engine: int, plan: Plan, result: Result) -> None:
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as scratch, start(engine, Path(scratch)) as proxy:
        result.name = proxy.name
        plain = load("requests", proxy, plan, plan.connections)
        result.request_us.append(plain["cpu"] / plain["count"] * 1e6)
        result.requests_s.append(plain["count"] / plain["seconds"])
        for streams in plan.streams:
            chunks = load("streams", proxy, plan, streams)
            result.chunk_us.setdefault(streams, []).append(chunks["cpu"] / chunks["count"] * 1e6)
        result.first_ms.append(load("first", proxy, plan, 200)["p50"] * 1e3)


def run(plan: Plan, *, only: Sequence[str] = ("",)) -> str:
    """The report's section."""
    chosen = [start for start in proxies.PROXIES if any(word in start.__name__ for word in only)]
    results = {start: Result(start.__name__) for start in chosen}
    with proxies.engine() as engine:
        for number in range(plan.rounds):
            for start, result in results.items():
                print(f"round {number + 1} of {plan.rounds}: {result.name}", file=sys.stderr)
                try:
                    measure(start, engine, plan, result)
                except Missing as exc:
                    result.missing = str(exc)
    return section(table(list(results.values()), plan), plan)


def table(results: list[Result], plan: Plan) -> str:
    head = ["", "µs a request", *(f"µs a chunk, {_streams(n)}" for n in plan.streams), "requests/s", "first event, ms"]
    rows = [head, ["---"] * len(head)]
    for result in results:
        if result.missing:
            rows.append([result.name, f"not measured: {result.missing}", *[""] * (len(head) - 2)])
            continue
        middle = statistics.median
        cells = [f"{middle(result.request_us):.0f}", *(f"{middle(result.chunk_us[n]):.0f}" for n in plan.streams)]
        rows.append([result.name, *cells, f"{middle(result.requests_s):.0f}", f"{middle(result.first_ms):.2f}"])
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return text + "\n\n" + "\n".join(ratios(results, plan))


def ratios(results: list[Result], plan: Plan) -> list[str]:
    known = {result.name.split()[0] if "llmgw" not in result.name else result.name: result for result in results}
    middle, lines = statistics.median, []
    pairs = [("llmgw over TCP", "vllm-router"), ("llmgw over TCP", "nginx"), ("llmgw over SSH", "llmgw over TCP")]
    for ours, theirs in pairs:
        a, b = known.get(ours), known.get(theirs)
        if a is None or b is None or a.missing or b.missing:
            continue
        request = middle(a.request_us) / middle(b.request_us)
        chunks = ", ".join(
            f"{middle(a.chunk_us[n]) / middle(b.chunk_us[n]):.2f} at {_streams(n)}" for n in plan.streams
        )
        lines.append(f"- {ours} to {theirs}: a request {request:.2f}, a chunk {chunks}.")
    return lines


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def section(text: str, plan: Plan) -> str:
    return f"""## The gateway

CPU time of the proxy's own processes, user and system, all threads; median of {plan.rounds} rounds of
{plan.seconds:g} s. Everything runs on one machine in front of the same engine, which answers at once. A request is a
chat completion with an answer of 500 bytes at {plan.connections} keep-alive connections; a chunk is one token-sized
event of a stream of 50 tokens a second; the first event is timed from the opening of a new connection, on an otherwise
idle proxy. llmgw checks an API key, picks a replica and counts usage for every request; nginx only proxies. Over SSH
the engine is reached through a direct-tcpip channel of one connection to OpenSSH's sshd.

{text}
"""
