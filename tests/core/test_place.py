"""Where a replica goes: the best profile that fits anywhere, spread, and every refusal kept."""

from __future__ import annotations

from llmgw.core.place import Nowhere, Placement, place
from llmgw.engines.base import GIB, MIB
from llmgw.model.replica import ReplicaState

from .made import model, node, probe, replica, snapshot

S = ReplicaState


def chosen(*args, **kwargs) -> str:
    found = place(*args, **kwargs)
    assert isinstance(found, Placement), found
    return found.fit.node


def test_no_node_at_all() -> None:
    found = place(model(), snapshot())
    assert isinstance(found, Nowhere)
    assert found.reason == "there is no node"


def test_all_refusals_are_said_once_each() -> None:
    of = model(profiles=[{"name": "a", "engine": "llamacpp"}, {"name": "b", "engine": "sim"}])
    found = place(of, snapshot(node("n1", cordoned=True), node("n2"), models=(of,), probes={}))
    assert isinstance(found, Nowhere)
    assert found.reason == "n1 is cordoned; n2 has not been probed yet"
    assert [refusal.profile for refusal in found.refusals] == ["a", "a", "b", "b"]


def test_the_profile_of_highest_priority_that_fits_anywhere() -> None:
    of = model(
        profiles=[
            {"name": "small", "engine": "llamacpp", "priority": 1},
            {"name": "gpu", "engine": "llamacpp", "priority": 9, "gpus": 1},
            {"name": "big", "engine": "llamacpp", "priority": 5, "min_memory_gb": 3},
        ]
    )
    found = place(of, snapshot(node("n1"), node("n2"), models=(of,)))
    assert isinstance(found, Placement)
    assert found.fit.profile == "big"
    assert found.reason == "n1 fits profile big"
    assert [(refusal.node, refusal.profile) for refusal in found.refusals] == [("n1", "gpu"), ("n2", "gpu")]


def test_a_model_is_spread_before_anything_else() -> None:
    of, other = model("m"), model("x")
    there = (replica(of, "m-1", "n1"), replica(other, "x-1", "n2"), replica(other, "x-2", "n2"))
    assert chosen(of, snapshot(node("n1"), node("n2"), models=(of, other), replicas=there)) == "n2"


def test_then_the_load_is_spread() -> None:
    of, other = model("m"), model("x")
    there = (replica(other, "x-1", "n1"),)
    assert chosen(of, snapshot(node("n1"), node("n2"), models=(of, other), replicas=there)) == "n2"


def test_then_the_node_with_most_memory_left() -> None:
    of = model()
    memory = {"total": 16 * GIB, "available": 16 * GIB}
    probes = {"n1": probe("n1"), "n2": probe("n2", memory=memory)}
    assert chosen(of, snapshot(node("n1"), node("n2"), models=(of,), probes=probes)) == "n2"


def test_then_the_name_so_that_the_same_truth_gives_the_same_answer() -> None:
    of = model()
    assert chosen(of, snapshot(node("b"), node("a"), node("c"), models=(of,))) == "a"


def test_a_replica_that_is_over_counts_for_no_load_but_one_to_be_tried_again_does() -> None:
    of = model()
    nodes = (node("n1"), node("n2"))
    over = (replica(of, "m-1", "n1", S.STOPPED), replica(of, "m-2", "n1", S.FAILED))
    assert chosen(of, snapshot(*nodes, models=(of,), replicas=over)) == "n1"
    again = (replica(of, "m-1", "n1", S.FAILED, next_try_at=1.0),)
    assert chosen(of, snapshot(*nodes, models=(of,), replicas=again)) == "n2"


def test_a_node_where_it_was_given_up_is_avoided_and_says_so() -> None:
    of = model()
    found = place(of, snapshot(node("n1"), models=(of,)), avoid={"n1"})
    assert isinstance(found, Nowhere)
    assert found.reason == "n1 it failed there and was given up"
    assert chosen(of, snapshot(node("n1"), node("n2"), models=(of,)), avoid={"n1"}) == "n2"


def test_a_small_model_goes_where_a_large_one_does_not() -> None:
    of = model(profiles=[{"name": "cpu", "engine": "llamacpp", "min_memory_gb": 4}])
    probes = {"n1": probe("n1", memory={"total": 500 * MIB, "available": 500 * MIB}), "n2": probe("n2")}
    assert chosen(of, snapshot(node("n1"), node("n2"), models=(of,), probes=probes)) == "n2"
