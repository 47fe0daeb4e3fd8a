"""kill -9 of the control plane, anywhere: engines go on, none is started twice, requests are answered again."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import openai
import pytest

from tests.fleet.machines import Machine
from tests.fleet.plane import SMOLLM2, Plane, sim


def engine_pids(machines: list[Machine]) -> dict[str, list[int]]:
    return {machine.name: machine.engines() for machine in machines}


def answers_again(plane: Plane, key: str, model: str, limit: float = 10.0) -> float:
    """Seconds until a request is answered, asked as a patient client would."""
    began = time.monotonic()
    client = openai.OpenAI(base_url=plane.url, api_key=key, max_retries=0, timeout=limit)
    while True:
        try:
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=2)
            return time.monotonic() - began
        except openai.APIConnectionError:
            assert time.monotonic() - began < limit, plane.log_tail()
            time.sleep(0.05)


@pytest.mark.engine
def test_kill_during_traffic_with_the_real_engine(real_plane: Plane, machines, add, tmp_path: Path):
    plane = real_plane
    plane.start()
    add(plane, *machines)
    plane.add_model(tmp_path, {**SMOLLM2, "scaling": {"min": 3}})
    key = plane.key()
    before = engine_pids(machines)
    assert all(len(pids) == 1 for pids in before.values())

    stop = threading.Event()

    def traffic() -> None:
        client = openai.OpenAI(base_url=plane.url, api_key=key, max_retries=0, timeout=20)
        while not stop.is_set():
            try:
                client.chat.completions.create(
                    model="smollm2", messages=[{"role": "user", "content": "go on"}], max_tokens=16
                )
            except openai.OpenAIError:
                time.sleep(0.05)

    threads = [threading.Thread(target=traffic) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1.0)
        plane.kill()
        assert engine_pids(machines) == before
        plane.start(wait=False)
        assert answers_again(plane, key, "smollm2") < 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    plane.until(lambda: len(plane.ready(SMOLLM2["name"])) == 3, "all three are adopted")
    assert engine_pids(machines) == before
    assert len(plane.events("replica.adopted")) == 3
    assert {one["shards"][0]["attempt"] for one in plane.replicas()} == {1}


@pytest.mark.parametrize("where", ["launch.intended", "launch.started", "launch.recorded"])
def test_kill_between_intent_launch_and_record(plane: Plane, machines, add, tmp_path: Path, where: str):
    machine = machines[0]
    plane.start(crash_at=where)
    add(plane, machine)
    plane.add_model(tmp_path, sim("echo"), wait=False)
    assert plane.process is not None
    plane.until(lambda: plane.process.poll() is not None, f"it died at {where}")
    assert plane.process.returncode == 137
    ran = machine.engines()
    assert len(ran) == (0 if where == "launch.intended" else 1)

    plane.start()
    plane.until(lambda: plane.ready("echo"), "the replica is ready")
    now = machine.engines()
    assert len(now) == 1
    if ran:
        assert now == ran
    assert answers_again(plane, plane.key(), "echo") < 10
    assert len([event for event in plane.events("replica.state") if event["data"].get("state") == "placed"]) <= 2


@pytest.mark.parametrize("where", ["stop.intended", "stop.stopped"])
def test_kill_during_a_stop(plane: Plane, machines, add, tmp_path: Path, where: str):
    machine = machines[0]
    plane.start(crash_at=where)
    add(plane, machine)
    plane.add_model(tmp_path, sim("echo"))
    plane.llmgw("model", "remove", "echo", "--yes", check=False)
    plane.until(lambda: plane.process.poll() is not None, f"it died at {where}")
    plane.start()
    plane.until(lambda: not plane.replicas(), "the replica is gone")
    assert machine.engines() == []


def test_a_second_control_plane_is_refused(plane: Plane, machines, add):
    plane.start()
    second = plane.llmgw("server", "run", check=False)
    assert second.returncode == 4
    assert "is held by pid" in second.stderr
    assert "Traceback" not in second.stderr


def test_sigterm_lets_requests_end_and_leaves_engines(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, machines[0])
    plane.add_model(tmp_path, sim("echo", "--tokens-per-second", "20"))
    key = plane.key()

    async def story() -> str:
        async with openai.AsyncOpenAI(base_url=plane.url, api_key=key, max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="echo", messages=[{"role": "user", "content": "hi"}], max_tokens=40, stream=True
            )
            words = []
            async for chunk in stream:
                words.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
                if len(words) == 5:
                    plane.process.terminate()
            return "".join(words)

    assert len(asyncio.run(story()).split()) >= 30
    assert plane.process.wait(timeout=30) == 0
    assert len(machines[0].engines()) == 1
