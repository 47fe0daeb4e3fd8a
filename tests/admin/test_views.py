"""Rows for tables: each layout speaks of columns that are there, and a thing is said once."""

from __future__ import annotations

import pytest

from llmgw.admin.fit import Layout
from llmgw.admin.views import (
    AUDIT,
    KEYS,
    MODELS,
    NODES,
    REPLICAS,
    Rows,
    audit_rows,
    key_rows,
    model_rows,
    node_detail,
    node_rows,
    replica_rows,
)
from llmgw.model.key import ApiKey
from llmgw.model.node import Address, LinkState, Node
from llmgw.model.requests import KeyList, NodeDetail
from llmgw.model.snapshot import Snapshot

NOTHING = Snapshot(at=0.0)
WHY = "its host key was SHA256:old and is now SHA256:new"
QUARANTINED = Node(
    id="n1", address=Address(host="n1", user="root"), host_key="", quarantined=WHY, link=LinkState.DOWN, link_error=WHY
)


@pytest.mark.parametrize(
    ("layout", "rows", "firm"),
    [
        (NODES, node_rows(NOTHING), {"NODE", "STATE"}),
        (REPLICAS, replica_rows(NOTHING), {"REPLICA", "STATE"}),
        (MODELS, model_rows(NOTHING), {"MODEL", "STATE"}),
        (AUDIT, audit_rows([]), {"NODE", "COMMAND", "OUTCOME"}),
        (KEYS, key_rows(KeyList(keys=())), {"KEY", "STATE"}),
    ],
    ids=["nodes", "replicas", "models", "audit", "keys"],
)
def test_every_column_has_its_place_in_the_order(layout: Layout, rows: Rows, firm: set[str]) -> None:
    columns = set(rows[0])
    assert columns >= {layout.prose, *layout.spare, *layout.scarce}
    assert columns - {*layout.spare, *layout.scarce} == firm
    assert not set(layout.spare) & set(layout.scarce)


def test_why_a_node_is_quarantined_is_its_first_problem_and_said_once() -> None:
    columns, (row,) = node_rows(Snapshot(at=0.0, nodes=(QUARANTINED,)))
    assert row[columns.index("PROBLEMS")] == WHY
    lines = [f"{key} {value}" for key, value in node_detail(NodeDetail(node=QUARANTINED, engines=(), probe=None))]
    assert [line for line in lines if WHY in line] == [f"quarantined {WHY}"]
    other = QUARANTINED.model_copy(update={"link_error": "no route"})
    lines = [f"{key} {value}" for key, value in node_detail(NodeDetail(node=other, engines=(), probe=None))]
    assert any(line.startswith("link") and line.endswith("no route") for line in lines)


def test_what_a_key_has_used_is_summed_over_its_models() -> None:
    usage = tuple(
        {"key": "k", "model": model, "requests": 2, "prompt_tokens": 3, "completion_tokens": 5} for model in "ab"
    )
    columns, (row, idle) = key_rows(KeyList(keys=tuple(ApiKey(name=n, hash="h", hint="sk") for n in "kl"), usage=usage))
    assert row[columns.index("REQUESTS") :] == [4, 6, 10]
    assert idle[columns.index("REQUESTS") :] == [0, 0, 0]
