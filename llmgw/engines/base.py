"""The face every engine shows to the rest. An adapter is pure: facts in, data out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmgw.model.catalog import Model, Profile, Task
from llmgw.model.node import Node
from llmgw.model.probe import Probe

MIB = 1 << 20
GIB = 1 << 30

PORT = "{port}"
"""Stands in an argv for the port that the node chooses."""


@dataclass(frozen=True)
class Build:
    """A variant of an engine's version that fits a node: what install.py is asked to put there."""

    engine: str
    version: str
    name: str
    """Short, for people: `wheel`, `path`, `script`."""
    directory: str | None = None
    """Below `engines/<engine>/` on the node; None for a program named by path."""
    archive: str | None = None
    """A source for the mirror, `pypi:…` with the node's platform: what has to be brought there."""
    platforms: tuple[str, ...] = ()
    """Wheel platform tags that run on the node, best first."""
    files: tuple[str, ...] = ()
    """Remote scripts that lie beside it."""
    check: tuple[str, ...] = ()
    """Argv that proves it runs, with `{dir}` and `{python}`."""
    requires_python: tuple[int, int] | None = None
    path: str | None = None


@dataclass(frozen=True)
class Unsupported:
    """Why an engine cannot run on a node, in words."""

    reason: str


@dataclass(frozen=True)
class Command:
    """An engine's command line. `key_variable` names the variable that carries its own key, outside argv."""

    argv: tuple[str, ...]
    key_variable: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """A request that only a working engine can answer, and how to tell an answer."""

    path: str
    body: Mapping[str, Any]
    answered_by: str
    """The key whose non-empty list makes the reply an answer: `choices`, `data`, `results`."""


class Engine(Protocol):
    name: str
    tasks: frozenset[Task]

    def build(self, version: str, node: Node, probe: Probe) -> Build | Unsupported:
        """Which build of `version` fits the node."""

    def command(self, build: Build, place: InstalledAt, model: Model, profile: Profile, weights: str) -> Command:
        """The argv that serves `weights` (an absolute path on the node)."""

    def memory(self, model: Model, profile: Profile, weights_bytes: int | None) -> int | None:
        """Bytes of the node's memory that a replica will take; None when it cannot be told."""

    def check_entry(self, model: Model, profile: Profile) -> str | None:
        """Why this profile can never work with this engine; None when nothing speaks against it."""


@dataclass(frozen=True)
class InstalledAt:
    """Where a build lies on a node and what runs it."""

    path: str
    python: str


def question(task: Task, model: str) -> Question:
    """The smallest real piece of work of a task: one token, one vector, one ranking."""
    if task is Task.EMBED:
        return Question("/v1/embeddings", {"model": model, "input": "ready?"}, "data")
    if task is Task.RERANK:
        return Question("/v1/rerank", {"model": model, "query": "ready?", "documents": ["yes"]}, "results")
    if task is Task.COMPLETION:
        return Question("/v1/completions", {"model": model, "prompt": "ready?", "max_tokens": 1}, "choices")
    messages = [{"role": "user", "content": "ready?"}]
    return Question("/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 1}, "choices")
