"""What a probe means for a node is judged where it is written down, and replaces what was said before."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from llmgw.errors import NodeError
from llmgw.loops import observe
from llmgw.model.listing import Listing
from llmgw.model.node import Address, Node, NodeOptions, Problem
from llmgw.model.probe import Probe
from llmgw.store import migrate, nodes
from llmgw.store.db import Database, Tx

MACHINE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def tx() -> Tx:
    db = Database(sqlite3.connect(":memory:", isolation_level=None), execute_plugins=False)
    migrate.apply(db)
    tx = Tx(db, 1000.0)
    for name in ("a", "b"):
        nodes.put(tx, Node(id=name, address=Address(host=name, user="u"), host_key=""))
    return tx


def probed(tx: Tx, name: str, off: float = 0.0, **facts: Any) -> dict[str, str]:
    """Writes down a probe and answers with the node's problems, by code."""
    document = {
        "schema": 2,
        "at": 1000.0,
        "hostname": name,
        "machine_id": None,
        "boot_id": f"boot of {name}",
        "python": {"executable": "/usr/bin/python3", "version": "3.11.2"},
        "user": {"name": "u", "uid": 1000},
        "os": {"arch": "x86_64"},
        "libc": {"kind": "glibc", "version": "2.36"},
        "memory": {"total": 8 << 30, "available": 8 << 30},
        "root": {"path": "/home/u/.local/share/llmgw"},
        **facts,
    }
    observe._probed(tx, name, Probe.model_validate(document), document, off, False, (41000, 41999))
    node = nodes.get(tx.db, name)
    assert node is not None
    return {one.code: one.severity for one in node.problems}


def test_problems_are_those_of_the_last_probe(tx: Tx) -> None:
    nodes.change(tx, "a", problems=(Problem(code="old", severity="error", message="x"),))
    root = {"path": "/r", "noexec": True}
    assert probed(tx, "a", root=root) == {"noexec_root": "error"}
    assert probed(tx, "a") == {}


def test_a_node_that_does_not_obey_has_a_problem_until_it_does(tx: Tx) -> None:
    """Its link is up and its probe was fine: without that nobody would see why nothing starts there."""
    no = NodeError("term 3 is over, this node has obeyed term 5", fix="Look who has it.", code="superseded")
    assert probed(tx, "a", off=7200.0) == {"clock_wrong": "warning"}
    observe._look_failed(tx, "a", no, "superseded")
    observe._look_failed(tx, "a", no, "superseded")
    node = nodes.get(tx.db, "a")
    assert node is not None
    assert [(one.code, one.severity) for one in node.problems] == [("superseded", "error"), ("clock_wrong", "warning")]
    observe._apply(tx, "a", Listing(boot_id="b", now=0.0), set(), {})
    node = nodes.get(tx.db, "a")
    assert node is not None
    assert [one.code for one in node.problems] == ["clock_wrong"]


def test_a_look_that_is_only_late_is_no_problem_of_the_node(tx: Tx) -> None:
    observe._look_failed(tx, "a", NodeError("busy", code="busy"), "busy")
    node = nodes.get(tx.db, "a")
    assert node is not None
    assert node.problems == ()


def test_a_clock_that_is_off_is_said_and_changes_nothing_else(tx: Tx) -> None:
    assert probed(tx, "a", off=7200.0) == {"clock_wrong": "warning"}
    assert probed(tx, "a", off=-6.0) == {"clock_skew": "note"}
    assert probed(tx, "a", off=1.0) == {}


def test_a_cloned_machine_id_is_said_of_both(tx: Tx) -> None:
    assert probed(tx, "a", machine_id=MACHINE) == {}
    assert probed(tx, "b", machine_id=MACHINE) == {"machine_id_cloned": "warning"}
    assert probed(tx, "a", machine_id=MACHINE) == {"machine_id_cloned": "warning"}


def test_two_machines_without_an_id_are_no_clones(tx: Tx) -> None:
    assert probed(tx, "a", machine_id="uninitialized") == {"machine_id_missing": "warning"}
    assert probed(tx, "b", machine_id="uninitialized") == {"machine_id_missing": "warning"}


def test_ports_are_judged_by_those_configured(tx: Tx) -> None:
    assert probed(tx, "a", ports_in_use=list(range(41000, 42000))) == {"ports_none": "error"}


def test_declared_fabrics_are_judged(tx: Tx) -> None:
    nodes.change(tx, "a", options=NodeOptions(fabrics={"blue": ("mlx5_0", "mlx5_1")}))
    ports = [{"hca": name, "port": 1, "state": "DOWN", "link_layer": "InfiniBand"} for name in ("mlx5_0", "mlx5_1")]
    assert probed(tx, "a", fabric=ports) == {"fabric_port_down": "warning"}
