"""What lies on a node's disk and what its other users run is hostile: links, damaged records, stolen tags."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .conftest import Node, ScriptError, free_ports, tagged, tree

SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
SHARD: dict[str, Any] = {"replica": "m", "rank": 0, "cluster": "k"}
NOBODY = 65534
DEEP = "[" * 100_000


def start(node: Node, attempt: int = 1, **args: Any) -> Any:
    ports = free_ports(4)
    return node.call("engine", action="start", attempt=attempt, argv=SLEEPS, ports=ports, **{**SHARD, **args})


def stop(node: Node, *, remove: bool = False, **args: Any) -> Any:
    return node.call("engine", action="stop", attempt=None, grace=0, remove=remove, **{**SHARD, **args})


def listing(node: Node) -> Any:
    return node.call("engine", action="list")


def purge(node: Node) -> Any:
    return node.call("purge", action="purge", cluster="k")


@pytest.mark.parametrize("place", ["hosts", "hosts/n1", "hosts/n1/replicas", "engines", "weights"])
def test_a_link_in_the_place_of_a_directory_of_ours_is_refused_and_nothing_behind_it_changes(
    node: Node, place: str, tmp_path: Path
) -> None:
    start(node)
    stop(node, remove=True)
    elsewhere = tmp_path / "elsewhere"
    for inner in ("n1/precious", "replicas/m.0", "m.0", "precious"):
        (elsewhere / inner).mkdir(parents=True)
        (elsewhere / inner / "data").write_text("theirs")
    link = node.root / place
    shutil.rmtree(link, ignore_errors=True)
    link.symlink_to(elsewhere)
    before = tree(elsewhere), tree(node.root)
    acts = [lambda: purge(node)]
    if place.startswith("hosts"):
        acts += [lambda: start(node, 2), lambda: stop(node, remove=True), lambda: listing(node)]
    for act in acts:
        with pytest.raises(ScriptError, match=f"{link} is a symbolic link") as caught:
            act()
        assert caught.value.code == "unsafe_root"
    assert tree(elsewhere) == before[0]
    assert tree(node.root).keys() >= before[1].keys(), "nothing of ours goes before everything is known to be ours"


DAMAGED = [
    "",
    "5",
    "null",
    "[5, null]",
    DEEP,
    '{"attempt": "x"}',
    '{"attempt": 1, "pid": "5"}',
    '{"attempt": 1, "pid": 1e30, "start_ticks": null}',
    '{"attempt": 1, "waiter": "x"}',
    '{"attempt": 1, "waiter": {"pid": "x"}}',
    '{"attempt": 1, "cluster": ["k"]}',
    '{"attempt": 1, "port": "80", "boot_id": 5}',
    '{"attempt": 1, "pid": -1, "start_ticks": -1}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_manifest_costs_nobody_anything(node: Node, text: str) -> None:
    engine = start(node)["pid"]
    other = start(node, replica="other")["pid"]
    (node.root / "hosts/n1/replicas/m.0/manifest.json").write_text(text)
    found = listing(node)
    assert [each["pid"] for each in found["replicas"] if each["alive"]] == [other]
    assert engine in [each["pid"] for each in found["strays"]]
    node.call("engine", action="logs", replica="m", rank=0, lines=3)
    with pytest.raises(ScriptError) as caught:
        purge(node)
    assert caught.value.code == "still_running"
    assert engine in stop(node, remove=True)["pids"]
    stop(node, replica="other")
    assert tagged(node.home) == []
    assert purge(node)["left"] == []


@pytest.mark.parametrize("text", ["", "5", DEEP, '{"created": 5}', '{"created": [5, null]}', '{"created": {"a": 1}}'])
def test_a_damaged_trace_blocks_neither_a_start_nor_a_purge(node: Node, text: str) -> None:
    start(node)
    stop(node, remove=True)
    (node.root / "hosts/n1/trace.json").write_text(text)
    start(node)
    stop(node, remove=True)
    assert purge(node)["left"] == []


@pytest.mark.parametrize("text", ["5", DEEP, '{"controller_id": 5}', '{"controller_id": "c1", "term": "x"}'])
def test_a_damaged_term_is_another_control_planes_node(node: Node, text: str) -> None:
    start(node)
    stop(node)
    (node.root / "hosts/n1/term").write_text(text)
    with pytest.raises(ScriptError) as caught:
        start(node, 2)
    assert caught.value.code == "foreign_controller"
    assert start(node, 2, take_over=True)["pid"]


@contextmanager
def stranger(user: int, **tag: str) -> Iterator[int]:
    """A process of somebody else that says it is ours."""
    env = {f"LLMGW_{key.upper()}": value for key, value in tag.items()}
    with subprocess.Popen(["/bin/sleep", "60"], env=env, user=user, start_new_session=True) as process:
        time.sleep(0.05)
        try:
            yield process.pid
            assert process.poll() is None, "nobody signals a stranger"
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_tag_in_another_users_process_is_not_believed(node: Node) -> None:
    with stranger(NOBODY, replica="m", rank="0", attempt="7", cluster="k") as pid:
        started = start(node)
        assert started["attempt"] == 1
        assert pid not in [each["pid"] for each in listing(node)["strays"]]
        assert pid not in [each["pid"] for each in node.call("probe")["processes"]]
        assert pid not in stop(node, remove=True)["pids"]
        purge(node)


@pytest.mark.parametrize("rank", ["²", "٣", "9" * 5000, "-1", "1e3", ""])
def test_a_tag_that_is_no_number_is_none(node: Node, rank: str) -> None:
    with stranger(os.geteuid(), replica="x", rank=rank, attempt=rank):
        start(node)
        found = [each for each in listing(node)["strays"] if each["replica"] == "x"]
        assert [(each["rank"], each["attempt"]) for each in found] == [(None, None)]
        stop(node)


def test_files_among_the_nodes_of_a_shared_home_are_no_nodes(node: Node) -> None:
    start(node)
    stop(node, remove=True)
    (node.root / "hosts/README").write_text("a note")
    found = purge(node)
    assert str(node.root / "engines") not in found["left"]
    assert (node.root / "hosts/README").read_text() == "a note"
