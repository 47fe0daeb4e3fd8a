"""Wishes against what is there: each bucket, each reason, and what must never be decided."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.core.fit import closed, holding
from llmgw.core.reconcile import UNSTARTED_PATIENCE, reconcile
from llmgw.engines.base import GIB, MIB
from llmgw.model.action import Forget, Launch, MarkDrained, Place, Retire
from llmgw.model.catalog import Model
from llmgw.model.node import DrainState, LinkState, Node, NodeState, Problem
from llmgw.model.replica import Replica, ReplicaState, Shard
from llmgw.model.snapshot import Snapshot
from llmgw.model.weights import FetchState

from .house import House
from .made import NEED, NOW, SOURCE, VERSION, model, node, probe, replica, snapshot, weights

S = ReplicaState
M = model()


def decide(*args: Any, at: float = NOW, **kwargs: Any):
    return reconcile(snapshot(*args, **kwargs), at).actions


def status(*args: Any, at: float = NOW, **kwargs: Any) -> tuple[str, str]:
    (found,) = reconcile(snapshot(*args, **kwargs), at).status
    return found.state, found.reason


# Placing


def test_what_is_missing_is_placed_and_then_launched() -> None:
    (placed,) = decide(node(), models=(M,))
    assert placed == Place(
        model="m",
        revision=M.revision(VERSION),
        profile="cpu",
        engine="llamacpp",
        engine_version=VERSION,
        nodes=("n1",),
        memory_bytes=NEED,
        reason="0 of 1 replicas are there; n1 fits profile cpu",
    )
    there = replica(M, "m-1", state=S.PLACED, attempt=0)
    assert decide(node(), models=(M,), replicas=(there,)) == [Launch(replica="m-1", reason="placed on n1")]


def test_several_are_spread_in_one_decision() -> None:
    found = decide(node("n1"), node("n2"), models=(model(want=3),))
    assert [action.nodes for action in found] == [("n1",), ("n2",), ("n1",)]
    assert found[2].reason.startswith("2 of 3 replicas are there")


def test_the_next_model_sees_what_the_first_was_given() -> None:
    tight = {"n1": probe(memory={"total": 400 * MIB, "available": 400 * MIB})}
    found = decide(node(), models=(model("a"), model("b")), probes=tight)
    assert [action.model for action in found] == ["a"]


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (weights(state=FetchState.ABSENT), "fetching its weights"),
        (None, "fetching its weights"),
        (weights(state=FetchState.FETCHING, done=50 * MIB), "fetching its weights 50% of 100 MB"),
        (weights(None, state=FetchState.FETCHING, done=5), "fetching its weights"),
        (weights(state=FetchState.FAILED, error="it answered 404."), "its weights cannot be had: it answered 404."),
    ],
)
def test_nothing_is_placed_by_a_size_that_is_not_known(there: Any, words: str) -> None:
    found = reconcile(snapshot(node(), models=(M,), weights={SOURCE: there} if there else {}), NOW)
    assert found.actions == []
    assert found.status[0].reason == words
    assert found.status[0].state == ("loading" if words.startswith("fetching") else "unplaceable")


# Launching


@pytest.mark.parametrize(
    ("state", "fields", "where", "reason"),
    [
        (S.PLACED, {"next_try_at": NOW + 1}, {}, None),
        (S.PLACED, {"next_try_at": NOW}, {}, "placed on n1"),
        (S.FAILED, {"next_try_at": NOW + 1, "reason": "boom"}, {}, None),
        (S.FAILED, {"next_try_at": NOW, "reason": "boom"}, {}, "attempt 2 failed: boom"),
        (S.FAILED, {"next_try_at": NOW}, {"link": LinkState.DOWN}, None),
        (S.FAILED, {"next_try_at": NOW}, {"quarantined": "key"}, None),
        (S.PLACED, {}, {"link": LinkState.DOWN, "link_since": NOW}, None),
        (S.PLACED, {}, {"cordoned": True}, "placed on n1"),
        (S.FETCHING, {}, {}, None),
        (S.STARTING, {}, {}, None),
        (S.LOADING, {}, {}, None),
        (S.READY, {}, {}, None),
        (S.LOST, {"state_since": NOW}, {}, None),
    ],
)
def test_what_is_launched(
    state: ReplicaState, fields: dict[str, Any], where: dict[str, Any], reason: str | None
) -> None:
    there = replica(M, "m-1", state=state, attempt=2, **fields)
    found = decide(node(**where), models=(M,), replicas=(there,))
    assert found == ([Launch(replica="m-1", reason=reason)] if reason else [])


# Waiting for what is away


def test_a_lost_replica_counts_as_present_until_lost_after() -> None:
    nodes = (node("n1", link=LinkState.DOWN), node("n2"))
    lost = replica(M, "m-1", state=S.LOST, state_since=NOW)
    assert decide(*nodes, models=(M,), replicas=(lost,), at=NOW + M.lost_after - 1) == []
    (placed,) = decide(*nodes, models=(M,), replicas=(lost,), at=NOW + M.lost_after)
    assert placed.nodes == ("n2",)


@pytest.mark.parametrize("state", [S.STARTING, S.LOADING, S.READY])
def test_so_does_one_that_was_not_yet_called_lost(state: ReplicaState) -> None:
    """The launch was recorded a moment after the link's loss was."""
    nodes = (node("n1", link=LinkState.DOWN, link_since=NOW), node("n2"))
    there = replica(M, "m-1", state=state, state_since=NOW + 1)
    assert decide(*nodes, models=(M,), replicas=(there,), at=NOW + M.lost_after) == []
    (placed,) = decide(*nodes, models=(M,), replicas=(there,), at=NOW + M.lost_after + 1)
    assert placed.nodes == ("n2",)


def test_what_was_never_started_goes_elsewhere_soon() -> None:
    nodes = (node("n1", link=LinkState.DOWN, link_since=NOW), node("n2"))
    waiting = replica(M, "m-1", state=S.PLACED, attempt=0)
    assert decide(*nodes, models=(M,), replicas=(waiting,), at=NOW + UNSTARTED_PATIENCE) == []
    retired, placed = decide(*nodes, models=(M,), replicas=(waiting,), at=NOW + UNSTARTED_PATIENCE + 1)
    assert retired == Retire(replica="m-1", reason="n1 cannot be reached; nothing of it ran there")
    assert placed.nodes == ("n2",)


def test_so_does_one_whose_second_launch_never_happened() -> None:
    nodes = (node("n1", link=LinkState.DOWN, link_since=NOW), node("n2"))
    waiting = replica(M, "m-1", state=S.PLACED, attempt=1)
    found = decide(*nodes, models=(M,), replicas=(waiting,), at=NOW + UNSTARTED_PATIENCE + 1)
    assert [type(action) for action in found] == [Retire, Place]


def test_one_that_waits_on_a_node_that_is_quarantined_goes_elsewhere_at_once() -> None:
    nodes = (node("n1", quarantined="its machine id changed"), node("n2"))
    found = decide(*nodes, models=(M,), replicas=(replica(M, "m-1", state=S.PLACED, attempt=0),))
    assert [type(action) for action in found] == [Retire, Place]


@pytest.mark.parametrize("state", [S.STARTING, S.LOADING, S.READY])
def test_what_runs_on_a_quarantined_node_serves_nobody_and_is_replaced_not_stopped(state: ReplicaState) -> None:
    nodes = (node("n1", quarantined="its machine id changed"), node("n2"))
    found = reconcile(snapshot(*nodes, models=(M,), replicas=(replica(M, "m-1", state=state),)), NOW)
    (placed,) = found.actions
    assert isinstance(placed, Place)
    assert placed.nodes == ("n2",)
    alone = reconcile(snapshot(nodes[0], models=(M,), replicas=(replica(M, "m-1", state=state),)), NOW)
    assert alone.actions == []
    assert (alone.status[0].state, alone.status[0].ready) == ("unplaceable", 0)


@pytest.mark.parametrize("where", [{"link": LinkState.DOWN}, {"quarantined": "key"}])
def test_a_failed_one_that_cannot_be_tried_again_is_replaced_after_a_while(where: dict[str, Any]) -> None:
    nodes = (node("n1", **where), node("n2"))
    failed = replica(M, "m-1", state=S.FAILED, next_try_at=NOW + 5, state_since=NOW)
    assert decide(*nodes, models=(M,), replicas=(failed,)) == []
    (placed,) = decide(*nodes, models=(M,), replicas=(failed,), at=NOW + M.lost_after)
    assert isinstance(placed, Place)


# Given up


def test_one_that_was_given_up_is_replaced_elsewhere_and_then_retired() -> None:
    given_up = replica(M, "m-1", state=S.FAILED, reason="out of memory")
    (placed,) = decide(node("n1"), node("n2"), models=(M,), replicas=(given_up,))
    assert placed.nodes == ("n2",)
    replaced = replica(M, "m-2", on="n2")
    found = decide(node("n1"), node("n2"), models=(M,), replicas=(given_up, replaced))
    assert found == [Retire(replica="m-1", reason="given up: out of memory; it has been replaced")]


def test_one_that_was_given_up_stays_as_the_reason_where_there_is_nothing_else() -> None:
    given_up = replica(M, "m-1", state=S.FAILED, reason="out of memory")
    assert decide(node(), models=(M,), replicas=(given_up,)) == []
    assert status(node(), models=(M,), replicas=(given_up,)) == ("unplaceable", "n1 it failed there and was given up")


def test_a_changed_entry_gives_it_another_chance_on_the_same_node() -> None:
    given_up = replica(M, "m-1", state=S.FAILED, reason="error: unrecognized arguments: --bogus")
    mended = model(profiles=[{"name": "cpu", "engine": "llamacpp", "args": ["--threads", "2"]}])
    placed, retired = decide(node(), models=(mended,), replicas=(given_up,))
    assert placed.nodes == ("n1",)
    assert retired == Retire(replica="m-1", reason="the catalog entry has changed")


def test_a_drain_does_not_wait_for_one_that_was_given_up() -> None:
    given_up = replica(M, "m-1", state=S.FAILED, reason="boom")
    (retired,) = decide(node(drain=DrainState.DRAINING), models=(M,), replicas=(given_up,))
    assert retired == Retire(replica="m-1", reason="n1 is being drained")


# Leaving


def test_a_drain_has_the_replacement_ready_before_the_original_stops() -> None:
    nodes = (node("n1", drain=DrainState.DRAINING), node("n2"))
    old = replica(M, "m-1")
    (placed,) = decide(*nodes, models=(M,), replicas=(old,))
    assert placed.nodes == ("n2",)
    for coming in (S.PLACED, S.FETCHING, S.STARTING, S.LOADING, S.LOST):
        new = replica(M, "m-2", on="n2", state=coming, state_since=NOW, next_try_at=NOW + 9)
        assert decide(*nodes, models=(M,), replicas=(old, new)) == [], coming
    new = replica(M, "m-2", on="n2")
    found = decide(*nodes, models=(M,), replicas=(old, new))
    assert found == [Retire(replica="m-1", reason="n1 is being drained; another is ready")]


def test_a_drain_moves_one_replica_at_a_time() -> None:
    of = model(want=3)
    nodes = (node("n1", drain=DrainState.DRAINING), node("n2"))
    old = tuple(replica(of, f"m-{index}") for index in range(3))
    assert len(decide(*nodes, models=(of,), replicas=old)) == 1
    new = replica(of, "m-9", on="n2")
    (place, retired) = decide(*nodes, models=(of,), replicas=(*old, new))
    assert (type(place), type(retired)) == (Place, Retire)
    going = replica(of, "m-0", state=S.DRAINING, wanted=False)
    found = decide(*nodes, models=(of,), replicas=(going, *old[1:], new))
    assert [type(action) for action in found] == [Place]


def test_what_does_not_serve_leaves_a_draining_node_at_once() -> None:
    nodes = (node("n1", drain=DrainState.DRAINING), node("n2"))
    for state in (S.PLACED, S.FETCHING, S.STARTING, S.LOADING):
        found = decide(*nodes, models=(M,), replicas=(replica(M, "m-1", state=state),))
        assert {type(action) for action in found} == {Place, Retire}, state


def test_one_that_served_and_is_asked_anew_stays_on_a_draining_node_until_that_is_known() -> None:
    """Adopted a moment ago, after a restart or a lost link: a drain that comes just then takes nothing that serves."""
    nodes = (node("n1", drain=DrainState.DRAINING), node("n2"))
    adopted = replica(M, "m-1", state=S.LOADING, ready_at=NOW - 100)
    new = replica(M, "m-2", on="n2", state=S.LOADING)
    assert [type(action) for action in decide(*nodes, models=(M,), replicas=(adopted,))] == [Place]
    assert decide(*nodes, models=(M,), replicas=(adopted, new)) == []
    serving = adopted.model_copy(update={"state": S.READY})
    (gone,) = decide(*nodes, models=(M,), replicas=(serving, replica(M, "m-2", on="n2")))
    assert (type(gone), gone.replica) == (Retire, "m-1")


def test_a_lost_one_on_a_draining_node_is_replaced_and_stopped_when_it_is_back() -> None:
    nodes = (node("n1", drain=DrainState.DRAINING, link=LinkState.DOWN), node("n2"))
    lost = replica(M, "m-1", state=S.LOST, state_since=NOW)
    (placed,) = decide(*nodes, models=(M,), replicas=(lost,))
    assert isinstance(placed, Place)
    back = (node("n1", drain=DrainState.DRAINING), node("n2"))
    found = decide(*back, models=(M,), replicas=(replica(M, "m-1"), replica(M, "m-2", on="n2")))
    assert [action.replica for action in found] == ["m-1"]


def test_a_drain_that_finds_no_other_node_stops_nothing_and_says_so() -> None:
    nodes = (node("n1", drain=DrainState.DRAINING),)
    there = (replica(M, "m-1"),)
    assert decide(*nodes, models=(M,), replicas=there) == []
    state, reason = status(*nodes, models=(M,), replicas=there)
    assert (state, reason) == ("ready", "a replacement finds no node (n1 is being drained)")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (model(context_length=4096), "the catalog entry has changed; another is ready"),
        (
            model(profiles=[{"name": "other", "engine": "llamacpp"}]),
            "profile cpu is not in the catalog entry any more; another is ready",
        ),
    ],
)
def test_an_outdated_replica_is_replaced_before_it_goes(changed: Model, reason: str) -> None:
    old = replica(M, "m-1")
    found = decide(node("n1"), node("n2"), models=(changed,), replicas=(old,))
    assert [type(action) for action in found] == [Place]
    new = replica(changed, "m-2", on="n2")
    assert decide(node("n1"), node("n2"), models=(changed,), replicas=(old, new)) == [
        Retire(replica="m-1", reason=reason)
    ]


def test_scaling_and_names_change_no_revision() -> None:
    changed = model(want=1, aliases=["x"], lost_after="1h")
    assert decide(node(), models=(changed,), replicas=(replica(M, "m-1"),)) == []


# Too many


@pytest.mark.parametrize(
    ("states", "want", "goes"),
    [
        ([S.READY, S.LOADING], 1, ["m-1"]),
        ([S.LOADING, S.LOST, S.READY], 1, ["m-1", "m-0"]),
        ([S.READY, S.READY], 1, ["m-1"]),
        ([S.READY, S.READY], 0, ["m-1", "m-0"]),
        ([S.READY], 1, []),
    ],
)
def test_surplus_goes_from_the_least_useful_on_and_then_the_youngest(
    states: list[ReplicaState], want: int, goes: list[str]
) -> None:
    of = model(want=want)
    there = tuple(
        replica(of, f"m-{index}", state=state, created_at=NOW + index, state_since=NOW)
        for index, state in enumerate(states)
    )
    found = decide(node(), models=(of,), replicas=there)
    assert [action.replica for action in found] == goes
    assert all(action.reason == f"{len(states)} replicas, {want} wanted" or len(goes) > 1 for action in found)


def test_a_model_out_of_the_catalog_takes_its_replicas_along() -> None:
    found = decide(node(), replicas=(replica(M, "m-1"), replica(M, "m-2", state=S.STOPPING, wanted=False)))
    assert found == [Retire(replica="m-1", reason="m is not in the catalog any more")]


def test_what_is_stopped_is_forgotten() -> None:
    over = replica(M, "m-1", state=S.STOPPED, wanted=False)
    assert Forget(replica="m-1", reason="nothing of it is left on its node") in decide(node(), replicas=(over,))


# Drained


@pytest.mark.parametrize(
    ("state", "drained"),
    [(None, True), (S.STOPPED, True), (S.READY, False), (S.STOPPING, False), (S.LOST, False), (S.FAILED, False)],
)
def test_a_node_is_drained_when_nothing_is_left(state: ReplicaState | None, drained: bool) -> None:
    there = () if state is None else (replica(M, "m-1", state=state, wanted=False),)
    found = decide(node(drain=DrainState.DRAINING), replicas=there)
    marked = MarkDrained(node="n1", reason="nothing of ours runs on it any more") in found
    assert marked is drained


def test_a_node_that_is_not_being_drained_is_not_marked() -> None:
    assert decide(node("n1"), node("n2", drain=DrainState.DRAINED)) == []


# Status


@pytest.mark.parametrize(
    ("of", "there", "expected"),
    [
        (model(want=0), (), ("stopped", "")),
        (M, (replica(M, "m-1"),), ("ready", "")),
        (M, (replica(M, "m-1", state=S.LOADING, reason="pid 7"),), ("loading", "m-1 is loading on n1 (pid 7)")),
        (M, (replica(M, "m-1", state=S.FETCHING),), ("loading", "m-1 is fetching on n1")),
        (
            M,
            (replica(M, "m-1", state=S.FAILED, reason="boom", next_try_at=NOW + 9),),
            ("degraded", "m-1 is failed on n1 (boom)"),
        ),
        (
            model(want=2),
            (replica(M, "m-1"), replica(M, "m-2", state=S.LOST, state_since=NOW)),
            ("degraded", "m-2 is lost on n1"),
        ),
    ],
)
def test_status(of: Model, there: tuple[Replica, ...], expected: tuple[str, str]) -> None:
    assert status(node(), models=(of,), replicas=there) == expected


def test_a_model_with_no_node_says_what_each_node_said() -> None:
    found = status(node("n1", cordoned=True), node("n2", link=LinkState.DOWN, link_error="no route"), models=(M,))
    assert found == ("unplaceable", "n1 is cordoned; n2 cannot be reached: no route")


# What must hold whatever is there


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    names = ["n1", "n2", "n3"][: draw(st.integers(1, 3))]
    nodes = tuple(
        node(
            name,
            link=draw(st.sampled_from([LinkState.UP, LinkState.UP, LinkState.DOWN])),
            link_since=NOW - draw(st.sampled_from([1, 1000])),
            drain=draw(st.sampled_from([DrainState.NONE, DrainState.NONE, *DrainState])),
            cordoned=draw(st.integers(0, 4)) == 0,
            quarantined=draw(st.sampled_from([None, None, None, "key"])),
            state=draw(st.sampled_from([NodeState.READY, NodeState.READY, NodeState.ADDING])),
            problems=(Problem(code="x", severity="error", message="broken"),) if draw(st.integers(0, 5)) == 0 else (),
        )
        for name in names
    )
    gpu = {"vendor": "nvidia", "name": "H100"}
    probes = {
        name: probe(
            name,
            memory={"total": size, "available": size},
            gpus=[gpu] * draw(st.integers(0, 2)),
        )
        for name in names
        if (size := draw(st.sampled_from([300 * MIB, 700 * MIB, 2 * GIB])))
    }
    models = tuple(
        model(name, want=draw(st.integers(0, 3)), profiles=[{"name": "cpu", "engine": "llamacpp", "gpus": gpus}])
        for name in ["a", "b"][: draw(st.integers(1, 2))]
        if (gpus := draw(st.sampled_from([0, 0, 1]))) is not None
    )
    gone = model("gone")
    replicas = []
    for index in range(draw(st.integers(0, 6))):
        of = draw(st.sampled_from([*models, gone]))
        state = draw(st.sampled_from([one for one in S if one is not S.UNCLAIMED]))
        wanted = state not in (S.DRAINING, S.STOPPING, S.STOPPED)
        attempt = 0 if state is S.PLACED and draw(st.booleans()) else draw(st.integers(1, 3))
        replicas.append(
            replica(
                of,
                f"{of.name}-{index}",
                on=draw(st.sampled_from(names)),
                state=state,
                attempt=attempt,
                wanted=wanted,
                state_since=NOW - draw(st.sampled_from([1, 1000])),
                next_try_at=draw(st.sampled_from([None, NOW - 1, NOW + 10])) if state in (S.PLACED, S.FAILED) else None,
                revision=draw(st.sampled_from([of.revision(VERSION)] * 3 + ["outdated"])),
                created_at=NOW - index,
            )
        )
    return snapshot(*nodes, models=models, replicas=tuple(replicas), probes=probes)


FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
HOUSE = House()


def gpus_of(snapshot: Snapshot, name: str) -> int:
    return snapshot.model_by_name[name].profiles[0].gpus if name in snapshot.model_by_name else 0


@FEW
@given(worlds())
def test_places_only_where_it_may_and_where_there_is_room(world: Snapshot) -> None:
    places = [action for action in reconcile(world, NOW).actions if isinstance(action, Place)]
    for one in world.nodes:
        here = [action for action in places if one.id in action.nodes]
        if not here:
            continue
        assert closed(one) is None
        held = holding(one.id, world)
        usable = world.probes[one.id].memory.usable or 0
        assert sum(each.memory_bytes for each in held) + sum(action.memory_bytes for action in here) <= usable
        wanting = [action for action in here if gpus_of(world, action.model)]
        if wanting:
            given_away = sum(gpus_of(world, each.model) for each in held) + len(wanting)
            assert given_away <= len(world.probes[one.id].gpus)


@FEW
@given(worlds())
def test_one_action_a_replica_and_only_one_that_makes_sense(world: Snapshot) -> None:
    actions = reconcile(world, NOW).actions
    by_id = {one.id: one for one in world.replicas}
    named = [action.replica for action in actions if isinstance(action, (Launch, Retire, Forget))]
    assert max(Counter(named).values(), default=1) == 1
    for action in actions:
        assert action.reason
        if isinstance(action, Launch):
            one = by_id[action.replica]
            where = world.node_by_id[one.lead.node]
            assert one.wanted
            assert one.state in (S.PLACED, S.FAILED)
            assert where.link is LinkState.UP
            assert not where.quarantined
            assert where.drain is DrainState.NONE
            assert one.next_try_at is None or one.next_try_at <= NOW
        elif isinstance(action, Retire):
            assert by_id[action.replica].wanted
            assert not by_id[action.replica].state.going
        elif isinstance(action, Forget):
            assert by_id[action.replica].state is S.STOPPED


@FEW
@given(worlds())
def test_nothing_that_serves_is_stopped_while_it_is_needed(world: Snapshot) -> None:
    retired = {action.replica for action in reconcile(world, NOW).actions if isinstance(action, Retire)}
    for of in world.models:
        ready = [
            one
            for one in world.replicas_of(of.name)
            if one.state is S.READY and one.wanted and not world.node_by_id[one.lead.node].quarantined
        ]
        if retired & {one.id for one in ready}:
            assert len([one for one in ready if one.id not in retired]) >= of.scaling.min


@FEW
@given(worlds())
def test_never_more_than_wanted(world: Snapshot) -> None:
    HOUSE.fill(world.nodes, world.models, world.replicas)
    HOUSE.carry_out(reconcile(world, NOW).actions, NOW)
    after = HOUSE.again(world)
    known = {one.id for one in world.replicas}
    for of in world.models:
        new = [one for one in after.replicas_of(of.name) if one.id not in known]
        healthy = [
            one
            for one in after.replicas_of(of.name)
            if one.wanted
            and one.state in (S.PLACED, S.FETCHING, S.STARTING, S.LOADING, S.READY)
            and one.revision == of.revision(VERSION)
            and (there := world.node_by_id[one.lead.node]).drain is DrainState.NONE
            and not there.quarantined
        ]
        assert len(new) <= of.scaling.min
        assert not new or len(healthy) <= of.scaling.min


@FEW
@given(worlds())
def test_a_drained_node_holds_nothing(world: Snapshot) -> None:
    for action in reconcile(world, NOW).actions:
        if isinstance(action, MarkDrained):
            assert world.node_by_id[action.node].drain is DrainState.DRAINING
            assert all(one.state is S.STOPPED for one in world.replicas_on(action.node))


@FEW
@given(worlds())
def test_run_again_on_its_own_result_it_comes_to_rest(world: Snapshot) -> None:
    """What is placed is launched, what is stopped is forgotten: then nothing more, however often it is asked."""
    HOUSE.fill(world.nodes, world.models, world.replicas)
    first = reconcile(world, NOW).actions
    HOUSE.carry_out(first, NOW)
    world = HOUSE.again(world)
    second = reconcile(world, NOW).actions
    assert not any(isinstance(action, (Place, Retire)) for action in second), (first, second)
    HOUSE.carry_out(second, NOW)
    world = HOUSE.again(world)
    assert reconcile(world, NOW).actions == [], (first, second)


@FEW
@given(worlds())
def test_the_same_truth_gives_the_same_decision(world: Snapshot) -> None:
    assert reconcile(world, NOW) == reconcile(Snapshot.model_validate(world.model_dump(by_alias=True)), NOW)


def test_each_replica_ends_in_exactly_one_bucket() -> None:
    from llmgw.core.reconcile import _sort

    @FEW
    @given(worlds())
    def check(world: Snapshot) -> None:
        for of in world.models:
            buckets = _sort(of, world, NOW)
            ids = [one.id for one in buckets.staying + buckets.going]
            ids += [one.id for one, _ in buckets.leaving + buckets.absent]
            assert sorted(ids) == sorted(one.id for one in world.replicas_of(of.name))

    check()


def test_a_shard_list_with_two_nodes_leaves_when_either_is_drained() -> None:
    both = replica(M, "m-1", shards=(Shard(node="n1", attempt=1), Shard(node="n2", rank=1, attempt=1)))
    nodes: tuple[Node, ...] = (node("n1"), node("n2", drain=DrainState.DRAINING), node("n3"))
    (placed,) = decide(*nodes, models=(M,), replicas=(both,))
    assert isinstance(placed, Place)
