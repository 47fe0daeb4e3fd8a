"""Every record comes back as it went in, whatever a node or an operator put into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.model.catalog import Model, Profile, Scaling, Task
from llmgw.model.engine import InstallState, NodeEngine
from llmgw.model.event import Audit, Severity
from llmgw.model.key import ApiKey
from llmgw.model.node import Address, DrainState, LinkState, Node, NodeOptions, NodeState, Problem
from llmgw.model.replica import Process, Replica, ReplicaState, Shard
from llmgw.model.usage import UsageRow
from llmgw.store import events, intents, keys, migrate, models, nodes, replicas
from llmgw.store.db import Database, Tx

FEW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True)
TIMES = st.floats(0, 4e9, allow_nan=False)
SIZES = st.integers(0, 2**62)


@pytest.fixture
def tx() -> Iterator[Tx]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.execute("PRAGMA foreign_keys=ON")
    db = Database(conn, execute_plugins=False)
    migrate.apply(db)
    yield Tx(db, 1_700_000_000.0)
    conn.close()


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


WORDS = st.from_regex(r"[!-~\u00e0-\u00ff]{1,20}", fullmatch=True)
PATHS = st.from_regex(r"/[a-z0-9\u00e0-\u00ff]{1,9}(/[a-z]{1,9})?", fullmatch=True)
ADDRESSES = st.builds(Address, host=WORDS, port=st.integers(1, 65535), user=WORDS, config_host=optional(TEXT))
OPTIONS = st.builds(
    NodeOptions, root=optional(PATHS), nvidia_smi=optional(PATHS), engines=st.dictionaries(TEXT, PATHS, max_size=3)
)
PROBLEMS = st.builds(Problem, code=TEXT, severity=st.sampled_from(["note", "warning", "error"]), message=TEXT, fix=TEXT)
NODES = st.builds(
    Node,
    id=NAMES,
    address=ADDRESSES,
    host_key=TEXT,
    options=OPTIONS,
    labels=st.dictionaries(TEXT, TEXT, max_size=3),
    state=st.sampled_from(list(NodeState)),
    cordoned=st.booleans(),
    cordoned_before_drain=st.booleans(),
    drain=st.sampled_from(list(DrainState)),
    link=st.sampled_from(list(LinkState)),
    link_since=optional(TIMES),
    link_error=optional(TEXT),
    quarantined=optional(TEXT),
    problems=st.lists(PROBLEMS, max_size=2).map(tuple),
    machine_id=optional(TEXT),
    boot_id=optional(TEXT),
    root=optional(TEXT),
    python=optional(TEXT),
    created=st.lists(TEXT, max_size=2).map(tuple),
    added_at=TIMES,
    seen_at=optional(TIMES),
    probed_at=optional(TIMES),
)
PROFILES = st.builds(
    Profile,
    name=NAMES,
    engine=NAMES,
    gpu_class=optional(TEXT),
    gpus=st.integers(0, 64),
    priority=st.integers(-1000, 1000),
    min_memory_gb=st.floats(0, 1e6),
    node_selector=st.dictionaries(TEXT, TEXT, max_size=2),
    args=st.lists(TEXT, max_size=3).map(tuple),
)
MODELS = st.builds(
    Model,
    name=NAMES,
    aliases=st.just(("Org/Model:1@x+y",)),
    task=st.sampled_from(list(Task)),
    source=TEXT,
    context_length=optional(st.integers(1, 10**7)),
    scaling=st.builds(Scaling, min=st.integers(0, 5), max=optional(st.integers(5, 9)), idle_ttl=TIMES),
    lost_after=TIMES,
    profiles=st.lists(PROFILES, min_size=1, max_size=2, unique_by=lambda each: each.name).map(tuple),
)
PROCESSES = st.builds(Process, boot_id=TEXT, pid=st.integers(1, 2**22), start_ticks=SIZES)
REPLICAS = st.builds(
    Replica,
    id=NAMES,
    model=NAMES,
    revision=TEXT,
    profile=NAMES,
    engine=NAMES,
    engine_version=TEXT,
    state=st.sampled_from(list(ReplicaState)),
    reason=TEXT,
    progress=optional(st.floats(0, 1)),
    wanted=st.booleans(),
    shards=st.builds(
        lambda shard: (shard,),
        st.builds(
            Shard,
            node=st.just("n1"),
            attempt=st.integers(0, 99),
            process=optional(PROCESSES),
            port=optional(st.integers(1, 65535)),
        ),
    ),
    memory_bytes=SIZES,
    created_at=TIMES,
    state_since=TIMES,
    ready_at=optional(TIMES),
    failures=st.integers(0, 99),
    next_try_at=optional(TIMES),
)


def clear(tx: Tx, *tables: str) -> None:
    for table in tables:
        tx.db.conn.execute(f"DELETE FROM {table}")


def some_node(name: str = "n1") -> Node:
    return Node(id=name, address=Address(host=name, user="root"), host_key="")


def some_replica(name: str = "m-1", on: str = "n1") -> Replica:
    return Replica(
        id=name, model="m", revision="r", profile="p", engine="e", engine_version="v", shards=(Shard(node=on),)
    )


@FEW
@given(NODES)
def test_nodes(tx: Tx, node: Node) -> None:
    clear(tx, "nodes")
    nodes.put(tx, node)
    assert nodes.every(tx.db) == [node]
    assert nodes.get(tx.db, node.id) == node
    assert nodes.get(tx.db, node.id + "x") is None


@FEW
@given(MODELS)
def test_models(tx: Tx, model: Model) -> None:
    clear(tx, "models")
    models.put(tx, model)
    assert models.every(tx.db) == [model]
    for name in model.names:
        assert models.get(tx.db, name) == model
    assert models.every(tx.db)[0].revision("v") == model.revision("v")


@FEW
@given(REPLICAS)
def test_replicas(tx: Tx, replica: Replica) -> None:
    clear(tx, "shards", "replicas", "nodes")
    nodes.put(tx, some_node())
    replicas.put(tx, replica)
    assert replicas.every(tx.db) == [replica]
    assert replicas.get(tx.db, replica.id) == replica


@FEW
@given(
    st.builds(
        NodeEngine,
        node=st.just("n1"),
        engine=NAMES,
        version=TEXT,
        build=TEXT,
        state=st.sampled_from(list(InstallState)),
        detail=TEXT,
        path=optional(TEXT),
        checked_at=optional(TIMES),
        attempts=st.integers(0, 99),
        next_try_at=optional(TIMES),
    )
)
def test_engines(tx: Tx, engine: NodeEngine) -> None:
    clear(tx, "node_engines", "nodes")
    nodes.put(tx, some_node())
    nodes.put_engine(tx, engine)
    nodes.put_engine(tx, engine)
    assert nodes.engines(tx.db) == nodes.engines(tx.db, "n1") == [engine]
    assert nodes.engines(tx.db, "other") == []
    nodes.remove_engine(tx, engine)
    assert nodes.engines(tx.db) == []


@FEW
@given(
    st.builds(
        ApiKey,
        name=NAMES,
        hash=TEXT,
        hint=TEXT,
        models=st.lists(NAMES, max_size=3).map(tuple),
        created_at=TIMES,
        revoked_at=optional(TIMES),
    )
)
def test_keys(tx: Tx, key: ApiKey) -> None:
    clear(tx, "keys")
    keys.put(tx, key)
    assert keys.get(tx.db, key.name) == key
    assert keys.every(tx.db, revoked=True) == [key]
    assert keys.every(tx.db) == ([key] if key.revoked_at is None else [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@FEW
@given(TEXT, TEXT, st.sampled_from(list(Severity)), optional(TEXT), JSON)
def test_events(tx: Tx, kind: str, message: str, severity: Severity, node: str | None, data: Any) -> None:
    clear(tx, "events")
    made = events.add(tx, kind, message, severity=severity, node=node, said=data)
    assert events.after(tx.db, made.id - 1) == [made]
    assert events.latest(tx.db) == [made]
    assert made.at == tx.now
    assert made.data == {"said": data}


@FEW
@given(
    st.builds(
        Audit,
        at=TIMES,
        node=TEXT,
        command=TEXT,
        detail=TEXT,
        exit_status=optional(st.integers(0, 255)),
        outcome=TEXT,
        seconds=TIMES,
    )
)
def test_audit(tx: Tx, entry: Audit) -> None:
    clear(tx, "audit")
    events.add_audit(tx, [entry])
    (found,) = events.audit(tx.db)
    assert found.model_copy(update={"id": 0}) == entry


# What hangs together


def test_a_change_reads_what_is_there_now(tx: Tx) -> None:
    nodes.put(tx, some_node())
    replicas.put(tx, some_replica())
    assert nodes.change(tx, "n1", cordoned=True).cordoned  # type: ignore[union-attr]
    assert nodes.change(tx, "n1", labels={"a": "b"}).cordoned  # type: ignore[union-attr]
    assert nodes.change(tx, "gone", cordoned=True) is None
    assert replicas.change(tx, "gone", reason="x") is None


def test_a_change_of_state_marks_its_time_and_forgets_the_progress(tx: Tx) -> None:
    nodes.put(tx, some_node())
    replicas.put(tx, some_replica())
    replicas.change(tx, "m-1", state=ReplicaState.FETCHING, progress=0.5)
    found = replicas.get(tx.db, "m-1")
    assert found is not None
    assert (found.state_since, found.progress) == (tx.now, 0.5)
    later = Tx(tx.db, tx.now + 9)
    replicas.change(later, "m-1", state=ReplicaState.FETCHING, reason="same state")
    replicas.change(later, "m-1", state=ReplicaState.STARTING)
    found = replicas.get(tx.db, "m-1")
    assert found is not None
    assert (found.state_since, found.progress, found.reason) == (later.now, None, "same state")


def test_storing_a_replica_again_keeps_its_shards(tx: Tx) -> None:
    """An INSERT OR REPLACE would delete the row first, and the shards with it."""
    nodes.put(tx, some_node("n1"))
    nodes.put(tx, some_node("n2"))
    both = some_replica().model_copy(update={"shards": (Shard(node="n1"), Shard(node="n2", rank=1, attempt=3))})
    replicas.put(tx, both)
    replicas.put(tx, both.model_copy(update={"reason": "again"}))
    nodes.put(tx, some_node("n1"))
    found = replicas.get(tx.db, "m-1")
    assert found is not None
    assert found.shards == both.shards


def test_a_replica_needs_its_node(tx: Tx) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        replicas.put(tx, some_replica(on="nowhere"))


def test_removing_a_node_takes_along_what_hangs_on_it_and_nothing_else(tx: Tx) -> None:
    for name in ("n1", "n2"):
        nodes.put(tx, some_node(name))
        nodes.put_probe(tx, name, {"schema": 1})
        nodes.put_engine(tx, NodeEngine(node=name, engine="sim", version="builtin"))
        replicas.put(tx, some_replica(f"m-{name}", on=name))
        intents.begin(tx, "start", name, term=1, replica=f"m-{name}")
        events.add(tx, "k", "stays", node=name)
    nodes.remove(tx, "n1")
    assert [one.id for one in nodes.every(tx.db)] == ["n2"]
    assert [one.id for one in replicas.every(tx.db)] == ["m-n2"]
    assert [one.node for one in nodes.engines(tx.db)] == ["n2"]
    assert list(nodes.probes(tx.db)) == ["n2"]
    assert [one.node for one in intents.open_ones(tx.db)] == ["n2"]
    assert tx.db.conn.execute("SELECT COUNT(*) FROM shards").fetchone() == (1,)
    assert len(events.latest(tx.db)) == 2


def test_removing_a_replica_takes_its_shards_along(tx: Tx) -> None:
    nodes.put(tx, some_node())
    replicas.put(tx, some_replica())
    replicas.remove(tx, "m-1")
    assert tx.db.conn.execute("SELECT COUNT(*) FROM shards").fetchone() == (0,)


def test_the_latest_and_the_previous_probe_are_kept(tx: Tx) -> None:
    nodes.put(tx, some_node())
    assert nodes.probe(tx.db, "n1") is None
    assert nodes.put_probe(tx, "n1", {"at": 1}) is None
    assert nodes.put_probe(tx, "n1", {"at": 2}) == {"at": 1}
    assert nodes.put_probe(tx, "n1", {"at": 3, "name": "gpü"}) == {"at": 2}
    assert nodes.probe(tx.db, "n1") == {"at": 3, "name": "gpü"}


def test_changing_a_model_keeps_when_it_came(tx: Tx) -> None:
    first = Model(name="m", source="sim:", profiles=(Profile(name="p", engine="sim"),))
    models.put(tx, first)
    models.put(Tx(tx.db, tx.now + 100), first.model_copy(update={"context_length": 5}))
    assert models.created(tx.db) == {"m": tx.now}
    assert models.get(tx.db, "m").context_length == 5  # type: ignore[union-attr]
    models.remove(tx, "m")
    assert models.every(tx.db) == []


def test_intents(tx: Tx) -> None:
    first = intents.begin(tx, "start", "n1", term=3, replica="a", attempt=1)
    intents.begin(tx, "start", "n1", term=3, replica="b")
    intents.begin(tx, "stop", "n2", term=3, replica="b")
    assert [(one.kind, one.replica, one.attempt, one.term) for one in intents.open_ones(tx.db, "n1")] == [
        ("start", "a", 1, 3),
        ("start", "b", None, 3),
    ]
    intents.close(tx, first, "started")
    intents.close(Tx(tx.db, tx.now + 5), first, "again")
    assert tx.db.conn.execute("SELECT outcome, closed_at FROM intents WHERE id = ?", [first]).fetchone() == (
        "started",
        tx.now,
    )
    intents.close_for(tx, "b", "gone")
    assert intents.open_ones(tx.db) == []
    intents.begin(tx, "stop", "n2", term=3, replica="c")
    intents.prune(tx, tx.now + 1)
    assert tx.db.conn.execute("SELECT COUNT(*) FROM intents").fetchone() == (1,), "an open one is never pruned"


# Events


def test_events_after_and_latest(tx: Tx) -> None:
    for number in range(10):
        events.add(tx, "k", str(number), node="even" if number % 2 == 0 else "odd", replica="r" if number > 7 else None)

    def said(found: list[Any]) -> str:
        return "".join(event.message for event in found)

    assert said(events.after(tx.db, 0)) == "0123456789"
    assert said(events.after(tx.db, 7)) == "789"
    assert said(events.after(tx.db, 0, limit=3)) == "012"
    assert said(events.after(tx.db, 2, node="even")) == "2468"
    assert said(events.latest(tx.db, limit=3)) == "789"
    assert said(events.latest(tx.db, limit=2, node="odd")) == "79"
    assert said(events.latest(tx.db, replica="r")) == "89"
    assert [event.message for event in tx.events] == list("0123456789")


def test_events_are_pruned_by_age_and_by_number(tx: Tx) -> None:
    for number in range(10):
        events.add(Tx(tx.db, float(number)), "k", str(number))
        events.add_audit(tx, [Audit(at=float(number), node="n", command="probe.py")])
    assert events.prune(tx, older_than=3.0, keep=1000) == 6
    assert [event.message for event in events.after(tx.db, 0)] == list("3456789")
    assert events.prune(tx, older_than=0.0, keep=2) == 10
    assert [event.message for event in events.after(tx.db, 0)] == ["8", "9"]
    assert events.add(tx, "k", "next").id == 11, "numbers are never used again: a resumed stream would miss events"
    events.prune(tx, older_than=1e12, keep=0)
    assert events.add(tx, "k", "next").id == 12


def test_audit_is_read_by_node(tx: Tx) -> None:
    for number in range(6):
        events.add_audit(tx, [Audit(at=0.0, node=f"n{number % 2}", command=str(number))])
    assert [entry.command for entry in events.audit(tx.db, node="n1", limit=2)] == ["3", "5"]
    assert [entry.id for entry in events.audit(tx.db)] == [1, 2, 3, 4, 5, 6]


# Usage


def test_usage_adds_up_by_key_model_and_day(tx: Tx) -> None:
    row = UsageRow(key="k", model="m", requests=2, prompt_tokens=3, completion_tokens=5, cancelled=1, failed=1)
    keys.add_usage(tx, [row, row, UsageRow(key="", model="m", requests=1)])
    keys.add_usage(Tx(tx.db, tx.now + 86400), [row])
    found = {(each["key"], each["day"]): each for each in keys.usage(tx.db)}
    assert found["k", "2023-11-14"] == {
        "key": "k",
        "model": "m",
        "day": "2023-11-14",
        "requests": 4,
        "prompt_tokens": 6,
        "completion_tokens": 10,
        "cancelled": 2,
        "failed": 2,
    }
    assert found["", "2023-11-14"]["requests"] == 1
    assert found["k", "2023-11-15"]["requests"] == 2


def test_two_keys_never_share_a_hash(tx: Tx) -> None:
    keys.put(tx, ApiKey(name="a", hash="h", hint="x"))
    with pytest.raises(sqlite3.IntegrityError):
        keys.put(tx, ApiKey(name="b", hash="h", hint="x"))
