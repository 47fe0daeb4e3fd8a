"""`llmgw key`: API keys of the endpoint."""

from __future__ import annotations

import sys

import click

from llmgw.admin.client import part
from llmgw.admin.views import KEYS, key_rows
from llmgw.cli import session
from llmgw.cli.output import confirm, say, show_json
from llmgw.cli.table import table
from llmgw.model.requests import KeyList, MadeKey, NewKey, Said


@click.group()
def key() -> None:
    """API keys of the endpoint."""


@key.command()
@click.argument("name")
@click.option("--model", "models", multiple=True, help="Allow this model only; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def create(name: str, models: tuple[str, ...], as_json: bool) -> None:
    """Create a key. It is shown once, on stdout, and stored only as a hash."""
    session.run(_create(name, models, as_json))


async def _create(name: str, models: tuple[str, ...], as_json: bool) -> None:
    from pydantic import ValidationError

    from llmgw.errors import UsageError

    try:
        wish = NewKey(name=name, models=models)
    except ValidationError as exc:
        raise UsageError(str(exc.errors()[0]["msg"]).removeprefix("Value error, ") + ".") from None
    async with session.acting("key create") as client:
        made = await client.post("/keys", MadeKey, wish)
        try:
            if as_json:
                show_json(made)
            else:
                say(f"Key {name}. It is shown this once:")
                click.echo(made.secret)
            sys.stdout.flush()
        except OSError:
            # Nobody has seen it: it must not stay in force.
            await client.delete(f"/keys/{part(name)}", Said)
            raise


@key.command("list")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def list_(as_json: bool) -> None:
    """All keys, never the keys themselves."""
    session.run(_list(as_json))


async def _list(as_json: bool) -> None:
    async with session.reading() as client:
        found = await client.get("/keys", KeyList)
    if as_json:
        show_json(found)
        return
    columns, rows = key_rows(found)
    table(columns, rows, KEYS, empty="There is no key yet: `llmgw key create NAME`.")


@key.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def revoke(name: str, yes: bool, as_json: bool) -> None:
    """Revoke a key: effective at the next request."""
    confirm(f"Revoke key {name}?", yes=yes)
    session.run(_revoke(name, as_json))


async def _revoke(name: str, as_json: bool) -> None:
    async with session.acting("key revoke") as client:
        said = await client.delete(f"/keys/{part(name)}", Said)
    show_json(said) if as_json else click.echo(said.message)
