"""What `node show` and the dashboard say of a node's cards and adapters, from the documents of recorded machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgw.admin.views import node_detail
from llmgw.model.node import Address, Node
from llmgw.model.requests import NodeDetail, SshSetting

MACHINES = Path(__file__).resolve().parents[1] / "machines"
NODE = Node(id="n1", address=Address(host="n1", user="root"), host_key="")


def shown(machine: str, **more: object) -> list[tuple[str, object]]:
    document = json.loads((MACHINES / machine / "expected.json").read_text())
    return node_detail(NodeDetail(node=NODE, engines=(), probe=document, **more))


@pytest.mark.parametrize("machine", sorted(path.parent.name for path in MACHINES.glob("*/expected.json")))
def test_every_recorded_machine_can_be_shown(machine: str) -> None:
    assert all(str(value) for _, value in shown(machine))


def test_a_card_that_is_lost_is_named_by_its_place() -> None:
    cards = [str(value) for key, value in shown("gpu-is-lost") if key == "gpu"]
    assert any("lost: " in card and card.startswith("0000:") for card in cards)


def test_slices_are_counted() -> None:
    assert any("MIG, " in str(value) for key, value in shown("a100-mig") if key == "gpu")


def test_adapters_are_shown_with_their_rate() -> None:
    ports = [str(value) for key, value in shown("ib-ndr") if key == "fabric"]
    assert any(port.endswith("400 Gb/s") for port in ports)


def test_the_way_to_a_node_and_where_each_setting_comes_from() -> None:
    way = (SshSetting(name="Port", value="2222", source="~/.ssh/config"),)
    found = dict(shown("kvm64", ssh=way, data_path="relay"))
    assert found["Port"] == "2222  (~/.ssh/config)"
    assert found["data path"] == "relay"
