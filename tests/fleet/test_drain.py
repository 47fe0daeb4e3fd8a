"""A drain under steady requests: the replacement is ready first, nothing fails, the process is gone at the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import openai

from tests.fleet.plane import Plane, sim


class Traffic:
    """Steady streaming and other requests from four threads; failures are kept."""

    def __init__(self, plane: Plane, key: str, model: str) -> None:
        self._plane, self._key, self._model = plane, key, model
        self._stop = threading.Event()
        self.done = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._work, args=(bool(number % 2),)) for number in range(4)]

    def _work(self, stream: bool) -> None:
        client = openai.OpenAI(base_url=self._plane.url, api_key=self._key, max_retries=0, timeout=30)
        while not self._stop.is_set():
            try:
                reply = client.chat.completions.create(
                    model=self._model, messages=[{"role": "user", "content": "hi"}], max_tokens=10, stream=stream
                )
                if stream:
                    assert len(list(reply)) > 5
                self.done += 1
            except Exception as exc:
                self.failures.append(repr(exc))

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_drain_moves_replicas_without_a_failed_request(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, *machines)
    plane.add_model(tmp_path, sim("echo", "--tokens-per-second", "100", replicas=2))
    key = plane.key()
    node = plane.ready("echo")[0]["shards"][0]["node"]
    machine = next(one for one in machines if one.name == node)
    with Traffic(plane, key, "echo") as traffic:
        time.sleep(0.5)
        done = plane.llmgw("ctl", "drain", node, "--wait", "--timeout", "60")
        time.sleep(0.5)
    assert traffic.failures == []
    assert traffic.done > 20
    assert f"{node} is drained" in done.stdout
    assert machine.engines() == []
    ready = plane.ready("echo")
    assert len(ready) == 2
    assert node not in {one["shards"][0]["node"] for one in ready}
    # The replacement was ready before the original began to stop.
    states = [(event["replica"], event["data"].get("state"), event["id"]) for event in plane.events("replica.state")]
    stopped = min(number for replica, state, number in states if state == "draining")
    replacement = max(number for replica, state, number in states if state == "ready")
    assert replacement < stopped
    assert (
        plane.json("node", "list")[[one["id"] for one in plane.json("node", "list")].index(node)]["drain"] == "drained"
    )


def test_a_drain_without_a_server_stops_nothing_before_its_replacement_is_ready(
    plane: Plane, machines, add, tmp_path: Path
):
    """The command adopts what runs first, as a server that starts does; a drain that comes early takes nothing."""
    plane.start()
    add(plane, *machines)
    plane.add_model(tmp_path, sim("echo", "--load-time", "1", replicas=2))
    node = plane.ready("echo")[0]["shards"][0]["node"]
    last = plane.events("replica.state")[-1]["id"]
    plane.kill()
    done = plane.llmgw("ctl", "drain", node, "--wait", "--timeout", "60")
    assert f"{node} is drained" in done.stdout
    plane.start()
    assert node not in {one["shards"][0]["node"] for one in plane.ready("echo")}
    later = [one for one in plane.events("replica.state") if one["id"] > last]
    order = [(one["replica"], one["data"].get("state")) for one in later]
    (leaving,) = {replica for replica, state in order if state == "draining"}
    assert order.index((leaving, "ready")) < order.index((leaving, "draining"))
    assert any(
        state == "ready" and replica != leaving for replica, state in order[: order.index((leaving, "draining"))]
    )


def test_a_drain_survives_a_restart(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, *machines[:2])
    plane.add_model(tmp_path, sim("echo", "--load-time", "3", replicas=1))
    node = plane.ready("echo")[0]["shards"][0]["node"]
    plane.llmgw("ctl", "drain", node)
    plane.kill()
    plane.start()
    plane.until(lambda: _drain_of(plane, node) == "drained", "the drain went on", limit=60)
    assert [one["shards"][0]["node"] for one in plane.ready("echo")] != [node]
    plane.llmgw("ctl", "undrain", node)
    assert _drain_of(plane, node) == "none"
    assert not next(one for one in plane.json("node", "list") if one["id"] == node)["cordoned"]


def test_a_drain_with_nowhere_to_go_waits_and_says_so(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, machines[0])
    plane.add_model(tmp_path, sim("echo"))
    done = plane.llmgw("ctl", "drain", "alpha", "--wait", "--timeout", "3", check=False)
    assert done.returncode == 6
    assert "finds no node" in done.stderr
    assert len(plane.ready("echo")) == 1
    plane.llmgw("ctl", "undrain", "alpha")


def test_cordon_keeps_what_runs_and_takes_nothing_new(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, *machines[:2])
    plane.llmgw("ctl", "cordon", "alpha")
    assert "already" in plane.llmgw("ctl", "cordon", "alpha").stdout
    plane.add_model(tmp_path, sim("echo", replicas=2))
    assert {one["shards"][0]["node"] for one in plane.ready("echo")} == {"beta"}
    plane.llmgw("ctl", "uncordon", "alpha")


def _drain_of(plane: Plane, node: str) -> str:
    return next(one for one in plane.json("node", "list") if one["id"] == node)["drain"]
