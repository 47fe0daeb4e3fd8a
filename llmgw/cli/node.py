"""`llmgw node`: machines that serve."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from llmgw.admin.client import AdminClient, part
from llmgw.admin.text import clean, event_line
from llmgw.admin.views import node_rows
from llmgw.cli import session
from llmgw.cli.output import Seconds, confirm, say, show_json, table
from llmgw.config.home import host_name
from llmgw.config.load import load_settings
from llmgw.engines.registry import engines
from llmgw.errors import LlmgwError, Refused, TimedOut
from llmgw.model.base import NAME_RULE, is_name
from llmgw.model.node import Address, NodeOptions
from llmgw.model.requests import Join, Joined, NodeDetail, Removal, Whoami
from llmgw.model.snapshot import Snapshot

READY_LIMIT = 900.0
FINAL = ("superseded", "foreign_controller", "unsafe_root", "bad_argument")
"""What no waiting mends: the node says no."""


@click.group()
def node() -> None:
    """Machines that serve."""


def _pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not (key and equals and text):
            raise click.UsageError(f"{option} {value!r}: write {option} key=value.")
        found[key] = text
    return found


@node.command()
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST[:PORT]...")
@click.option("--name", help="The node's id; by default its hostname.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="For node_selector; may be repeated.")
@click.option("--engine", "engines", multiple=True, metavar="NAME=/PATH", help="Use an engine that is there already.")
@click.option("--root", metavar="DIR", help="Where llmgw keeps its files on the node.  [~/.local/share/llmgw]")
@click.option("--nvidia-smi", metavar="PATH", help="Where nvidia-smi is, if not on PATH.")
@click.option("--ib-root", metavar="DIR", help="Where the InfiniBand tree is, if not in /sys.")
@click.option("-i", "--identity", "identities", multiple=True, metavar="FILE", help="Private key for first contact.")
@click.option("--fingerprint", metavar="SHA256:…", help="The host key to expect.")
@click.option("--accept-new", is_flag=True, help="Pin a host key that nobody knows yet without asking.")
@click.option("--take-over", is_flag=True, help="Take a node from a control plane that is gone for good.")
@click.option("--timeout", type=Seconds(), default=READY_LIMIT, show_default=True, help="How long to wait.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a step on stdout.")
def add(hosts: tuple[str, ...], **options: Any) -> None:
    """Make machines serve. `local` is this machine, over a server of our own on loopback.

    First contact is made with your own keys, agent and SSH configuration. Nothing is written to a machine before it
    has passed preflight. Several machines are added side by side.
    """
    if options["name"] and len(hosts) > 1:
        raise click.UsageError("--name goes with one host.")
    if options["name"] and not is_name(options["name"]):
        raise click.UsageError(f"--name {options['name']!r}: names are {NAME_RULE}.")
    for engine in _pairs(options["engines"], "--engine"):
        if engine not in engines():
            raise click.UsageError(f"--engine {engine}: there is no such engine; known: {', '.join(engines())}.")
    session.run(_add(hosts, options))


async def _add(hosts: tuple[str, ...], options: dict[str, Any]) -> None:
    async with session.acting("node add") as client:
        me = await client.get("/whoami", Whoami)
        width = max(len(host) for host in hosts)
        stories = [_story(client, me, host, options, width) for host in hosts]
        ends = await asyncio.gather(*stories, return_exceptions=True)
    failed = [(host, end) for host, end in zip(hosts, ends, strict=True) if isinstance(end, BaseException)]
    for host, end in failed:
        if len(hosts) > 1:
            say(f"{host}: {end}")
    if failed:
        worst = failed[0][1]
        if len(hosts) > 1 and isinstance(worst, LlmgwError):
            raise type(worst)(f"{len(failed)} of {len(hosts)} machines were not added.", code=worst.code)
        raise worst


async def _story(client: AdminClient, me: Whoami, host: str, options: dict[str, Any], width: int) -> None:
    """One machine from first contact to ready, a line a step."""

    async def tell(step: str, text: str, **more: Any) -> None:
        if options["as_json"]:
            click.echo(json.dumps({"host": host, "step": step, "message": text, **more}, ensure_ascii=False))
        else:
            click.echo(f"{host:<{width}}  {step:<9}  {clean(text)}", err=True)

    join = await _contact(client, me, host, options, tell)
    name = await join_and_follow(client, join, tell, options["timeout"])
    if not options["as_json"]:
        click.echo(name)


async def join_and_follow(client: AdminClient, join: Join, tell: Any, timeout: float) -> str:
    """Hands a node to the control plane and tells what becomes of it until it is ready. Returns its id."""
    joined = await client.post("/nodes", Joined, join)
    name = joined.node.id
    await tell("join", f"{name} is known already; it is checked again" if joined.known else f"{name} is being added")
    try:
        async with asyncio.timeout(timeout):
            async for event in client.events(after=joined.after_event, node=name):
                if event.kind in ("engine.install", "node.look", "node.quarantined", "node.link"):
                    await tell("engines" if event.kind == "engine.install" else "node", event.message)
                if event.kind == "node.look" and event.data.get("code") in FINAL:
                    raise Refused(event.message, code=str(event.data["code"]))
                if event.kind == "node.ready":
                    break
    except TimeoutError:
        raise TimedOut(f"{name} was not ready within {timeout:g} s.", fix=f"See `llmgw node show {name}`.") from None
    detail = await client.get(f"/nodes/{part(name)}", NodeDetail)
    engines = ", ".join(f"{one.engine} {one.state}" for one in detail.engines) or "no engines configured"
    await tell("ready", f"{name} is ready ({engines})", node=name)
    return name


async def _contact(client: AdminClient, me: Whoami, host: str, options: dict[str, Any], tell: Any) -> Join:
    try:
        wanted = NodeOptions(
            root=options["root"],
            nvidia_smi=options["nvidia_smi"],
            ib_root=options["ib_root"],
            engines=_pairs(options["engines"], "--engine"),
        )
    except ValidationError as exc:
        first = exc.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise click.UsageError(f"{option}: {first['msg'].removeprefix('Value error, ')}.") from None
    labels = _pairs(options["labels"], "--label")
    if host == "local":
        import getpass

        address = Address(host="local", user=getpass.getuser())
        term = _local_term(wanted.root, options["name"]) if options["take_over"] else None
        return Join(
            name=options["name"],
            address=address,
            options=wanted,
            labels=labels,
            take_over=options["take_over"],
            owner_term=term,
        )
    from llmgw.nodes.onboard import Wish, first_contact
    from llmgw.ssh.identity import Login

    settings = load_settings(client.home)
    identities = options["identities"] or settings.ssh.identities
    config = (Path(settings.ssh.config).expanduser(),) if settings.ssh.config else ()
    login = Login(client_keys=tuple(Path(one).expanduser() for one in identities), agent=True, config_files=config)
    wish = Wish(host, options["name"], wanted, labels, options["fingerprint"], options["take_over"])

    async def ask(name: str, key: str, fingerprint: str) -> bool:
        if options["accept_new"] or (not sys.stdin.isatty() and settings.ssh.new_hosts == "pin"):
            await tell("reach", f"host key {fingerprint} of {name} is not known yet and will be pinned")
            return True
        if not sys.stdin.isatty():
            raise Refused(
                f"The host key of {name}, {fingerprint}, is not known and ssh.new_hosts is `refuse`.",
                fix="Add --fingerprint with the value you expect, or --accept-new.",
                code="host_key_unknown",
            )
        return await asyncio.to_thread(
            click.confirm, f"{name} shows the host key {fingerprint}, which nobody here knows. Trust it?", err=True
        )

    join, _ = await first_contact(
        wish,
        me,
        login=login,
        key=client.home.path / "id_ed25519",
        user=settings.ssh.user,
        say=tell,
        confirm=ask,
    )
    return join


def _local_term(root: str | None, name: str | None) -> int | None:
    """The term that this machine has obeyed as a node, if it has: read from its own files."""
    host = (name or host_name()).lower()
    path = Path(root or "~/.local/share/llmgw").expanduser() / "hosts" / host / "term"
    try:
        return int(json.loads(path.read_text())["term"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
    table(columns, rows, empty="There is no node yet: `llmgw node add HOST`.")


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
    async with session.acting("node probe") if probe else session.reading() as client:
        if probe:
            detail = await client.post(f"/nodes/{part(name)}/probe", NodeDetail)
        else:
            detail = await client.get(f"/nodes/{part(name)}", NodeDetail)
    if as_json:
        show_json(detail)
        return
    from llmgw.admin.views import node_detail

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
    async with session.acting("node remove") as client:

        async def follow() -> None:
            async for event in client.events(node=name):
                say(event_line(event))

        watching = asyncio.create_task(follow())
        try:
            done = await client.delete(f"/nodes/{part(name)}", Removal, purge=int(purge), force=int(force))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    if as_json:
        show_json(done)
        return
    for path in done.left:
        say(f"left: {path}")
    click.echo(done.message)
