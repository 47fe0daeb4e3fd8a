"""The load, in a process of its own: `python -m tests.bench.load '{"mode": "requests", "port": …, "pids": […]}'`.

`requests` keeps `connections` busy with plain requests; `streams` holds as many streams of 50 tokens a second;
`first` opens one stream after another and times the first event. What the proxy's processes used of the CPU is read
from /proc at both ends of the window, so that warming up is not in it. The result is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import httptools
import uvloop

RATE = 50


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of the processes, all their threads included.

    From schedstat, in nanoseconds, where the kernel keeps it; the ticks of stat (proc(5)) are 10 ms each.
    """
    return sum(_scheduled(pid) or _ticks(pid) for pid in pids)


def _scheduled(pid: int) -> float:
    try:
        threads = [Path(f"/proc/{pid}/task/{thread}/schedstat") for thread in os.listdir(f"/proc/{pid}/task")]
        return sum(int(file.read_text().split()[0]) for file in threads) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _ticks(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(key: str, model: str, *, stream: bool, tokens: int) -> bytes:
    message = {"role": "user", "content": "How much does a gateway cost? " * 4}
    body = json.dumps(
        {"model": model, "messages": [message], "stream": stream, "max_tokens": tokens, "rate": RATE},
        separators=(",", ":"),
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        "accept: application/json\r\naccept-encoding: gzip, deflate\r\nuser-agent: bench/1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """Sends the same request again and again, and counts."""

    def __init__(self, data: bytes, *, again: bool) -> None:
        self.data = data
        self.again = again
        self.answers = self.events = 0
        self.failed = ""
        self.first = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(self.data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.failed = self.failed or "lost"
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_headers_complete(self) -> None:
        if self.parser.get_status_code() != 200:
            self.failed = f"status {self.parser.get_status_code()}"
            self.transport.abort()

    def on_body(self, data: bytes) -> None:
        self.events += data.count(b"data: {")
        if not self.first.done():
            self.first.set_result(time.perf_counter())

    def on_message_complete(self) -> None:
        self.answers += 1
        if self.again:
            self.parser = httptools.HttpResponseParser(self)
            self.transport.write(self.data)
        elif not self.ended.done():
            self.ended.set_result(None)


async def window(job: dict, clients: list[Client], field: str) -> dict:
    """Counts `field` of all clients and the proxy's CPU over the same stretch of time."""
    before = sum(getattr(client, field) for client in clients)
    cpu, start = cpu_seconds(job["pids"]), time.perf_counter()
    await asyncio.sleep(job["seconds"])
    count = sum(getattr(client, field) for client in clients) - before
    used, took = cpu_seconds(job["pids"]) - cpu, time.perf_counter() - start
    failed = [client.failed for client in clients if client.failed]
    return {"count": count, "cpu": used, "seconds": took, "failed": len(failed), "why": failed[:1]}


async def connect(job: dict, *, stream: bool, tokens: int, again: bool) -> Client:
    data = request(job["key"], job["model"], stream=stream, tokens=tokens)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(data, again=again), "127.0.0.1", job["port"])
    return client


async def requests(job: dict) -> dict:
    clients = [await connect(job, stream=False, tokens=40, again=True) for _ in range(job["connections"])]
    await asyncio.sleep(job["warmup"])
    return await window(job, clients, "answers")


async def streams(job: dict) -> dict:
    tokens = int((job["warmup"] + job["seconds"] + 3) * RATE)
    clients = []
    for _ in range(job["connections"]):
        clients.append(await connect(job, stream=True, tokens=tokens, again=False))
        await asyncio.sleep(1 / RATE / 10)  # so that the streams' phases are spread
    await asyncio.sleep(job["warmup"])
    return await window(job, clients, "events")


async def first(job: dict) -> dict:
    times = []
    for _ in range(job["connections"]):
        start = time.perf_counter()
        client = await connect(job, stream=True, tokens=1, again=False)
        await client.ended
        times.append(client.first.result() - start)
        client.transport.close()
    return {"p50": statistics.median(times), "failed": 0}


async def main() -> None:
    job = json.loads(sys.argv[1])
    mode = {"requests": requests, "streams": streams, "first": first}[job["mode"]]
    print(json.dumps(await mode(job)), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
