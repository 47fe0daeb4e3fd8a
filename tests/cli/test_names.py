"""What a person calls a replica or a node."""

from __future__ import annotations

from typing import Any, cast

import pytest

from llmgw.admin.client import AdminClient
from llmgw.cli.names import check_node, find_replica, node_named
from llmgw.errors import NotFound, UsageError
from llmgw.model.node import Address, Node
from llmgw.model.replica import Replica
from llmgw.model.snapshot import Snapshot, Unclaimed

IDS = ("m1-d3b5d9", "m1-d72458", "qwen2.5-coder-32b-instruct-awq-1adc87")


def replica(name: str) -> Replica:
    return Replica(id=name, model="m", revision="r", profile="p", engine="sim", engine_version="1")


def node(name: str, **address: Any) -> Node:
    return Node(id=name, address=Address(**{"host": name, "user": "root", **address}), host_key="")


REPLICAS = Snapshot(
    at=0.0,
    replicas=tuple(map(replica, IDS)),
    unclaimed=(Unclaimed(node="n1", replica="echo-6d149e", pid=1), Unclaimed(node="n2", replica="echo-6d149e", pid=1)),
)
NODES = Snapshot(
    at=0.0,
    nodes=(
        node("vm", host="10.0.0.7", config_host="gpu01", port=2222),
        node("here", host="local"),
        node("a", host="far"),
        node("b", host="far", port=23),
    ),
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (IDS[0], IDS[0]),
        ("1adc87", IDS[2]),
        ("qwen", IDS[2]),
        ("m1-d3", IDS[0]),
        ("32b", IDS[2]),
        ("ghost", "ghost"),
    ],
)
def test_a_part_that_no_other_has_is_enough(wanted: str, found: str) -> None:
    assert find_replica(REPLICAS, wanted) == found


def test_an_id_that_another_begins_with_is_itself() -> None:
    two = Snapshot(at=0.0, replicas=(replica("m-1"), replica("m-1-2")))
    assert find_replica(two, "m-1") == "m-1"


def test_a_part_of_several_lists_them() -> None:
    with pytest.raises(UsageError, match=r"'m1-' may be any of m1-d3b5d9, m1-d72458\. Give more of it") as caught:
        find_replica(REPLICAS, "m1-")
    assert caught.value.code == "ambiguous"
    many = Snapshot(at=0.0, replicas=tuple(replica(f"m-{number}") for number in range(30)))
    with pytest.raises(UsageError, match=r"m-7 and 22 more\."):
        find_replica(many, "m-")


def test_one_that_is_unclaimed_is_said_to_be() -> None:
    with pytest.raises(NotFound, match="echo is unclaimed on n1, n2"):
        find_replica(REPLICAS, "echo")


@pytest.mark.parametrize("wanted", ["", ".", ".."])
def test_no_name_is_no_part(wanted: str) -> None:
    with pytest.raises(UsageError, match="is no name"):
        find_replica(REPLICAS, wanted)


class Client:
    """Knows the nodes of NODES."""

    async def get(self, path: str, cls: type, **query: Any) -> Any:
        if path == "/snapshot":
            return NODES
        if path.removeprefix("/nodes/") not in NODES.node_by_id:
            raise NotFound("There is no such node.", fix="The nearest: vm.")
        return None


CLIENT = cast(AdminClient, Client())


@pytest.mark.parametrize("wanted", ["gpu01", "GPU01", "root@gpu01", "root@gpu01:2222", "gpu01:2222", "10.0.0.7"])
async def test_a_node_that_was_added_by_another_name_is_named(wanted: str) -> None:
    with pytest.raises(NotFound, match=rf"no node '{wanted}'\. The node that was added as {wanted} is vm\. Say vm\."):
        await check_node(CLIENT, wanted)


async def test_two_that_were_added_so_are_both_named() -> None:
    with pytest.raises(NotFound, match=r"nodes that were added as far are a, b\. Say which"):
        await check_node(CLIENT, "far")
    with pytest.raises(NotFound, match=r"node that was added as far:23 is b\."):
        await check_node(CLIENT, "far:23")


async def test_one_that_nobody_added_is_left_to_the_control_plane() -> None:
    with pytest.raises(NotFound, match="The nearest: vm"):
        await check_node(CLIENT, "ghost")


async def test_a_node_is_itself_whatever_else_was_not_found() -> None:
    await check_node(CLIENT, "vm")
    with pytest.raises(NotFound, match="no log"):
        async with node_named(CLIENT, "vm"):
            raise NotFound("There is no log.")
