"""`llmgw model`: the catalog."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import click

from llmgw.admin.client import AdminClient, part
from llmgw.admin.text import clean
from llmgw.cli import session
from llmgw.cli.ctl import show_models
from llmgw.cli.output import Seconds, confirm, show_json
from llmgw.config.load import load
from llmgw.errors import LlmgwError, TimedOut
from llmgw.model.catalog import Model
from llmgw.model.requests import Said
from llmgw.model.snapshot import ModelStatus, Snapshot

STILL = 10.0
"""Seconds without news after which the waiting says what may be done about it."""
FINAL = "its weights cannot be had"


@click.group()
def model() -> None:
    """The catalog of models."""


@model.command()
@click.argument("file", type=click.Path())
@click.option("--wait", is_flag=True, help="Until as many replicas are ready as the entry wants.")
@click.option("--timeout", type=Seconds(), default=900.0, show_default=True, help="Seconds to wait for that.")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def add(file: str, wait: bool, timeout: float, as_json: bool) -> None:
    """Add the catalog entry in FILE (YAML), or change the one of that name."""
    entry = load(Path(file), Model)
    session.run(_add(entry, wait, timeout, as_json))


async def _add(entry: Model, wait: bool, timeout: float, as_json: bool) -> None:
    async with session.acting("model add") as client:
        said = await client.post("/models", Said, entry)
        status = await ready(client, entry.name, timeout) if wait else None
    if as_json:
        show_json(status or said)
    else:
        click.echo(said.message if status is None else f"{entry.name} is ready: {status.ready} of {status.wanted}.")


async def ready(client: AdminClient, name: str, timeout: float) -> ModelStatus:
    """Waits until a model is ready, telling what it waits for. Raises TimedOut with the last reason."""
    end, told, since = time.monotonic() + timeout, "", time.monotonic()
    while True:
        snapshot = await client.get("/snapshot", Snapshot)
        status = next((one for one in snapshot.status if one.model == name), None)
        if status is not None and status.state == "ready":
            return status
        words = f"{status.state}: {status.reason}" if status else "waiting"
        if words != told:
            click.echo(clean(f"{name}  {words}"), err=True)
            told, since = words, time.monotonic()
        elif time.monotonic() - since > STILL:
            click.echo(f"{name}  still so; Ctrl-C ends the waiting, the entry stays in the catalog", err=True)
            since = math.inf
        if status is not None and status.reason.startswith(FINAL):
            raise LlmgwError(f"{name}: {status.reason}", fix="Correct the entry and add it again.", code="no_weights")
        if time.monotonic() > end:
            raise TimedOut(f"{name} was not ready within {timeout:g} s ({words}).", fix="See `llmgw ctl events`.")
        await asyncio.sleep(0.25)


async def _gone(client: AdminClient, name: str, timeout: float = 120.0) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        snapshot = await client.get("/snapshot", Snapshot)
        reachable = {node.id for node in snapshot.nodes if str(node.link) == "up"}
        if not [one for one in snapshot.replicas_of(name) if one.lead.node in reachable]:
            return
        await asyncio.sleep(0.2)


@model.command("list")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def list_(as_json: bool) -> None:
    """The catalog and the state of each model, as `ctl models` shows it."""
    session.run(show_models(as_json))


@model.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Take a model out of the catalog; its replicas finish what they are doing and stop."""
    confirm(f"Remove model {name} and stop its replicas?", yes=yes)
    session.run(_remove(name, as_json))


async def _remove(name: str, as_json: bool) -> None:
    async with session.acting("model remove") as client:
        said = await client.delete(f"/models/{part(name)}", Said)
        if client.alone:
            # Nobody goes on with it when this command ends.
            await _gone(client, name)
    show_json(said) if as_json else click.echo(said.message)
