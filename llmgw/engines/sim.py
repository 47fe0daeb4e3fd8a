"""The simulated engine: OpenAI HTTP with knobs for speed and faults. For trying llmgw, its tests and its benches."""

from __future__ import annotations

from llmgw.engines.base import MIB, PORT, Build, Command, InstalledAt, Unsupported
from llmgw.model.catalog import Model, Profile, Task
from llmgw.model.node import Node
from llmgw.model.probe import Probe

VERSION = "builtin"
_RESERVED = frozenset({"--port", "--model"})


class Sim:
    name = "sim"
    tasks = frozenset({Task.CHAT, Task.COMPLETION, Task.EMBED})

    def __init__(self, script_hash: str) -> None:
        self._hash = script_hash

    def build(self, version: str, node: Node, probe: Probe) -> Build | Unsupported:
        if version != VERSION:
            return Unsupported(f"{version!r} is no version of the simulated engine: write {VERSION}")
        return Build(
            engine=self.name,
            version=version,
            name="script",
            directory=self._hash,
            files=("sim_engine",),
            check=("{python}", "-B", "-I", "-S", "{dir}/sim_engine.py", "--version"),
            requires_python=(3, 6),
        )

    def command(self, build: Build, place: InstalledAt, model: Model, profile: Profile, weights: str) -> Command:
        program = (place.python, "-B", "-I", "-S", f"{place.path}/sim_engine.py")
        argv = (*program, "--port", PORT, "--model", model.name, *profile.args)
        return Command(argv=argv, key_variable="SIM_API_KEY")

    def memory(self, model: Model, profile: Profile, weights_bytes: int | None) -> int | None:
        return 32 * MIB

    def check_entry(self, model: Model, profile: Profile) -> str | None:
        for arg in profile.args:
            if arg.partition("=")[0] in _RESERVED:
                return f"args: {arg} is set by llmgw itself"
        return None
