"""What a look at a node means: adopted, dead, never started, gone, or somebody else's. Unknown is never a death."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.adopt import Alive, Dead, Gone, NeverStarted, cause_of_death, judge, last_words, unclaimed
from llmgw.model.listing import Exit, Listed, Listing, Stray
from llmgw.model.replica import Process, Replica, ReplicaState, Shard

from .made import model, replica

S = ReplicaState
BOOT = "boot-n1"


def listed(name: str = "m-1", *, attempt: int = 1, alive: bool = True, **fields: Any) -> Listed:
    usual: dict[str, Any] = {"pid": 100, "start_ticks": 5, "boot_id": BOOT, "port": 41000}
    return Listed(replica=name, attempt=attempt, alive=alive, **{**usual, **fields})


def listing(*entries: Listed, strays: tuple[Stray, ...] = (), boot: str = BOOT) -> Listing:
    return Listing(boot_id=boot, now=0.0, replicas=entries, strays=strays)


def verdict(state: ReplicaState, *entries: Listed, attempt: int = 1, strays: tuple[Stray, ...] = (), **fields: Any):
    found = judge(
        "n1", listing(*entries, strays=strays), [replica(model(), "m-1", state=state, attempt=attempt, **fields)]
    )
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("state", [S.STARTING, S.LOADING, S.READY, S.LOST])
def test_the_recorded_attempt_runs(state: ReplicaState) -> None:
    found = verdict(state, listed())
    assert isinstance(found, Alive)
    assert found.shard == Shard(node="n1", attempt=1, process=Process(boot_id=BOOT, pid=100, start_ticks=5), port=41000)


def test_a_newer_attempt_than_the_recorded_one_is_ours_too() -> None:
    """The state was restored from a backup, or the process died between launch and record."""
    found = verdict(S.LOST, listed(attempt=4, pid=9, start_ticks=8, port=41007))
    assert isinstance(found, Alive)
    assert (found.shard.attempt, found.shard.port) == (4, 41007)
    assert found.shard.process == Process(boot_id=BOOT, pid=9, start_ticks=8)


def test_a_placed_replica_whose_launch_took_effect_late_is_adopted() -> None:
    assert isinstance(verdict(S.PLACED, listed(attempt=1), attempt=1), Alive)


def test_one_that_was_failed_because_it_hung_is_not_adopted_again() -> None:
    """Its process is the recorded one and lives: adopting it would undo the failure for ever (F36)."""
    assert verdict(S.FAILED, listed()) is None


def test_one_that_was_failed_wrongly_is_adopted_when_another_process_turns_up() -> None:
    assert isinstance(verdict(S.FAILED, listed(pid=101)), Alive)


@pytest.mark.parametrize("state", [S.LOADING, S.READY, S.LOST])
def test_the_record_on_the_node_is_gone(state: ReplicaState) -> None:
    found = verdict(state)
    assert found == Dead("m-1", 1, "it is not on the node any more, and neither is its record there")


@pytest.mark.parametrize("state", [S.LOADING, S.READY, S.LOST])
def test_the_record_is_gone_and_the_very_process_lives(state: ReplicaState) -> None:
    """Somebody deleted files under a running engine: it serves, and only another process would not be it."""
    shard = Shard(node="n1", attempt=1, process=Process(boot_id=BOOT, pid=100, start_ticks=5), port=41000)
    same = Stray(pid=100, start_ticks=5, replica="m-1", rank=0, attempt=1)
    assert verdict(state, strays=(same,), shards=(shard,)) == Alive("m-1", shard)
    for other in ({"pid": 101}, {"start_ticks": 6}, {"replica": "m-2"}):
        found = verdict(state, strays=(same.model_copy(update=other),), shards=(shard,))
        assert isinstance(found, Dead)


def test_never_started() -> None:
    assert verdict(S.STARTING) == NeverStarted("m-1")


def test_a_launch_whose_link_was_lost_and_that_never_happened_is_no_failure() -> None:
    """The link's loss turned `starting` into `lost`; no process was ever recorded."""
    never = {"shards": (Shard(node="n1", attempt=1),)}
    assert verdict(S.LOST, **never) == NeverStarted("m-1")
    older = listed(attempt=1, alive=False)
    assert verdict(S.LOST, older, shards=(Shard(node="n1", attempt=2),)) == NeverStarted("m-1")


def test_an_older_attempt_on_the_node_says_nothing_of_the_newer_launch() -> None:
    assert verdict(S.STARTING, listed(attempt=1, alive=False), attempt=2) == NeverStarted("m-1")
    assert verdict(S.STARTING, listed(attempt=1, alive=True), attempt=2) == NeverStarted("m-1")


@pytest.mark.parametrize("state", [S.PLACED, S.FETCHING, S.FAILED, S.STOPPED])
def test_nothing_was_expected_and_nothing_is_there(state: ReplicaState) -> None:
    assert verdict(state) is None


@pytest.mark.parametrize("state", [S.DRAINING, S.STOPPING])
def test_gone_means_nothing_of_it_is_left(state: ReplicaState) -> None:
    assert verdict(state) == Gone("m-1")
    assert verdict(state, listed(alive=False)) == Gone("m-1")
    assert isinstance(verdict(state, listed()), Alive)


@pytest.mark.parametrize("state", [S.DRAINING, S.STOPPING])
def test_what_still_runs_of_it_keeps_it_from_being_gone(state: ReplicaState) -> None:
    """An older attempt, a process whose identity could not be read, a worker without a manifest."""
    assert verdict(state, listed(attempt=1), attempt=2) is None
    assert verdict(state, listed(start_ticks=None)) is None
    assert verdict(state, strays=(Stray(pid=7, start_ticks=1, replica="m-1"),)) is None
    assert verdict(state, strays=(Stray(pid=7, start_ticks=1, replica="other"),)) == Gone("m-1")


def test_only_this_node_is_spoken_of() -> None:
    """A node can only speak about itself (F53)."""
    elsewhere = replica(model(), "m-1", on="n2", state=S.READY)
    assert judge("n1", listing(), [elsewhere]) == []
    assert judge("n1", listing(listed()), [elsewhere]) == []


def test_a_reboot_ends_everything_although_the_pid_is_alive_again() -> None:
    """The script says alive=False: boot id and start ticks do not match (F31)."""
    entry = listed(alive=False, boot_id="boot-before")
    found = verdict(S.READY, entry)
    assert isinstance(found, Dead)
    assert found.cause == "the node was rebooted"


def test_a_reboot_that_took_the_record_along() -> None:
    found = judge("n1", listing(boot="boot-after"), [replica(model(), "m-1", state=S.LOST)])
    assert found == [Dead("m-1", 1, "the node was rebooted")]


def test_pid_reuse_without_reboot() -> None:
    """The start ticks differ: the script says dead, nobody saw it end (F32)."""
    found = verdict(S.READY, listed(alive=False, exit=None))
    assert isinstance(found, Dead)
    assert found.cause == "it is not running any more"


def test_the_attempt_that_died_is_the_one_that_is_named() -> None:
    found = verdict(S.LOADING, listed(attempt=3, alive=False, exit=Exit(status=1), log_tail=("error: no",)), attempt=2)
    assert found == Dead("m-1", 3, "exited with status 1: error: no", ("error: no",))


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"exit": Exit(signal=9), "oom": True}, "killed by signal 9 (SIGKILL), by the kernel's out-of-memory killer"),
        ({"exit": Exit(signal=9), "oom": False}, "killed by signal 9 (SIGKILL) by somebody on the node"),
        ({"exit": Exit(signal=9), "oom": None}, "killed by signal 9 (SIGKILL), by somebody or for lack of memory"),
        ({"exit": Exit(signal=11)}, "killed by signal 11 (SIGSEGV)"),
        ({"exit": Exit(signal=200)}, "killed by signal 200"),
        ({"exit": Exit(status=0)}, "exited with status 0"),
        (
            {"exit": Exit(status=3), "log_tail": ("loading", "fatal: no such file")},
            "exited with status 3: fatal: no such file",
        ),
        ({"log_tail": ("error: gone",)}, "it is not running any more: error: gone"),
        ({"boot_id": "another", "exit": Exit(signal=9), "oom": True}, "the node was rebooted"),
        ({"boot_id": None, "exit": Exit(status=2)}, "exited with status 2"),
    ],
)
def test_cause_of_death(fields: dict[str, Any], cause: str) -> None:
    assert cause_of_death(listed(alive=False, **fields), BOOT) == cause


TRACEBACK = """
loading weights
Traceback (most recent call last):
  File "/root/llama_wheel.py", line 12, in <module>
    main()
  File "/root/llama_wheel.py", line 8, in main
    raise RuntimeError("failed to load")
RuntimeError: failed to load model
""".splitlines()
LLAMA = """
llama_model_loader: loaded meta data with 33 key-value pairs
gguf_init_from_file_impl: invalid magic characters: 'abcd', expected 'GGUF'
llama_model_load: error loading model: llama_model_loader: failed to load model from /x.gguf
llama_model_load_from_file_impl: failed to load model
common_init_from_params: failed to load model '/x.gguf'
main: exiting due to model loading error
""".splitlines()
ARGPARSE = """
usage: server.py [-h] [--port PORT]
                 [--model MODEL]
server.py: error: unrecognized arguments: --bogus
""".splitlines()
LLAMA_ARGS = """
error: invalid argument: --bogus
usage: llama-server [options]
  -h, --help          print usage and exit
  --port N            port to listen on (error if taken)
""".splitlines()
CUDA = """
INFO 01-01 00:00:00 starting engine
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
Process finished
""".splitlines()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (TRACEBACK, "RuntimeError: failed to load model"),
        (LLAMA, "gguf_init_from_file_impl: invalid magic characters: 'abcd', expected 'GGUF'"),
        (ARGPARSE, "server.py: error: unrecognized arguments: --bogus"),
        (LLAMA_ARGS, "error: invalid argument: --bogus"),
        (CUDA, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (["all is well", "", "bye"], "bye"),
        ([], ""),
        (["", "  "], ""),
        (["x" * 1000], "x" * 300),
    ],
)
def test_last_words(log: list[str], words: str) -> None:
    assert last_words(log) == words


@given(st.lists(st.text(max_size=400), max_size=40))
def test_last_words_are_one_line_of_the_log_and_short(log: list[str]) -> None:
    words = last_words(log)
    assert len(words) <= 300
    assert words == "" or any(words in line for line in log)


def test_unclaimed_are_those_that_live_and_were_never_recorded() -> None:
    found = unclaimed(
        "n1",
        listing(
            listed("known"),
            listed("stranger", attempt=3, manifest={"cluster": "c", "model": "m"}, rss=5),
            listed("dead", alive=False),
            strays=(
                Stray(pid=8, start_ticks=1, replica="lost-one", rank=1, attempt=2, cluster="d", rss=6),
                Stray(pid=9, start_ticks=1, replica="known"),
                Stray(pid=10, start_ticks=1),
            ),
        ),
        {"known"},
        "c",
    )
    assert [(one.replica, one.attempt, one.pid, one.cluster, one.model, one.foreign) for one in found] == [
        ("stranger", 3, 100, "c", "m", False),
        ("lost-one", 2, 8, "d", None, True),
        ("?", 0, 10, None, None, True),
    ]


def replicas() -> st.SearchStrategy[list[Replica]]:
    one = st.builds(
        lambda state, attempt, on, index: replica(model(), f"m-{index}", on=on, state=state, attempt=attempt),
        st.sampled_from(list(S)),
        st.integers(0, 3),
        st.sampled_from(["n1", "n2"]),
        st.integers(0, 3),
    )
    return st.lists(one, unique_by=lambda each: each.id, max_size=4)


ENTRIES = st.lists(
    st.builds(
        lambda index, attempt, alive, pid: listed(f"m-{index}", attempt=attempt, alive=alive, pid=pid),
        st.integers(0, 4),
        st.integers(1, 4),
        st.booleans(),
        st.sampled_from([100, 101, None]),
    ),
    unique_by=lambda each: each.replica,
    max_size=5,
)


@given(replicas(), ENTRIES)
def test_verdicts_never_contradict_the_look(known: list[Replica], entries: list[Listed]) -> None:
    alive = {entry.replica for entry in entries if entry.alive}
    here = {one.id: one for one in known if one.lead.node == "n1"}
    verdicts = judge("n1", listing(*entries), known)
    assert len({one.replica for one in verdicts}) == len(verdicts), "one verdict a replica"
    for found in verdicts:
        assert found.replica in here, "nothing is said of another node's replica"
        assert here[found.replica].state is not S.STOPPED
        if isinstance(found, Alive):
            assert found.replica in alive
            assert found.shard.attempt >= here[found.replica].lead.attempt
        elif isinstance(found, Gone):
            assert found.replica not in alive
            assert here[found.replica].state.going
        elif isinstance(found, Dead):
            assert not here[found.replica].state.going
