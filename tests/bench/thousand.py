"""A control plane with a thousand simulated nodes: what connecting and probing them costs, and whom it delays."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.clock import SystemClock
from llmgw.model.node import Address, Node, NodeState
from llmgw.pki.sshkey import ensure_key, public_key
from llmgw.store import nodes
from llmgw.store.db import Store
from tests.bench.load import cpu_seconds
from tests.bench.proxies import module, program
from tests.bench.simulated import address
from tests.fleet.plane import Plane

LIMIT = 300.0


@dataclass(frozen=True)
class Figures:
    count: int
    seconds: float
    cpu_ms: float
    """Of a node."""
    memory_kb: float
    """Of a node."""
    lag_ms: float
    idle: float
    """Part of a core, once all are probed."""


def section(counts: Sequence[int] = (20, 200, 1000)) -> str:
    rows = []
    for count in counts:
        figures = measure(count)
        rows.append(
            f"| {figures.count} | {figures.seconds:.1f} s | {figures.cpu_ms:.1f} ms | {figures.memory_kb:.0f} KB "
            f"| {figures.lag_ms:.0f} ms | {figures.idle * 100:.1f} % |"
        )
    lines = "\n".join(rows)
    return (
        "## Many nodes\n\nSimulated nodes: an SSH server in another process that answers the scripts as a machine with "
        "eight\nH100 does. From the start of the control plane until every node is connected, listed and probed; "
        "CPU\nand memory of its process alone, less those of one without nodes. The lag is the longest time that the "
        "event\nloop kept anybody waiting.\n\n"
        "| nodes | all probed after | CPU a node | memory a node | longest lag | of a core when idle |\n"
        f"|---|---|---|---|---|---|\n{lines}\n"
    )


def measure(count: int) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plane = Plane(folder / "home", engines={}, mirror=folder / "mirror", user_home=folder)
        try:
            cpu, memory = _bare(plane)
            ensure_key(plane.home)
            job = {"key": public_key(plane.home), "nodes": count}
            with program(module("simulated", job), first_line=True) as (_, line):
                asyncio.run(_know(plane.home, count, json.loads(line)))
                began = time.monotonic()
                plane.start()
                _until_probed(plane.home / "state.db", count)
                seconds = time.monotonic() - began
                pid = plane.process.pid  # type: ignore[union-attr]
                time.sleep(2)
                spent, held, lag = cpu_seconds([pid]) - cpu, _memory(pid) - memory, _lag(plane)
                before = cpu_seconds([pid])
                time.sleep(5)
                idle = (cpu_seconds([pid]) - before) / 5
        finally:
            plane.close()
    return Figures(count, seconds, spent / count * 1e3, held / count, lag * 1e3, idle)


def _bare(plane: Plane) -> tuple[float, int]:
    """CPU seconds and resident KiB of a control plane without nodes."""
    plane.start()
    time.sleep(3)
    pid = plane.process.pid  # type: ignore[union-attr]
    found = cpu_seconds([pid]), _memory(pid)
    plane.stop()
    return found


async def _know(home: Path, count: int, server: dict[str, object]) -> None:
    """The nodes as `node add` would have left them."""
    store = Store(home / "state.db", SystemClock())
    await store.open()

    def put(tx) -> None:  # type: ignore[no-untyped-def]
        for number in range(count):
            host = address(number)
            where = Address(host=host, port=server["port"], user="root")
            node = Node(id="sim-" + host.replace(".", "-"), address=where, host_key=server["host_key"])
            nodes.put(tx, node.model_copy(update={"state": NodeState.READY}))

    await store.write(put)
    await store.close()


def _until_probed(database: Path, count: int) -> None:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
            (probed,) = db.execute("SELECT count(*) FROM nodes WHERE probed_at IS NOT NULL").fetchone()
        if probed == count:
            return
        time.sleep(0.1)
    raise RuntimeError(f"only {probed} of {count} nodes were probed in {LIMIT:g} s")


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def _lag(plane: Plane) -> float:
    text = urllib.request.urlopen(f"http://127.0.0.1:{plane.port}/metrics").read().decode()
    return float(re.search(r'llmgw_event_loop_lag_seconds\{over="run"\} ([\d.e-]+)', text)[1])  # type: ignore[index]


if __name__ == "__main__":
    import sys

    print(section([int(word) for word in sys.argv[1:]] or (20, 200, 1000)))
