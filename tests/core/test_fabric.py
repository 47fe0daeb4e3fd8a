"""Groups of adapters before anybody is asked: by subnet manager, or by RoCE network."""

from __future__ import annotations

from llmgw.core.fabric import Group, groups
from llmgw.model.probe import Probe

from .findings.node import probe


def ib(hca: str, sm_lid: int = 1, **more: object) -> dict[str, object]:
    return {"hca": hca, "port": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "sm_lid": sm_lid, **more}


def roce(hca: str, net: str, **more: object) -> dict[str, object]:
    return {"hca": hca, "port": 1, "state": "ACTIVE", "link_layer": "Ethernet", "nets": [net], **more}


def found(fabric: list[dict[str, object]], interfaces: list[dict[str, object]] | None = None) -> list[Group]:
    return groups(probe(fabric=fabric, interfaces=interfaces or []))


def test_adapters_under_one_subnet_manager_are_one_group() -> None:
    assert found([ib("mlx5_1"), ib("mlx5_0"), ib("mlx5_2", sm_lid=7)]) == [
        Group("InfiniBand", "subnet manager at LID 1", ("mlx5_1", "mlx5_0")),
        Group("InfiniBand", "subnet manager at LID 7", ("mlx5_2",)),
    ]


def test_a_subnet_prefix_tells_two_managers_of_one_lid_apart() -> None:
    both = found([ib("a", subnet_prefix="fe80::1"), ib("b", subnet_prefix="fe80::2")])
    assert [group.adapters for group in both] == [("a",), ("b",)]


def test_two_ports_of_an_adapter_are_one_adapter() -> None:
    assert found([ib("mlx5_0"), ib("mlx5_0", port=2)])[0].adapters == ("mlx5_0",)


def test_ports_of_one_adapter_on_two_networks_are_told_apart() -> None:
    both = found([ib("mlx5_0"), ib("mlx5_0", port=2, sm_lid=9)])
    assert [group.adapters for group in both] == [("mlx5_0:1",), ("mlx5_0:2",)]


def test_what_is_down_is_on_no_fabric() -> None:
    assert found([ib("mlx5_0", state="DOWN"), ib("mlx5_1", state=None)]) == []


def test_roce_adapters_are_told_apart_by_their_network() -> None:
    nets = [
        {"name": "eth0", "addresses": ["fe80::1/64", "10.0.7.3/24"]},
        {"name": "eth1", "addresses": ["10.0.7.4/24"]},
        {"name": "eth2", "addresses": ["what is this"]},
    ]
    assert found([roce("r0", "eth0"), roce("r1", "eth1"), roce("r2", "eth2")], nets) == [
        Group("RoCE", "10.0.7.0/24", ("r0", "r1")),
        Group("RoCE", "no address", ("r2",)),
    ]


def test_no_adapter_no_group() -> None:
    assert groups(Probe.model_validate({**probe().model_dump(by_alias=True), "fabric": None})) == []
