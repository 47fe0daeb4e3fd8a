"""llama.cpp: out of the `xllamacpp` wheel, or a `llama-server` that the operator names by path.

The wheel carries llama.cpp's own HTTP server for CPUs, is cp310-abi3 and has no dependencies: it is unzipped on the
node, no pip and no venv; `remote_scripts/llama_wheel.py` gives it llama-server's flags.
"""

from __future__ import annotations

import re

from llmgw.engines.base import MIB, PORT, Build, Command, InstalledAt, Unsupported
from llmgw.engines.platforms import wheel_platforms
from llmgw.model.catalog import Model, Profile, Task
from llmgw.model.node import Node
from llmgw.model.probe import Probe

_WHEEL = re.compile(r"pypi:(xllamacpp)==([0-9][0-9A-Za-z.+-]*)")
LIBRARIES = ("libgomp.so.1", "libstdc++.so.6")
"""Of those that the wheel links to, what a minimal image may lack."""
_RESERVED = frozenset({"--model", "-m", "--host", "--port", "--alias", "-a", "--api-key", "--api-key-file"})

# Measured with SmolLM2-135M: 93 MB of weights, 245 MB resident at 4,096 tokens of context in two slots.
_FIXED = 150 * MIB
_OVERHEAD = 1.15


class LlamaCpp:
    name = "llamacpp"
    tasks = frozenset({Task.CHAT, Task.COMPLETION, Task.EMBED, Task.RERANK})

    def build(self, version: str, node: Node, probe: Probe) -> Build | Unsupported:
        if version.startswith("/"):
            return Build(engine=self.name, version=version, name="path", path=version, check=(version, "--version"))
        wheel = _WHEEL.fullmatch(version)
        if wheel is None:
            return Unsupported(
                f"{version!r} is no version of llama.cpp that llmgw can install: "
                "write pypi:xllamacpp==VERSION, or name a llama-server on the node with --engine llamacpp=/path"
            )
        platforms = wheel_platforms(probe.os.arch, probe.libc.kind, probe.libc.version)
        if not platforms:
            libc = f"{probe.libc.kind or 'unknown libc'} {probe.libc.version or ''}".strip()
            return Unsupported(f"the xllamacpp wheel does not run on {probe.os.arch} with {libc}")
        return Build(
            engine=self.name,
            version=version,
            name="wheel",
            directory=f"{wheel[2]}-wheel",
            archive=f"pypi:{wheel[1]}=={wheel[2]}",
            platforms=platforms,
            files=("llama_wheel",),
            check=("{python}", "-B", "-I", "-S", "{dir}/llama_wheel.py", "--version"),
            requires_python=(3, 10),
        )

    def command(self, build: Build, place: InstalledAt, model: Model, profile: Profile, weights: str) -> Command:
        if build.path is not None:
            program: tuple[str, ...] = (build.path,)
        else:
            program = (place.python, "-B", "-I", "-S", f"{place.path}/llama_wheel.py")
        argv = [*program, "--model", weights, "--host", "127.0.0.1", "--port", PORT, "--alias", model.name]
        if model.context_length is not None and not {"--ctx-size", "-c"} & set(profile.args):
            argv += ["--ctx-size", str(model.context_length)]
        if model.max_output is not None:
            argv += ["--n-predict", str(model.max_output)]
        if model.task is Task.EMBED:
            argv += ["--embedding"]
        if model.task is Task.RERANK:
            argv += ["--reranking"]
        return Command(argv=(*argv, "--metrics", "--slots", *profile.args), key_variable="LLAMA_API_KEY")

    def memory(self, model: Model, profile: Profile, weights_bytes: int | None) -> int | None:
        if weights_bytes is None:
            return None
        return int(weights_bytes * _OVERHEAD) + _FIXED

    def check_entry(self, model: Model, profile: Profile) -> str | None:
        for arg in profile.args:
            if arg.partition("=")[0] in _RESERVED:
                return f"args: {arg} is set by llmgw itself"
        if not model.source.split("#")[0].endswith(".gguf"):
            return f"source: llama.cpp needs a .gguf file, not {model.source}"
        return None
