"""What a streamed chunk costs where sshd forwards nothing: over a relay, beside direct-tcpip channels, in one run.

The control plane's process and the node's (sshd, and the relay) are counted apart: they are different machines.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from llmgw.model.node import Address
from llmgw.pki.sshkey import ensure_key
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login
from tests.bench import proxies
from tests.bench.engine import TOKEN
from tests.ssh.conftest import start_sshd

STREAMS = (1, 100, 500)
RATE = 50


def section(*, rounds: int = 3, seconds: float = 3.0, streams: tuple[int, ...] = STREAMS) -> str:
    """The report's section; says so where it cannot be measured."""
    try:
        with tempfile.TemporaryDirectory() as scratch, proxies.engine() as engine:
            found = _measure(Path(scratch), engine, rounds, seconds, streams)
    except proxies.Missing as missing:
        return f"## The relay\n\nNot measured: {missing}.\n"
    heads = "".join(f" {count} stream{'s' * (count > 1)} |" for count in streams)
    lines = [f"| CPU a chunk, µs |{heads}", "| --- |" + " --- |" * len(streams)]
    for side in ("control plane", "node"):
        for path in ("direct-tcpip", "relay"):
            lines.append(_row(f"{side}, {path}", [f"{found[path, side, count]:.0f}" for count in streams]))
        ratios = [found["relay", side, count] / found["direct-tcpip", side, count] for count in streams]
        lines.append(_row(f"{side}, relay to direct-tcpip", [f"{ratio:.2f}" for ratio in ratios]))
    table = "\n".join(lines)
    return f"""## The relay

Where sshd forbids forwarding, streams go over `relay.py`. CPU time of both ends, median of {rounds} rounds of
{seconds:g} s; OpenSSH's sshd; chunks of {len(TOKEN)} bytes, {RATE} a second and stream.

{table}
"""


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _measure(
    scratch: Path, engine: int, rounds: int, seconds: float, streams: tuple[int, ...]
) -> dict[tuple[str, str, int], float]:
    if not proxies.SSHD:
        raise proxies.Missing("sshd is not installed (apt-get install openssh-server)")
    home = scratch / "home"
    home.mkdir(mode=0o700)
    ensure_key(home)
    seen: dict[tuple[str, str, int], list[float]] = {}
    for path, allowed in (("direct-tcpip", "yes"), ("relay", "no")):
        node = start_sshd(scratch / path, home, AllowTcpForwarding=allowed)
        try:
            for count in streams * rounds:
                job = {
                    "home": str(home), "user": node.address.user, "port": node.port, "host_key": node.host_key,
                    "sshd": node.process.pid, "engine": engine, "streams": count, "seconds": seconds, "path": path,
                }  # fmt: skip
                done = subprocess.run(proxies.module("relay", job), capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"{path}: {done.stderr[-2000:]}")
                for side, cost in json.loads(done.stdout).items():
                    seen.setdefault((path, side, count), []).append(cost)
        finally:
            node.stop()
    return {key: statistics.median(values) for key, values in seen.items()}


class Listener(asyncio.Protocol):
    """Asks for a stream without end and counts what comes."""

    received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        body = json.dumps({"stream": True, "max_tokens": 10**9, "rate": RATE}, separators=(",", ":"))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        transport.write((head + body).encode())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        Listener.received += len(data)


async def load(job: dict) -> dict[str, float]:
    login = Login(client_keys=(ensure_key(Path(job["home"])),))
    address = Address(host="127.0.0.1", port=job["port"], user=job["user"])
    connection = await connect(address, login=login, host_key=job["host_key"])
    for _ in range(job["streams"]):
        await connection.open_stream(job["engine"], Listener)
        await asyncio.sleep(0.37 / RATE)  # each at its own phase
    assert connection.data_path == job["path"]
    await asyncio.sleep(1.0)
    before, ours, theirs = Listener.received, _cpu([os.getpid()]), _cpu(_tree(job["sshd"]))
    await asyncio.sleep(job["seconds"])
    ours, theirs = _cpu([os.getpid()]) - ours, _cpu(_tree(job["sshd"])) - theirs
    chunks = (Listener.received - before) / len(TOKEN)
    assert chunks > 0.9 * job["streams"] * RATE * job["seconds"], f"{chunks} chunks: the engine cannot keep up"
    connection.abort()
    return {"control plane": ours / chunks * 1e6, "node": theirs / chunks * 1e6}


def _tree(pid: int) -> list[int]:
    found = [pid]
    for child in proxies.children(pid):
        found += _tree(child)
    return found


def _cpu(pids: list[int]) -> float:
    """CPU seconds so far, by the scheduler's own count in nanoseconds (/proc/PID/task/TID/schedstat)."""
    total = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(uvloop.run(load(json.loads(sys.argv[1])))))
    else:
        began = time.monotonic()
        print(section())
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
