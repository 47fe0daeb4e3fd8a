"""The remote scripts of one node as typed calls: arguments in, records out, everything a node says is validated."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llmgw import assets
from llmgw.core.packages import VERBS
from llmgw.engines.base import Build
from llmgw.engines.llamacpp import LIBRARIES
from llmgw.model.listing import Listing
from llmgw.model.node import Node, NodeOptions
from llmgw.model.probe import Probe
from llmgw.model.route import ProtocolFactory
from llmgw.model.secret import Secret
from llmgw.model.weights import Weights
from llmgw.nodes.replies import Installed, LogLines, Purged, Started, Stopped, WeightsThere, typed
from llmgw.protocol.shell import INTERPRETERS

OnEvent = Callable[[dict[str, Any]], None]

CHUNK = 1 << 18
OUTSIDE = ("pypi.org:443", "huggingface.co:443", "github.com:443")
"""What a preflight tries to reach: where engines and weights come from when they are fetched on the node itself."""
SLOWEST = 256 << 10
"""Bytes a second below which a transfer's deadline assumes no link to be."""


class Runner(Protocol):
    """A connection to a node: `ssh.pool.Link` or `ssh.connection.Connection`."""

    async def run_script(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        deadline: float,
        payload: AsyncIterator[bytes] | None = None,
        payload_size: int = 0,
        on_event: OnEvent | None = None,
        urgent: bool = False,
    ) -> dict[str, Any]: ...

    async def open_stream(
        self, port: int, factory: ProtocolFactory, *, host: str = "127.0.0.1", timeout: float = 10.0
    ) -> asyncio.Protocol: ...


@dataclass(frozen=True)
class Authority:
    """In whose name we act on nodes."""

    cluster_id: str
    controller_id: str
    term: int


class Remote:
    """What can be asked of one node. Every call raises what `run_script` raises, and BadReply for nonsense."""

    def __init__(self, runner: Runner, node: Node, authority: Authority, *, take_over: bool = False) -> None:
        self._runner = runner
        self._node = node
        self._common = {
            "root": node.options.root,
            "node_id": node.id,
            "controller_id": authority.controller_id,
            "term": authority.term,
            "trace": list(node.created),
            "take_over": take_over,
        }
        self._cluster = authority.cluster_id

    async def probe(self, *, ports: tuple[int, int], deadline: float = 60.0) -> tuple[Probe, dict[str, Any]]:
        """The typed document and the whole one. Writes nothing on the node."""
        args = probe_args(self._node.options, self._node.id, ports)
        document = await self._runner.run_script("probe", args, deadline=deadline)
        return typed(Probe, document, self._node.id), document

    async def list_engines(self, *, deadline: float = 30.0) -> Listing:
        args = {**self._common, "action": "list", "cluster": self._cluster}
        return typed(Listing, await self._runner.run_script("engine", args, deadline=deadline), self._node.id)

    async def start_engine(
        self,
        *,
        replica: str,
        rank: int,
        attempt: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        key_variable: str,
        key: Secret,
        ports: tuple[int, int],
        manifest: Mapping[str, Any],
        deadline: float = 60.0,
    ) -> Started:
        args = {
            **self._common,
            "action": "start",
            "replica": replica,
            "rank": rank,
            "attempt": attempt,
            "cluster": self._cluster,
            "argv": list(argv),
            "env": {**env, key_variable: key.reveal()},
            "ports": list(ports),
            "manifest": {**manifest, "key_variable": key_variable},
        }
        return typed(Started, await self._runner.run_script("engine", args, deadline=deadline), self._node.id)

    async def stop_engine(
        self, *, replica: str, rank: int, attempt: int | None = None, grace: float = 10.0, remove: bool = True
    ) -> Stopped:
        args = {
            **self._common,
            "action": "stop",
            "cluster": self._cluster,
            "replica": replica,
            "rank": rank,
            "attempt": attempt,
            "grace": grace,
            "remove": remove,
        }
        reply = await self._runner.run_script("engine", args, deadline=grace + 30, urgent=True)
        return typed(Stopped, reply, self._node.id)

    async def logs(self, *, replica: str, rank: int = 0, attempt: int | None = None, lines: int = 200) -> list[str]:
        args = {
            **self._common,
            "action": "logs",
            "replica": replica,
            "rank": rank,
            "attempt": attempt,
            "lines": lines,
        }
        reply = await self._runner.run_script("engine", args, deadline=30.0)
        return list(typed(LogLines, reply, self._node.id).lines)

    async def install_status(self, build: Build) -> Installed:
        return await self._install(build, "status", deadline=60.0)

    async def install_check(self, build: Build) -> Installed:
        """Runs the installed engine's own check again: an unrelated upgrade may have taken a library away."""
        return await self._install(build, "check" if build.path is None else "check_path", deadline=120.0)

    async def install(self, build: Build, archive: Weights | None, on_event: OnEvent) -> Installed:
        size = archive.size or 0 if archive is not None else 0
        payload = file_chunks(Path(archive.path or "")) if archive is not None else None
        extra: dict[str, Any] = {"archive": {"kind": "none"}}
        if archive is not None:
            kind = "wheel" if (archive.file or "").endswith(".whl") else "tar.gz"
            extra["archive"] = {"name": archive.file, "sha256": archive.sha256, "size": size, "kind": kind}
        return await self._install(
            build,
            "receive",
            deadline=300.0 + size / SLOWEST,
            extra=extra,
            payload=payload,
            size=size,
            on_event=on_event,
        )

    async def weights_status(self, weights: Weights) -> WeightsThere:
        args = {**self._common, "action": "status", **_identity(weights)}
        return typed(WeightsThere, await self._runner.run_script("weights", args, deadline=60.0), self._node.id)

    async def weights_push(self, weights: Weights, offset: int, on_event: OnEvent) -> WeightsThere:
        size = (weights.size or 0) - offset
        args = {**self._common, "action": "receive", "offset": offset, **_identity(weights)}
        reply = await self._runner.run_script(
            "weights",
            args,
            deadline=300.0 + (weights.size or 0) / SLOWEST,
            payload=file_chunks(Path(weights.path or ""), offset),
            payload_size=size,
            on_event=on_event,
        )
        return typed(WeightsThere, reply, self._node.id)

    async def weights_use(self, path: str) -> WeightsThere:
        args = {**self._common, "action": "use", "path": path}
        return typed(WeightsThere, await self._runner.run_script("weights", args, deadline=60.0), self._node.id)

    async def purge(self) -> Purged:
        args = {**self._common, "action": "purge", "cluster": self._cluster}
        return typed(Purged, await self._runner.run_script("purge", args, deadline=120.0), self._node.id)

    async def _install(
        self,
        build: Build,
        action: str,
        *,
        deadline: float,
        extra: Mapping[str, Any] | None = None,
        payload: AsyncIterator[bytes] | None = None,
        size: int = 0,
        on_event: OnEvent | None = None,
    ) -> Installed:
        args = {**self._common, "action": action, **install_args(build), **(extra or {})}
        reply = await self._runner.run_script(
            "install", args, deadline=deadline, payload=payload, payload_size=size, on_event=on_event
        )
        return typed(Installed, reply, self._node.id)


def probe_args(options: NodeOptions, node_id: str, ports: tuple[int, int]) -> dict[str, Any]:
    """How probe.py is asked: also by who has a connection and no node yet, and then without an id."""
    return {
        "root": options.root,
        "node_id": node_id,
        "nvidia_smi": options.nvidia_smi,
        "ib_root": options.ib_root,
        "ports": list(ports),
    }


def preflight_args(
    options: NodeOptions,
    node_id: str,
    *,
    ports: tuple[int, int],
    outbound: Sequence[str] = OUTSIDE,
    ask_sudo: bool = False,
) -> dict[str, Any]:
    """How preflight.py is asked: also by who has a connection and no node yet."""
    return {
        "root": options.root,
        "node_id": node_id,
        "ports": list(ports),
        "outbound": list(outbound),
        "interpreters": list(INTERPRETERS),
        "libraries": [*LIBRARIES, VERBS],
        "ask_sudo": ask_sudo,
    }


def install_args(build: Build) -> dict[str, Any]:
    """How install.py is told of a build."""
    if build.path is not None:
        return {"engine": build.engine, "version": build.version, "path": build.path, "check": list(build.check)}
    files = {f"{name}.py": assets.remote_script(name).decode() for name in build.files}
    return {
        "engine": build.engine,
        "version": build.version,
        "build": build.name,
        "directory": build.directory,
        "files": {name: {"text": text, "sha256": _sha256(text)} for name, text in files.items()},
        "check": list(build.check),
        "requires_python": list(build.requires_python) if build.requires_python else None,
    }


async def file_chunks(path: Path, offset: int = 0) -> AsyncIterator[bytes]:
    """A file from `offset` on, read off the event loop."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        file.seek(offset)
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
    finally:
        file.close()


def _identity(weights: Weights) -> dict[str, Any]:
    return {"sha256": weights.sha256, "size": weights.size, "file": weights.file}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
