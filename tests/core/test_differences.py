"""What has changed between two probes, in sentences; a fact that could not be read is no change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.differences import differences

GPU0 = {"index": 0, "uuid": "GPU-0", "name": "H100"}
GPU1 = {"index": 1, "uuid": "GPU-1", "name": "H100"}
BEFORE = {
    "hostname": "gpu01",
    "os": {"pretty": "Debian 12", "kernel": "6.1.0"},
    "boot_id": "b1",
    "python": {"version": "3.11.2"},
    "cpu": {"model": "EPYC"},
    "memory": {"total": 1024},
    "nvidia": {"driver": "550.54"},
    "gpus": [GPU0, GPU1],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"nvidia": {"driver": "560.35"}}, ["driver 550.54 → 560.35"]),
        ({"boot_id": "b2"}, ["was rebooted"]),
        (
            {"os": {"pretty": "Debian 13", "kernel": "6.12"}},
            ["operating system Debian 12 → Debian 13", "kernel 6.1.0 → 6.12"],
        ),
        ({"memory": {"total": 512}}, ["memory 1024 → 512"]),
        ({"memory": {"total": None}}, []),
        ({"memory": None}, []),
        ({"memory": "nonsense"}, []),
        ({"hostname": "gpu02"}, ["hostname gpu01 → gpu02"]),
        ({"gpus": [GPU0]}, ["GPU 1 (H100) gone"]),
        ({"gpus": [GPU0, GPU1, {"index": 2, "uuid": "GPU-2", "name": "A100"}]}, ["GPU 2 (A100) is new"]),
        ({"gpus": [], "unknown": {"gpus": "nvidia-smi hung"}}, []),
        ({"gpus": [GPU1, GPU0]}, []),
    ],
)
def test_differences(change: dict[str, Any], said: list[str]) -> None:
    assert differences(BEFORE, {**BEFORE, **change}) == said


@given(
    st.fixed_dictionaries(
        {"boot_id": st.text(), "memory": st.none() | st.dictionaries(st.just("total"), st.integers())}
    )
)
def test_nothing_differs_from_itself(document: dict[str, Any]) -> None:
    assert differences(document, document) == []
