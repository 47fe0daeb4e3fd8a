"""What a person calls a node or a replica, when it is not its id: a part of a long one, or what was typed to add it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from llmgw.admin.client import AdminClient, part
from llmgw.errors import NotFound, UsageError
from llmgw.model.node import Node
from llmgw.model.requests import NodeDetail
from llmgw.model.snapshot import Snapshot

LISTED = 8
"""So many names are listed where one was not enough."""


def find_replica(snapshot: Snapshot, wanted: str) -> str:
    """The id that is meant: `wanted` itself, or the only one that begins or ends with it, or else that holds it.

    What is in none is given back: the control plane says so, with the nearest. Raises UsageError where it is in
    several, NotFound for one that is unclaimed.
    """
    part(wanted)  # what is no name is in all of them
    ids = [replica.id for replica in snapshot.replicas]
    found = [one for one in ids if one == wanted]
    found = found or [one for one in ids if one.startswith(wanted) or one.endswith(wanted)]
    found = found or [one for one in ids if wanted in one]
    if len(found) > 1:
        raise UsageError(f"{wanted!r} may be any of {_listed(found)}.", fix="Give more of it.", code="ambiguous")
    strays = sorted({one.node for one in snapshot.unclaimed if wanted in one.replica})
    if strays and not found:
        raise NotFound(f"{wanted} is unclaimed on {_listed(strays)}: this state does not know it, nor its log.")
    return found[0] if found else wanted


@contextlib.asynccontextmanager
async def node_named(client: AdminClient, wanted: str) -> AsyncIterator[None]:
    """Around what is asked of a node: where there is none of that id, the error names the one that was added so."""
    try:
        yield
    except NotFound:
        snapshot = await client.get("/snapshot", Snapshot)
        meant = [node.id for node in snapshot.nodes if wanted.lower() in _typed(node) - {node.id}]
        if not meant:
            raise
        who = f"node that was added as {wanted} is" if len(meant) == 1 else f"nodes that were added as {wanted} are"
        fix = f"Say {meant[0]}." if len(meant) == 1 else "Say which."
        raise NotFound(f"There is no node {wanted!r}. The {who} {_listed(meant)}.", fix=fix) from None


async def check_node(client: AdminClient, wanted: str) -> None:
    """Raises NotFound where there is no such node."""
    async with node_named(client, wanted):
        await client.get(f"/nodes/{part(wanted)}", NodeDetail)


def _typed(node: Node) -> set[str]:
    """All that can have been typed after `node add` for it."""
    address = node.address
    hosts = {address.host, address.config_host or address.host}
    ways = {form for host in hosts for form in (host, f"{host}:{address.port}")}
    forms = {form for way in ways for form in (way, f"{address.user}@{way}")}
    return {form.lower() for form in forms | {str(address), address.typed}}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
