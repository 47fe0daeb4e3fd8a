"""Three real nodes, a model with three replicas, the official client: answers from all three."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from tests.fleet.machines import Machine
from tests.fleet.plane import SMOLLM2, Plane, sim


def names(machines: list[Machine]) -> list[str]:
    return sorted(machine.name for machine in machines)


async def ask(plane: Plane, key: str, model: str, count: int) -> list[str]:
    """`count` requests, half of them streaming, at most 16 at once; the text of each answer."""
    client = openai.AsyncOpenAI(base_url=plane.url, api_key=key, max_retries=0, timeout=120)
    limit = asyncio.Semaphore(16)

    async def one(number: int) -> str:
        messages = [{"role": "user", "content": f"Count to three. ({number})"}]
        async with limit:
            if number % 2:
                reply = await client.chat.completions.create(model=model, messages=messages, max_tokens=8)  # type: ignore[arg-type]
                return reply.choices[0].message.content or ""
            stream = await client.chat.completions.create(model=model, messages=messages, max_tokens=8, stream=True)  # type: ignore[arg-type]
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async with client:
        return await asyncio.gather(*(one(number) for number in range(count)))


@pytest.mark.engine
def test_three_nodes_answer_with_the_real_engine(real_plane: Plane, machines, add, tmp_path: Path):
    real_plane.start()
    assert sorted(add(real_plane, *machines)) == names(machines)
    real_plane.add_model(tmp_path, {**SMOLLM2, "scaling": {"min": 3}})
    answers = asyncio.run(ask(real_plane, real_plane.key(), "smollm2", 200))
    assert len(answers) == 200
    assert all(answers)
    snapshot = real_plane.ready(SMOLLM2["name"])
    assert sorted(one["shards"][0]["node"] for one in snapshot) == names(machines)
    served = {one["shards"][0]["node"]: one["shards"][0]["port"] for one in snapshot}
    for machine in machines:
        # Nothing listens but sshd and the engine, and that on loopback only.
        others = [(where, program) for where, program in machine.listeners() if program != "sshd"]
        assert [where for where, _ in others] == [f"127.0.0.1:{served[machine.name]}"]
    counts = real_plane.served()
    assert len(counts) == 3
    assert sum(counts.values()) == 200
    assert min(counts.values()) > 20


def test_nodes_are_added_without_a_server(plane: Plane, machines, add):
    """The command takes the lease, does the same work, and lets go."""
    assert sorted(add(plane, *machines)) == names(machines)
    plane.start()
    plane.until(lambda: len([n for n in plane.json("node", "list") if n["link"] == "up"]) == 3, "all are connected")
    assert {one["state"] for one in plane.json("node", "list")} == {"ready"}


def test_the_simulated_engine_serves_three_replicas(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, *machines)
    plane.add_model(tmp_path, sim("echo", replicas=3))
    answers = asyncio.run(ask(plane, plane.key(), "echo", 60))
    assert all(answers)
    assert len(plane.served()) == 3
