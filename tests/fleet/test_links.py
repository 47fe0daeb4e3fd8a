"""A cut link is not a dead engine; a dead engine is not a cut link."""

from __future__ import annotations

import time
from pathlib import Path

import openai

from tests.fleet.plane import Plane, sim


def ask(plane: Plane, key: str, model: str = "echo", **more) -> str:
    client = openai.OpenAI(base_url=plane.url, api_key=key, max_retries=0, timeout=30)
    reply = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=3, **more
    )
    return reply.choices[0].message.content or ""


def test_a_cut_link_loses_the_replica_and_adopts_it_again(make_plane, machines, add, tmp_path: Path):
    alpha = machines[0]
    plane = make_plane({"sim": ["builtin"]}, ssh={"keepalive": 2})
    plane.start()
    add(plane, alpha)
    plane.add_model(tmp_path, sim("echo"))
    key = plane.key()
    assert ask(plane, key)
    (pid,) = alpha.engines()

    alpha.cut()
    plane.until(lambda: [one["state"] for one in plane.replicas()] == ["lost"], "the replica is lost", limit=60)
    assert alpha.engines() == [pid]
    assert plane.json("node", "list")[0]["link"] == "down"

    alpha.heal()
    plane.until(lambda: plane.ready("echo"), "it is adopted", limit=90)
    assert alpha.engines() == [pid]
    assert ask(plane, key)
    assert "out of reach" in " ".join(event["message"] for event in plane.events("node.link"))


def test_a_killed_engine_is_noticed_explained_and_started_again(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, *machines[:2])
    plane.add_model(tmp_path, sim("echo", replicas=2))
    key = plane.key()
    victim = plane.ready("echo")[0]
    machine = next(one for one in machines if one.name == victim["shards"][0]["node"])
    machine.shell(f"kill -9 {victim['shards'][0]['process']['pid']}")
    # Traffic goes elsewhere at once: not one request fails.
    for _ in range(20):
        assert ask(plane, key)
    failed = plane.until(lambda: plane.events("replica.failed"), "the cause is told", limit=10)
    assert "signal 9 (SIGKILL)" in failed[0]["message"]
    assert "started again in 1 s" in failed[0]["message"]
    plane.until(lambda: len(plane.ready("echo")) == 2, "it is back", limit=30)
    again = next(one for one in plane.replicas() if one["id"] == victim["id"])
    assert again["shards"][0]["attempt"] == 2


def test_an_engine_that_cannot_start_is_given_up_and_says_why(plane: Plane, machines, add, tmp_path: Path):
    plane.start()
    add(plane, machines[0])
    plane.add_model(tmp_path, sim("broken", "--no-such-option"), wait=False)
    failed = plane.until(lambda: plane.events("replica.failed"), "it failed", limit=30)
    assert "exited with status 2" in failed[0]["message"]
    assert "--no-such-option" in failed[0]["message"]


def test_a_rebooted_node_starts_its_replica_again(plane: Plane, machines, add, tmp_path: Path):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    plane.add_model(tmp_path, sim("echo"))
    key = plane.key()
    alpha.power_off()
    plane.until(lambda: plane.replicas()[0]["state"] == "lost", "it is lost", limit=60)
    alpha.boot(new_boot_id=True)
    plane.until(lambda: plane.ready("echo"), "it runs again", limit=90)
    assert ask(plane, key)
    messages = " ".join(event["message"] for event in plane.events())
    assert "the node was rebooted" in messages
    assert len(alpha.engines()) == 1


def test_a_changed_host_key_quarantines(plane: Plane, machines, add, tmp_path: Path):
    alpha = machines[0]
    plane.start()
    add(plane, alpha)
    key_file = alpha.upper / "etc/ssh/ssh_host_ed25519_key"
    before = key_file.read_bytes(), key_file.with_suffix(".pub").read_bytes()
    try:
        alpha.power_off()
        key_file.unlink()
        import subprocess

        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key_file)], check=True)
        alpha.boot()
        plane.until(lambda: plane.json("node", "list")[0]["quarantined"], "it is quarantined", limit=60)
        shown = plane.llmgw("ctl", "nodes").stdout
        assert "quarantined" in shown
        why = plane.json("node", "list")[0]["quarantined"]
        assert why.count("SHA256:") >= 2
    finally:
        alpha.power_off()
        key_file.write_bytes(before[0])
        key_file.with_suffix(".pub").write_bytes(before[1])
        alpha.boot()
        time.sleep(0.1)
