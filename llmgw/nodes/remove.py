"""The end of a node's story: what we put there goes, and what is left is named."""

from __future__ import annotations

from llmgw.model.node import Node
from llmgw.nodes.remote import Authority, Remote, Runner
from llmgw.nodes.replies import KeyWritten, typed


async def leave(
    runner: Runner, node: Node, authority: Authority, *, key: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Purges a node and takes our key's line off it, last. Returns what was removed and what is left of ours."""
    purged = await Remote(runner, node, authority).purge()
    if key is None or node.address.is_local:
        return purged.removed, purged.left
    reply = await runner.run_script(
        "authorize",
        {
            "action": "remove",
            "key": key,
            "root": node.options.root,
            "node_id": node.id,
            # What first contact created and purge could not take away yet, since our line was still in it.
            "trace": list(purged.left),
        },
        deadline=30.0,
    )
    done = typed(KeyWritten, reply, node.id)
    line = (f"{done.path} (our line)",) if done.changed else ()
    left = tuple(path for path in purged.left if path not in done.removed)
    return (*purged.removed, *line, *done.removed), left
