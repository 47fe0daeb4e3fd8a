"""`llmgw ctl`: look at the cluster and steer it."""

from __future__ import annotations

import asyncio
import time

import click

from llmgw.admin.client import AdminClient, part
from llmgw.admin.text import clean
from llmgw.admin.views import AUDIT, MODELS, REPLICAS, audit_rows, model_rows, replica_rows
from llmgw.cli import session
from llmgw.cli.events import Printer, watch
from llmgw.cli.names import check_node, find_replica, node_named
from llmgw.cli.node import show_nodes
from llmgw.cli.output import Seconds, say, show_json
from llmgw.cli.table import table
from llmgw.errors import TimedOut
from llmgw.model.node import DrainState
from llmgw.model.requests import AuditList, EventList, Logs, NodeDetail, Said
from llmgw.model.snapshot import Snapshot

JSON = click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")


@click.group()
def ctl() -> None:
    """Look at the cluster and steer it."""


@ctl.command()
@JSON
def nodes(as_json: bool) -> None:
    """All nodes."""
    session.run(show_nodes(as_json))


@ctl.command()
@JSON
def models(as_json: bool) -> None:
    """The catalog and the state of each model."""
    session.run(show_models(as_json))


async def show_models(as_json: bool) -> None:
    async with session.reading() as client:
        snapshot = await client.get("/snapshot", Snapshot)
    if as_json:
        status = {one.model: one.model_dump(mode="json") for one in snapshot.status}
        show_json([{**one.model_dump(mode="json"), "status": status.get(one.name)} for one in snapshot.models])
        return
    columns, rows = model_rows(snapshot)
    table(columns, rows, MODELS, empty="The catalog is empty: `llmgw model add FILE`.")


@ctl.command()
@JSON
def replicas(as_json: bool) -> None:
    """All replicas, and engines with our tag that this state does not know."""
    session.run(_replicas(as_json))


async def _replicas(as_json: bool) -> None:
    async with session.reading() as client:
        snapshot = await client.get("/snapshot", Snapshot)
    if as_json:
        show_json(
            {
                "replicas": [one.model_dump(mode="json") for one in snapshot.replicas],
                "unclaimed": [one.model_dump(mode="json") for one in snapshot.unclaimed],
            }
        )
        return
    columns, rows = replica_rows(snapshot)
    table(columns, rows, REPLICAS, empty="There is no replica.")


@ctl.command()
@click.option("-f", "--follow", is_flag=True, help="Go on as they happen.")
@click.option("-n", "--lines", default=50, show_default=True, help="So many of the latest.")
@click.option("--node", help="Of one node only.")
@JSON
def events(follow: bool, lines: int, node: str | None, as_json: bool) -> None:
    """What happened, and why."""
    session.run(_events(follow, lines, node, as_json))


async def _events(follow: bool, lines: int, node: str | None, as_json: bool) -> None:
    shown = Printer(as_json=as_json)
    async with session.reading() as client:
        found = (await client.get("/events", EventList, limit=lines, node=node)).events
        if node is not None and not found:
            await check_node(client, node)
        for event in found:
            shown.show(event)
        shown.tell()
        if follow:
            async for event in client.events(after=found[-1].id if found else None, node=node):
                shown.show(event)


@ctl.command()
@click.option("-n", "--lines", default=50, show_default=True, help="So many of the latest.")
@click.option("--node", help="Of one node only.")
@JSON
def audit(lines: int, node: str | None, as_json: bool) -> None:
    """Every remote command: what ran where, how it ended, how long it took."""
    session.run(_audit(lines, node, as_json))


async def _audit(lines: int, node: str | None, as_json: bool) -> None:
    async with session.reading() as client:
        found = (await client.get("/audit", AuditList, limit=lines, node=node)).audit
        if node is not None and not found:
            await check_node(client, node)
    if as_json:
        show_json(list(found))
        return
    columns, rows = audit_rows(found)
    table(columns, rows, AUDIT, empty="Nothing was run yet.")


@ctl.command()
@click.argument("replica")
@click.option("-n", "--lines", default=100, show_default=True, help="So many of the last.")
@JSON
def logs(replica: str, lines: int, as_json: bool) -> None:
    """The end of a replica's log, as the engine wrote it. A part of its name is enough where no other has it."""
    session.run(_logs(replica, lines, as_json))


async def _logs(replica: str, lines: int, as_json: bool) -> None:
    async with session.reading() as client:
        whole = find_replica(await client.get("/snapshot", Snapshot), replica)
        found = await client.get(f"/replicas/{part(whole)}/logs", Logs, lines=lines)
    if as_json:
        show_json(found)
        return
    if whole != replica:
        say(f"The log of {whole}:")
    for line in found.lines:
        click.echo(clean(line))


@ctl.command()
@click.argument("node")
@click.option("--wait", is_flag=True, help="Until nothing of ours runs on it any more.")
@click.option("--timeout", type=Seconds(), default=900.0, show_default=True, help="Seconds to wait for that.")
@JSON
def drain(node: str, wait: bool, timeout: float, as_json: bool) -> None:
    """Move everything off a node: each replacement is ready before the original stops. Survives a restart."""
    session.run(_drain(node, wait, timeout, as_json))


async def _drain(node: str, wait: bool, timeout: float, as_json: bool) -> None:
    async with session.acting("ctl drain") as client, node_named(client, node):
        said = await client.post(f"/nodes/{part(node)}/drain", Said)
        if not as_json:
            click.echo(said.message, err=wait)
        if wait:
            await _until_drained(client, node, timeout)
            said = Said(message=f"{node} is drained.")
            if not as_json:
                click.echo(said.message)
    if as_json:
        show_json(said)


async def _until_drained(client: AdminClient, node: str, timeout: float) -> None:
    last = ""
    watching = asyncio.create_task(watch(client, about=lambda event: event.kind.startswith(("replica.", "drain"))))
    end = time.monotonic() + timeout
    try:
        while True:
            detail = await client.get(f"/nodes/{part(node)}", NodeDetail)
            if detail.node.drain is DrainState.DRAINED:
                return
            snapshot = await client.get("/snapshot", Snapshot)
            waiting = next((one.reason for one in snapshot.status if one.nowhere), "")
            if detail.node.link_error and not detail.node.reachable:
                waiting = f"{node} is out of reach: {detail.node.link_error}"
            if waiting and waiting != last:
                click.echo(clean(f"waiting: {waiting}"), err=True)
            last = waiting
            if detail.node.drain is DrainState.NONE:
                raise TimedOut(f"The drain of {node} was ended by somebody.")
            if time.monotonic() > end:
                why = f": {waiting}" if waiting else ""
                raise TimedOut(
                    f"{node} is not drained after {timeout:g} s{why}.",
                    fix=f"The drain goes on; `llmgw ctl undrain {node}` ends it.",
                )
            await asyncio.sleep(0.3)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _simple(name: str, text: str) -> None:
    @ctl.command(name, help=text)
    @click.argument("node")
    @JSON
    def command(node: str, as_json: bool) -> None:
        async def work() -> None:
            async with session.acting(f"ctl {name}") as client, node_named(client, node):
                said = await client.post(f"/nodes/{part(node)}/{name}", Said)
            show_json(said) if as_json else click.echo(said.message)

        session.run(work())


_simple("undrain", "End a drain; the node takes replicas again, unless it was cordoned before.")
_simple("cordon", "Let a node take no new replicas; what runs there goes on.")
_simple("uncordon", "Let a node take new replicas again.")
