"""The two halves of a launch that touch a node: the weights get there, the engine is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgw.engines.base import Command, InstalledAt, Unsupported
from llmgw.engines.registry import engines
from llmgw.errors import LlmgwError
from llmgw.model.catalog import Model
from llmgw.model.engine import NodeEngine
from llmgw.model.node import Node
from llmgw.model.probe import Probe
from llmgw.model.replica import Replica, Shard
from llmgw.model.secret import Secret
from llmgw.model.weights import Weights
from llmgw.nodes.provision import choose_build
from llmgw.nodes.remote import Remote
from llmgw.nodes.replies import Started


async def bring_weights(remote: Remote, weights: Weights, progress: Callable[[float], None]) -> str:
    """The absolute path of the weights on the node, pushed there when they are not there yet."""
    if weights.file is None:
        return ""  # An engine that needs none.
    if weights.on_node is not None:
        there = await remote.weights_use(weights.on_node)
        return there.path or weights.on_node
    there = await remote.weights_status(weights)
    if not there.present:

        def on_event(event: dict[str, Any]) -> None:
            done, total = event.get("done"), event.get("total")
            if isinstance(done, (int, float)) and isinstance(total, (int, float)) and total:
                progress(done / total)

        there = await remote.weights_push(weights, there.partial, on_event)
    if there.path is None:
        raise LlmgwError(f"the node did not say where {weights.file} lies", code="bad_reply")
    return there.path


def command_for(
    model: Model, replica: Replica, installed: NodeEngine, node: Node, probe: Probe, weights: str
) -> Command:
    """The engine's command line for a replica where it was placed. Raises LlmgwError when that place has changed."""
    build = choose_build(replica.engine, replica.engine_version, node, probe)
    if isinstance(build, Unsupported):
        raise LlmgwError(f"{replica.engine} does not run on {node.id}: {build.reason}", code="unsupported")
    profile = next((profile for profile in model.profiles if profile.name == replica.profile), None)
    if profile is None:
        raise LlmgwError(f"profile {replica.profile} is not in the catalog any more", code="profile_gone")
    place = InstalledAt(installed.path or "", node.python or "python3")
    return engines()[replica.engine].command(build, place, model, profile, weights)


async def start(
    remote: Remote,
    model: Model,
    replica: Replica,
    shard: Shard,
    command: Command,
    *,
    cluster: str,
    key: Secret,
    ports: tuple[int, int],
) -> Started:
    """Starts a shard's engine, or finds the one that this very attempt has started already."""
    manifest = {
        "cluster": cluster,
        "replica": replica.id,
        "rank": shard.rank,
        "model": model.name,
        "entry": model.model_dump(mode="json"),
        "revision": replica.revision,
        "profile": replica.profile,
        "engine": replica.engine,
        "engine_version": replica.engine_version,
        "memory_bytes": replica.memory_bytes,
    }
    return await remote.start_engine(
        replica=replica.id,
        rank=shard.rank,
        attempt=shard.attempt,
        argv=command.argv,
        env=command.env,
        key_variable=command.key_variable,
        key=key,
        ports=ports,
        manifest=manifest,
    )
