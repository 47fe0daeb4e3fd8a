"""`llmgw node`: machines that serve."""

from __future__ import annotations

import asyncio

import click

from llmgw.admin.client import part
from llmgw.admin.text import clean
from llmgw.admin.views import NODES, node_detail, node_rows
from llmgw.cli import session
from llmgw.cli.add import add
from llmgw.cli.check import check
from llmgw.cli.events import watch
from llmgw.cli.names import node_named
from llmgw.cli.output import confirm, show_json
from llmgw.cli.table import table
from llmgw.model.requests import NodeDetail, Removal
from llmgw.model.snapshot import Snapshot


@click.group()
def node() -> None:
    """Machines that serve."""


node.add_command(add)
node.add_command(check)


@node.command("list")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def list_(as_json: bool) -> None:
    """All nodes, as `ctl nodes` shows them."""
    session.run(show_nodes(as_json))


async def show_nodes(as_json: bool) -> None:
    async with session.reading() as client:
        snapshot = await client.get("/snapshot", Snapshot)
    if as_json:
        show_json(list(snapshot.nodes))
        return
    columns, rows = node_rows(snapshot)
    table(columns, rows, NODES, empty="There is no node yet: `llmgw node add HOST`.")


@node.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs; the whole probe with it.")
def show(name: str, as_json: bool) -> None:
    """One node: how it is reached, what it is, its engines and its problems."""
    session.run(_show(name, as_json, probe=False))


@node.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs; the whole probe with it.")
def probe(name: str, as_json: bool) -> None:
    """Look at a node now. Writes nothing on it."""
    session.run(_show(name, as_json, probe=True))


async def _show(name: str, as_json: bool, *, probe: bool) -> None:
    async with session.acting("node probe") if probe else session.reading() as client, node_named(client, name):
        if probe:
            detail = await client.post(f"/nodes/{part(name)}/probe", NodeDetail)
        else:
            detail = await client.get(f"/nodes/{part(name)}", NodeDetail)
    if as_json:
        show_json(detail)
        return
    for key, value in node_detail(detail):
        click.echo(f"{click.style(f'{key:<12}', bold=True)} {clean(value)}")


@node.command()
@click.argument("name")
@click.option("--purge", is_flag=True, help="Delete everything of ours on it, and prove it.")
@click.option("--force", is_flag=True, help="Do not wait for replacements; forget a node that is out of reach.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def remove(name: str, purge: bool, force: bool, yes: bool, as_json: bool) -> None:
    """Take a node out: its replicas are moved off first."""
    what = "remove it and delete everything of ours on it" if purge else "remove it"
    confirm(f"Node {name}: {what}?", yes=yes)
    session.run(_remove(name, purge, force, as_json))


async def _remove(name: str, purge: bool, force: bool, as_json: bool) -> None:
    async with session.acting("node remove") as client, node_named(client, name):
        watching = asyncio.create_task(watch(client, node=name))
        try:
            done = await client.delete(f"/nodes/{part(name)}", Removal, purge=int(purge), force=int(force))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    show_json(done) if as_json else click.echo(done.message)
