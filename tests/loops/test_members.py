"""Adding a node again: what was said before stays, a root does not move under what lies in it."""

from __future__ import annotations

import pytest

from llmgw.errors import Refused
from llmgw.loops.members import merged
from llmgw.model.node import Address, Node, NodeOptions


def node(**options: object) -> Node:
    return Node(
        id="n",
        address=Address(host="h", user="u"),
        host_key="",
        options=NodeOptions(**options),
        root="/home/u/.local/share/llmgw",
    )


def test_what_is_not_said_again_stays():
    known = node(nvidia_smi="/opt/nvidia-smi", engines={"llamacpp": "/a"})
    found = merged(known, NodeOptions(engines={"sim": "/b"}))
    assert found.nvidia_smi == "/opt/nvidia-smi"
    assert found.engines == {"llamacpp": "/a", "sim": "/b"}
    assert merged(known, NodeOptions()) == known.options


def test_another_root_is_refused():
    with pytest.raises(Refused, match="cannot be moved to /elsewhere") as caught:
        merged(node(), NodeOptions(root="/elsewhere"))
    assert "--purge" in caught.value.fix


def test_the_same_root_is_no_change():
    assert merged(node(), NodeOptions(root="/home/u/.local/share/llmgw")) == NodeOptions()
    assert merged(node(root="/data"), NodeOptions(root="/data")).root == "/data"


@pytest.mark.parametrize("root", ["relative", "../..", "/a/../b", "/a\nb", ""])
def test_a_root_is_an_absolute_path(root: str):
    with pytest.raises(ValueError, match="absolute path"):
        NodeOptions(root=root)


@pytest.mark.parametrize("host", ["", "a b", "a\nb", "x" * 300])
def test_a_host_is_a_plain_word(host: str):
    with pytest.raises(ValueError, match="is no name"):
        Address(host=host, user="u")
