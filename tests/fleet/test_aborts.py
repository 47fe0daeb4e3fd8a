"""A gone client costs nothing: every abort reaches the engine through SSH, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.fleet.machines import Machine
from tests.fleet.plane import SMOLLM2, Plane, sim
from tests.fleet.test_links import ask

CLIENTS = 100


def stats(machine: Machine, port: int, replica: str = "*") -> dict:
    """The simulated engine's own count, asked for on the node itself."""
    return json.loads(machine.shell(f"python3 - <<'E'\n{_ASK.format(port=port, replica=replica)}\nE"))


_ASK = """
import urllib.request, glob
for path in glob.glob("/root/.local/share/llmgw/hosts/*/replicas/{replica}.*/env"):
    import json
    key = json.load(open(path))["SIM_API_KEY"]
request = urllib.request.Request("http://127.0.0.1:{port}/sim/stats", headers={{"authorization": "Bearer " + key}})
print(urllib.request.urlopen(request).read().decode())
"""


async def leave_early(plane: Plane, key: str, model: str, *, stream: bool, wait: float) -> None:
    """Sends a request on a bare connection, waits, and is gone."""
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "tell me everything"}], "stream": stream}
        | {"max_tokens": 2000}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.port)
    writer.write(head.encode() + body)
    await writer.drain()
    if stream:
        await reader.read(10)
    await asyncio.sleep(wait)
    writer.transport.abort()


async def everybody_leaves(plane: Plane, key: str, model: str, *, stream: bool) -> None:
    await asyncio.gather(*(leave_early(plane, key, model, stream=stream, wait=0.3) for _ in range(CLIENTS)))


def held(plane: Plane) -> tuple[int, int]:
    """Descriptors and threads of the control plane."""
    assert plane.process is not None
    return len(os.listdir(f"/proc/{plane.process.pid}/fd")), len(os.listdir(f"/proc/{plane.process.pid}/task"))


def memory(plane: Plane) -> int:
    """Resident KiB of the control plane."""
    status = Path(f"/proc/{plane.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_the_engine_sees_every_abort(plane: Plane, machines, add, tmp_path: Path, stream: bool):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    plane.add_model(tmp_path, sim("slow", "--tokens-per-second", "5"))
    key, port = plane.key(), plane.ready("slow")[0]["shards"][0]["port"]
    asyncio.run(everybody_leaves(plane, key, "slow", stream=stream))  # warm: pools and caches have their size
    plane.until(lambda: not stats(alpha, port)["active"], "nothing is generated for the first hundred", limit=20)
    before, used = held(plane), memory(plane)

    asyncio.run(everybody_leaves(plane, key, "slow", stream=stream))
    plane.until(lambda: len(stats(alpha, port)["aborted"]) == 2 * CLIENTS, "every abort has arrived", limit=10)
    assert stats(alpha, port)["active"] == []
    plane.until(lambda: held(plane)[0] <= before[0] + 2, "no descriptor is left", limit=10)
    assert held(plane)[1] <= before[1] + 1
    assert memory(plane) < used + 20_000
    assert not any(_snapshot(plane)["inflight"].values())


@pytest.mark.engine
@pytest.mark.parametrize(("stream", "pause"), [(True, 0.05), (False, 2.5)], ids=["streaming", "not streaming"])
def test_the_real_engine_is_free_again(real_plane: Plane, machines, add, tmp_path: Path, stream: bool, pause: float):
    """llama.cpp gives the slots of those who left back: a stream's with its next token, any other within seconds.

    Without a stream it looks for a gone client only after a second in which none of its tasks had anything to say
    (`recv_with_timeout` in its tools/server/server-queue.cpp starts the second again at every result of any task, its
    own list of slots included). So this test asks it nothing for longer than that second.
    """
    plane, alpha = real_plane, machines[0]
    plane.start()
    add(plane, alpha)
    plane.add_model(tmp_path, SMOLLM2)
    key, port = plane.key(), plane.ready(SMOLLM2["name"])[0]["shards"][0]["port"]

    async def some_leave() -> None:
        await asyncio.gather(*(leave_early(plane, key, "smollm2", stream=stream, wait=0.5) for _ in range(4)))

    asyncio.run(some_leave())
    program = (
        _ASK.replace("SIM_API_KEY", "LLAMA_API_KEY").replace("/sim/stats", "/slots").format(port=port, replica="*")
    )

    def free() -> bool:
        slots = json.loads(alpha.shell(f"python3 - <<'E'\n{program}\nE"))
        return not any(slot["is_processing"] for slot in slots)

    plane.until(free, "no slot is busy", limit=20, pause=pause)
    assert ask(plane, key, "smollm2")


def _snapshot(plane: Plane) -> dict:
    import urllib.request

    token = (plane.home / "admin.token").read_text().strip()
    url = f"http://127.0.0.1:{plane.admin_port}/api/v1/snapshot"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
