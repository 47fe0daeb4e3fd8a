"""Whether a profile fits a node: every refusal in its own words, and never more than there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fit import Fit, Refusal, fit, free_memory
from llmgw.engines.base import GIB, MIB
from llmgw.model.engine import InstallState
from llmgw.model.node import DrainState, LinkState, NodeState, Problem
from llmgw.model.replica import ReplicaState

from .made import NEED, NOW, SOURCE, VERSION, engine, model, node, probe, replica, snapshot, weights

S = ReplicaState
H100 = {"vendor": "nvidia", "name": "NVIDIA H100 80GB HBM3"}


def judge(one=None, *, of=None, **fields: Any) -> Fit | Refusal:
    one = one or node()
    of = of or model()
    return fit(of, of.profiles[0], one, snapshot(one, models=(of,), **fields))


def test_a_node_that_is_open_and_large_enough_fits() -> None:
    found = judge()
    assert found == Fit("n1", "cpu", "llamacpp", VERSION, NEED, int(8 * GIB * 0.95) - NEED)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"quarantined": "its host key changed"}, "is quarantined: its host key changed"),
        ({"cordoned": True}, "is cordoned"),
        ({"drain": DrainState.DRAINING}, "is being drained"),
        ({"drain": DrainState.DRAINED}, "is drained"),
        ({"link": LinkState.DOWN}, "cannot be reached"),
        ({"link": LinkState.DOWN, "link_error": "no route to host"}, "cannot be reached: no route to host"),
        ({"state": NodeState.ADDING}, "is still being added"),
        ({"problems": (Problem(code="noexec", severity="error", message="/ is noexec"),)}, "/ is noexec"),
    ],
)
def test_a_closed_node_says_why(fields: dict[str, Any], reason: str) -> None:
    assert judge(node(**fields)) == Refusal("n1", "cpu", reason)


def test_the_first_reason_is_the_gravest() -> None:
    closed = node(quarantined="machine changed", cordoned=True, link=LinkState.DOWN, state=NodeState.ADDING)
    assert judge(closed).reason == "is quarantined: machine changed"  # type: ignore[union-attr]


def test_a_warning_keeps_nothing_off() -> None:
    assert isinstance(judge(node(problems=(Problem(code="swap", message="swap is on"),))), Fit)


@pytest.mark.parametrize(
    ("profile", "labels", "reason"),
    [
        ({"zone": "a"}, {}, "lacks the label zone=a"),
        ({"zone": "a"}, {"zone": "b"}, "lacks the label zone=a"),
        ({"zone": "a", "disk": "ssd"}, {"zone": "a"}, "lacks the label disk=ssd"),
        ({"zone": "a", "disk": "ssd"}, {}, "lacks the label zone=a, disk=ssd"),
        ({"zone": "a"}, {"zone": "a", "x": "y"}, None),
    ],
)
def test_labels(profile: dict[str, str], labels: dict[str, str], reason: str | None) -> None:
    of = model(profiles=[{"name": "cpu", "engine": "llamacpp", "node_selector": profile}])
    found = judge(node(labels=labels), of=of)
    assert (found.reason if isinstance(found, Refusal) else None) == reason


def test_a_node_that_was_never_probed_is_not_guessed_at() -> None:
    assert judge(probes={}).reason == "has not been probed yet"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        ((), "has no llamacpp; `engines:` in llmgw.yaml names none"),
        ((engine(state=InstallState.QUEUED),), f"llamacpp {VERSION} is not ready there (queued)"),
        (
            (engine(state=InstallState.FAILED, detail="ldd: libgomp.so.1 not found"),),
            f"llamacpp {VERSION} is not ready there (failed: ldd: libgomp.so.1 not found)",
        ),
        ((engine("other"),), "has no llamacpp; `engines:` in llmgw.yaml names none"),
        ((engine(engine="sim", version="builtin"),), "has no llamacpp; `engines:` in llmgw.yaml names none"),
    ],
)
def test_the_engine_must_be_installed(installed: tuple[Any, ...], reason: str) -> None:
    assert judge(engines=installed).reason == reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["pypi:a", "pypi:b"], "pypi:a"),
        (["pypi:b", "/opt/llama-server", "pypi:a"], "/opt/llama-server"),
        (["pypi:b"], "pypi:b"),
    ],
)
def test_the_version_is_the_first_of_the_configuration_and_one_named_by_path_goes_first(
    versions: list[str], chosen: str
) -> None:
    found = judge(
        engines=tuple(engine(version=version) for version in versions), engine_order={"llamacpp": ("pypi:a", "pypi:b")}
    )
    assert isinstance(found, Fit)
    assert found.engine_version == chosen


def test_an_installed_version_counts_although_a_better_one_has_failed() -> None:
    engines = (engine(version="pypi:a", state=InstallState.FAILED), engine(version="pypi:b"))
    found = judge(engines=engines, engine_order={"llamacpp": ("pypi:a", "pypi:b")})
    assert isinstance(found, Fit)
    assert found.engine_version == "pypi:b"


def gpu_model(gpus: int = 1, **profile: Any):
    return model(profiles=[{"name": "gpu", "engine": "llamacpp", "gpus": gpus, **profile}])


@pytest.mark.parametrize(
    ("gpus", "gpu_class", "here", "reason"),
    [
        (1, None, [], "needs 1 GPU; it has none"),
        (2, None, [H100], "needs 2 GPUs; it has NVIDIA H100 80GB HBM3"),
        (1, "a100", [H100], "needs 1 GPU of class a100; it has NVIDIA H100 80GB HBM3"),
        (1, "h100", [{"vendor": "amd"}], "needs 1 GPU of class h100; it has amd"),
        (1, "h100", [H100], None),
        (1, "H100-80GB", [H100], None),
        (2, "h100", [H100, {"vendor": "nvidia", "name": "NVIDIA A100"}, H100], None),
        (2, "h100", [H100, {**H100, "health": "lost"}], "needs 2 GPUs of class h100; it has NVIDIA H100 80GB HBM3"),
        (1, None, [{**H100, "health": "error"}, {"vendor": "other"}], "needs 1 GPU; it has none"),
        (1, None, [{**H100, "health": "ok"}], None),
    ],
)
def test_gpus(gpus: int, gpu_class: str | None, here: list[dict[str, Any]], reason: str | None) -> None:
    found = judge(of=gpu_model(gpus, gpu_class=gpu_class), probes={"n1": probe(gpus=here)})
    assert (found.reason if isinstance(found, Refusal) else None) == reason


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (
            {"pid": 7, "user": "ada", "name": "python", "memory": 9 * GIB},
            "its GPU is used by python (pid 7, user ada)",
        ),
        ({"pid": 7, "memory": 9 * GIB}, "its GPU is used by a process (pid 7, user ?)"),
        ({"pid": 7, "memory": 9 * GIB, "owner": "orphan"}, "its GPU is used by a process (pid 7, user ?)"),
        ({"pid": 7, "memory": 9 * GIB, "owner": "ours"}, None),
        ({"pid": 7, "memory": 10 * MIB, "name": "Xorg"}, None),
        ({"pid": 7, "memory": 9 * GIB, "gpu": "the one inside the CPU"}, None),
        ({"pid": 7, "memory": 9 * GIB, "gpu": "MIG-1"}, "its GPU is used by a process (pid 7, user ?)"),
    ],
)
def test_a_gpu_that_somebody_else_works_on_is_left_alone(use: dict[str, Any], reason: str | None) -> None:
    card = {**H100, "uuid": "GPU-1", "slices": [{"uuid": "MIG-1"}]}
    found = judge(of=gpu_model(), probes={"n1": probe(gpus=[card], gpu_processes=[use])})
    assert (found.reason if isinstance(found, Refusal) else None) == reason


@pytest.mark.parametrize("state", [S.PLACED, S.READY, S.LOST, S.DRAINING, S.STOPPING])
def test_a_gpu_is_given_to_one_replica_only(state: ReplicaState) -> None:
    of = gpu_model()
    taken = (replica(of, "m-1", state=state),)
    found = judge(of=of, probes={"n1": probe(gpus=[H100])}, replicas=taken)
    words = "needs 1 GPU; it has NVIDIA H100 80GB HBM3, and 1 of them are given to replicas already"
    assert found == Refusal("n1", "gpu", words)
    assert isinstance(judge(of=of, probes={"n1": probe(gpus=[H100, H100])}, replicas=taken), Fit)


def test_a_stopped_or_given_up_replica_holds_no_gpu() -> None:
    of = gpu_model()
    over = (replica(of, "m-1", state=S.STOPPED), replica(of, "m-2", state=S.FAILED))
    assert isinstance(judge(of=of, probes={"n1": probe(gpus=[H100])}, replicas=over), Fit)


def test_memory_that_could_not_be_read_fits_nothing() -> None:
    found = judge(probes={"n1": probe(memory={}, unknown={"memory": "/proc/meminfo: permission denied"})})
    assert found.reason == "its memory could not be read (/proc/meminfo: permission denied)"  # type: ignore[union-attr]
    found = judge(probes={"n1": probe(memory={})})
    assert found.reason == "its memory could not be read (no reason given)"  # type: ignore[union-attr]


def test_a_need_that_is_not_known_is_not_taken_for_nothing() -> None:
    """`node:/path` weights: nobody told their size."""
    lies_there = {SOURCE: weights(None, path=None)}
    found = judge(weights=lies_there)
    assert found.reason == (  # type: ignore[union-attr]
        "cannot be judged: how much memory it needs is not known; set min_memory_gb in the profile"
    )
    of = model(profiles=[{"name": "cpu", "engine": "llamacpp", "min_memory_gb": 2}])
    found = judge(of=of, weights=lies_there)
    assert isinstance(found, Fit)
    assert found.memory_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        ({"total": 256 * MIB}, "needs 0.3 GiB of memory, 0.2 GiB of 0.2 GiB are free"),
        (
            {"total": 8 * GIB, "available": 8 * GIB, "cgroup_limit": 100 * MIB},
            "needs 0.3 GiB of memory, 95 MiB of 100 MiB are free",
        ),
        ({"total": 8 * GIB, "available": 100 * MIB}, "needs 0.3 GiB of memory, 0 MiB of 8.0 GiB are free"),
    ],
)
def test_too_little_memory_in_numbers(memory: dict[str, int], reason: str) -> None:
    assert judge(probes={"n1": probe(memory=memory)}) == Refusal("n1", "cpu", reason)


def test_a_minimum_of_the_profile_counts_where_it_is_more() -> None:
    of = model(profiles=[{"name": "cpu", "engine": "llamacpp", "min_memory_gb": 4}])
    found = judge(of=of)
    assert isinstance(found, Fit)
    assert found.memory_bytes == 4 * GIB


def test_what_strangers_use_is_not_ours_to_give() -> None:
    used = {"total": 8 * GIB, "available": 3 * GIB}
    ours = [{"pid": 1, "start_ticks": 1, "rss": GIB}]
    one = node()
    free = free_memory("n1", probe(memory=used, processes=ours), snapshot(one))
    assert free == int(8 * GIB * 0.95) - 4 * GIB, "our own engine's memory is counted by its replica, not as a stranger"


@pytest.mark.parametrize(
    ("state", "next_try", "holds"),
    [
        (S.PLACED, None, True),
        (S.READY, None, True),
        (S.LOST, None, True),
        (S.DRAINING, None, True),
        (S.STOPPING, None, True),
        (S.FAILED, NOW + 15, True),
        (S.FAILED, None, False),
        (S.STOPPED, None, False),
    ],
)
def test_which_replicas_keep_their_memory(state: ReplicaState, next_try: float | None, holds: bool) -> None:
    """One that will be started again keeps it: it would not fit any more when its time comes."""
    there = replica(model(), "m-1", state=state, next_try_at=next_try)
    free = free_memory("n1", probe(), snapshot(node(), replicas=(there,)))
    assert free == int(8 * GIB * 0.95) - (NEED if holds else 0)


def test_disk_in_numbers_and_only_where_something_has_to_be_brought() -> None:
    tight = {"n1": probe(free=120 * MIB)}
    found = judge(probes=tight)
    assert isinstance(found, Refusal)
    assert found.reason == "needs 100 MiB of disk in /root/.local/share/llmgw, 0.1 GiB are free"
    of = model()
    assert isinstance(judge(of=of, probes=tight, replicas=(replica(of, "m-1"),)), Fit), "the weights are there already"
    assert isinstance(judge(probes=tight, weights={SOURCE: weights(path=None)}), Fit), "it lies on the node as it is"
    assert isinstance(judge(probes={"n1": probe(free=None)}), Fit), (
        "a free space that is not known is found out by trying"
    )


@given(
    total=st.integers(0, 64 * GIB),
    available=st.integers(0, 64 * GIB) | st.none(),
    limit=st.integers(1, 64 * GIB) | st.none(),
    held=st.lists(st.integers(0, 8 * GIB), max_size=5),
    size=st.integers(0, 16 * GIB),
)
def test_what_fits_is_never_more_than_there_is(
    total: int, available: int | None, limit: int | None, held: list[int], size: int
) -> None:
    of = model()
    there = tuple(replica(of, f"m-{index}", memory_bytes=bytes_) for index, bytes_ in enumerate(held))
    memory = {"total": total, "available": available, "cgroup_limit": limit}
    found = judge(of=of, probes={"n1": probe(memory=memory)}, replicas=there, weights={SOURCE: weights(size)})
    if isinstance(found, Fit):
        assert found.free_bytes >= 0
        assert found.memory_bytes >= size
        assert sum(held) + found.memory_bytes <= min(total, limit or total)
