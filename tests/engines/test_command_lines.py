"""Every engine's command line compared whole, which build fits which node, and what an entry may not ask for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw import assets
from llmgw.engines.base import GIB, MIB, Build, InstalledAt, Unsupported, question
from llmgw.engines.llamacpp import LlamaCpp
from llmgw.engines.platforms import wheel_platforms
from llmgw.engines.registry import engines
from llmgw.engines.sim import Sim
from llmgw.model.catalog import Model, Task
from llmgw.model.node import Address, Node
from llmgw.model.probe import Probe

NODE = Node(id="n1", address=Address(host="n1", user="root"), host_key="")
WHEEL = Build(engine="llamacpp", version="pypi:xllamacpp==1.0", name="wheel", directory="1.0-wheel")
PATH = Build(engine="llamacpp", version="/opt/llama-server", name="path", path="/opt/llama-server")
PLACE = InstalledAt("/root/.local/share/llmgw/engines/llamacpp/1.0-wheel", "/usr/bin/python3.11")
WEIGHTS = "/root/.local/share/llmgw/weights/abc/model.gguf"


WORDS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
"""What an argument of a program may hold; a catalog entry with anything else is refused."""


def model(*, args: list[str] | None = None, engine: str = "llamacpp", **fields: Any) -> Model:
    profile = {"name": "cpu", "engine": engine, "args": args or []}
    return Model.model_validate({"name": "m", "source": "pypi:p/m.gguf", "profiles": [profile], **fields})


def probe(arch: str = "x86_64", kind: str | None = "glibc", version: str | None = "2.36") -> Probe:
    return Probe.model_validate(
        {
            "schema": 1,
            "at": 0,
            "hostname": "n1",
            "boot_id": "b",
            "python": {"executable": "/usr/bin/python3", "version": "3.11.2"},
            "user": {"name": "root", "uid": 0},
            "os": {"arch": arch},
            "libc": {"kind": kind, "version": version},
            "root": {"path": "/r"},
        }
    )


WHEEL_HEAD = ("/usr/bin/python3.11", "-B", "-I", "-S", f"{PLACE.path}/llama_wheel.py")
COMMON = ("--model", WEIGHTS, "--host", "127.0.0.1", "--port", "{port}", "--alias", "m")
TAIL = ("--metrics", "--slots")


@pytest.mark.parametrize(
    ("build", "of", "argv"),
    [
        (WHEEL, model(), (*WHEEL_HEAD, *COMMON, *TAIL)),
        (PATH, model(), ("/opt/llama-server", *COMMON, *TAIL)),
        (WHEEL, model(context_length=2048), (*WHEEL_HEAD, *COMMON, "--ctx-size", "2048", *TAIL)),
        (
            WHEEL,
            model(context_length=2048, args=["--ctx-size", "1024"]),
            (*WHEEL_HEAD, *COMMON, *TAIL, "--ctx-size", "1024"),
        ),
        (WHEEL, model(context_length=2048, args=["-c", "9"]), (*WHEEL_HEAD, *COMMON, *TAIL, "-c", "9")),
        (WHEEL, model(max_output=512), (*WHEEL_HEAD, *COMMON, "--n-predict", "512", *TAIL)),
        (WHEEL, model(task="embed"), (*WHEEL_HEAD, *COMMON, "--embedding", *TAIL)),
        (PATH, model(task="rerank"), ("/opt/llama-server", *COMMON, "--reranking", *TAIL)),
        (
            PATH,
            model(task="completion", context_length=1, max_output=2, args=["--threads", "2", "-fa", "a b;c"]),
            (
                "/opt/llama-server",
                *COMMON,
                "--ctx-size",
                "1",
                "--n-predict",
                "2",
                *TAIL,
                "--threads",
                "2",
                "-fa",
                "a b;c",
            ),
        ),
    ],
)
def test_llama_cpp(build: Build, of: Model, argv: tuple[str, ...]) -> None:
    command = LlamaCpp().command(build, PLACE, of, of.profiles[0], WEIGHTS)
    assert command.argv == argv
    assert command.key_variable == "LLAMA_API_KEY"
    assert command.env == {}


def test_the_simulated_engine() -> None:
    of = model(engine="sim", args=["--tokens-per-second", "50"])
    build = Sim("hash").build("builtin", NODE, probe())
    assert isinstance(build, Build)
    command = Sim("hash").command(build, InstalledAt("/r/engines/sim/hash", "/usr/bin/python3"), of, of.profiles[0], "")
    assert command.argv == (
        *("/usr/bin/python3", "-B", "-I", "-S", "/r/engines/sim/hash/sim_engine.py"),
        *("--port", "{port}", "--model", "m", "--tokens-per-second", "50"),
    )
    assert command.key_variable == "SIM_API_KEY"


@pytest.mark.parametrize("name", sorted(engines()))
@given(st.lists(st.text(WORDS, max_size=10), max_size=4))
def test_a_command_line_holds_no_key_listens_on_loopback_and_leaves_the_port_to_the_node(
    name: str, args: list[str]
) -> None:
    engine = engines()[name]
    build = Build(engine=name, version="v", name="x", directory="d")
    of = model(engine=name, args=args)
    argv = engine.command(build, PLACE, of, of.profiles[0], WEIGHTS).argv
    own = argv[: len(argv) - len(args)]
    assert not any("key" in word.lower() for word in own)
    assert own[own.index("--port") + 1] == "{port}"
    assert "0.0.0.0" not in own
    assert "--host" not in own or own[own.index("--host") + 1] == "127.0.0.1"


# Builds


def test_the_wheel_where_it_runs() -> None:
    build = LlamaCpp().build("pypi:xllamacpp==2026.10.1", NODE, probe())
    assert isinstance(build, Build)
    assert (build.name, build.directory, build.archive) == ("wheel", "2026.10.1-wheel", "pypi:xllamacpp==2026.10.1")
    assert build.files == ("llama_wheel",)
    assert build.check == ("{python}", "-B", "-I", "-S", "{dir}/llama_wheel.py", "--version")
    assert build.requires_python == (3, 10)
    assert build.platforms[0] == "manylinux_2_36_x86_64"
    assert {"manylinux2014_x86_64", "manylinux_2_28_x86_64"} <= set(build.platforms)


def test_a_program_named_by_path_runs_anywhere_and_is_not_installed() -> None:
    build = LlamaCpp().build("/opt/llama.cpp/bin/llama-server", NODE, probe("riscv64", None, None))
    assert isinstance(build, Build)
    assert (build.path, build.directory, build.archive) == ("/opt/llama.cpp/bin/llama-server", None, None)
    assert build.check == ("/opt/llama.cpp/bin/llama-server", "--version")


@pytest.mark.parametrize(
    ("version", "facts", "reason"),
    [
        ("b10991", {}, "'b10991' is no version of llama.cpp that llmgw can install: write pypi:xllamacpp==VERSION, or"),
        ("pypi:xllamacpp", {}, "'pypi:xllamacpp' is no version"),
        ("pypi:other==1", {}, "'pypi:other==1' is no version"),
        ("pypi:xllamacpp==1; rm -rf", {}, "'pypi:xllamacpp==1; rm -rf' is no version"),
        (
            "pypi:xllamacpp==1",
            {"kind": None, "version": None},
            "the xllamacpp wheel does not run on x86_64 with unknown libc",
        ),
        (
            "pypi:xllamacpp==1",
            {"arch": "aarch64", "kind": "uclibc", "version": "1.0"},
            "the xllamacpp wheel does not run on aarch64 with uclibc 1.0",
        ),
        (
            "pypi:xllamacpp==1",
            {"kind": "glibc", "version": None},
            "the xllamacpp wheel does not run on x86_64 with glibc",
        ),
    ],
)
def test_unsupported(version: str, facts: dict[str, Any], reason: str) -> None:
    found = LlamaCpp().build(version, NODE, probe(**facts))
    assert isinstance(found, Unsupported)
    assert found.reason.startswith(reason)


def test_the_simulated_engine_has_one_version() -> None:
    found = Sim("h").build("1.0", NODE, probe())
    assert found == Unsupported("'1.0' is no version of the simulated engine: write builtin")


@pytest.mark.parametrize(
    ("arch", "libc", "version", "first", "count"),
    [
        ("x86_64", "glibc", "2.28", "manylinux_2_28_x86_64", 24 + 3),
        ("aarch64", "glibc", "2.17", "manylinux_2_17_aarch64", 13 + 3),
        ("x86_64", "glibc", "2.4", None, 0),
        ("x86_64", "musl", "1.2.3", "musllinux_1_2_x86_64", 3),
        ("x86_64", "glibc", "nonsense", None, 0),
        ("x86_64", None, "2.28", None, 0),
        ("x86_64", "bionic", "2.28", None, 0),
    ],
)
def test_platform_tags(arch: str, libc: str | None, version: str | None, first: str | None, count: int) -> None:
    tags = wheel_platforms(arch, libc, version)
    assert (tags[0] if tags else None, len(tags)) == (first, count)
    assert len(set(tags)) == len(tags)


def test_a_newer_libc_comes_first_and_never_one_that_the_node_lacks() -> None:
    tags = wheel_platforms("x86_64", "glibc", "2.17")
    assert tags[:2] == ("manylinux_2_17_x86_64", "manylinux2014_x86_64")
    assert not any("2_18" in tag for tag in tags)


# What an entry may not ask for


@pytest.mark.parametrize("arg", ["--model", "-m", "--host", "--port", "--alias", "-a", "--api-key", "--api-key-file"])
def test_what_llmgw_sets_itself_is_refused(arg: str) -> None:
    for args in ([arg, "x"], [f"{arg}=x"]):
        of = model(args=args)
        assert LlamaCpp().check_entry(of, of.profiles[0]) == f"args: {args[0]} is set by llmgw itself"


@pytest.mark.parametrize("args", [["--ctx-size", "5"], ["--modelx"], ["x", "port"], []])
def test_everything_else_is_the_operators(args: list[str]) -> None:
    of = model(args=args)
    assert LlamaCpp().check_entry(of, of.profiles[0]) is None


def test_llama_cpp_needs_a_gguf_file() -> None:
    of = model(source="https://x/y.safetensors")
    found = LlamaCpp().check_entry(of, of.profiles[0])
    assert found == "source: llama.cpp needs a .gguf file, not https://x/y.safetensors"
    sha = model(source=f"https://x/y.gguf#sha256={'a' * 64}")
    assert LlamaCpp().check_entry(sha, sha.profiles[0]) is None


def test_the_simulated_engine_keeps_its_own_flags() -> None:
    of = model(engine="sim", args=["--port=1"])
    assert Sim("h").check_entry(of, of.profiles[0]) == "args: --port=1 is set by llmgw itself"


# Memory and proof of life


@given(st.integers(0, 1 << 45))
def test_memory_is_more_than_the_weights_and_grows_with_them(size: int) -> None:
    of = model()
    need = LlamaCpp().memory(of, of.profiles[0], size)
    assert need is not None
    assert need >= size + 150 * MIB
    assert need <= size * 2 + GIB


def test_memory_of_weights_whose_size_is_not_known_is_not_known() -> None:
    of = model()
    assert LlamaCpp().memory(of, of.profiles[0], None) is None


@pytest.mark.parametrize(
    ("task", "path", "answered_by"),
    [
        (Task.CHAT, "/v1/chat/completions", "choices"),
        (Task.COMPLETION, "/v1/completions", "choices"),
        (Task.EMBED, "/v1/embeddings", "data"),
        (Task.RERANK, "/v1/rerank", "results"),
    ],
)
def test_the_question_of_each_task(task: Task, path: str, answered_by: str) -> None:
    asked = question(task, "m")
    assert (asked.path, asked.answered_by, asked.body["model"]) == (path, answered_by, "m")


def test_a_new_sim_engine_is_a_new_directory() -> None:
    import hashlib

    build = engines()["sim"].build("builtin", NODE, probe())
    assert isinstance(build, Build)
    assert build.directory == hashlib.sha256(assets.remote_script("sim_engine")).hexdigest()[:12]


def test_every_engine_answers_to_its_name() -> None:
    assert {name: engine.name for name, engine in engines().items()} == {name: name for name in engines()}
