"""`llmgw node add` and `llmgw node check`: first contact with machines, and a look that changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmgw.admin.client import AdminClient, part
from llmgw.cli import session
from llmgw.cli.answers import Answers
from llmgw.cli.board import LOOK, Board, board
from llmgw.cli.check import Finding, report
from llmgw.cli.options import checked, node_options, pairs
from llmgw.cli.output import Seconds, say
from llmgw.config.files import read_json
from llmgw.config.home import Home, host_name
from llmgw.config.load import load_settings
from llmgw.config.settings import Settings
from llmgw.errors import LlmgwError, NodeError, Refused, TimedOut
from llmgw.model.engine import InstallState
from llmgw.model.node import Address, DrainState, NodeOptions
from llmgw.model.requests import Join, Joined, NodeDetail, Whoami
from llmgw.model.snapshot import Snapshot
from llmgw.nodes.examine import Examined, Machine
from llmgw.pki.sshkey import NAME as KEY_NAME

if TYPE_CHECKING:
    from llmgw.nodes.onboard import Story

READY_LIMIT = 900.0
RETRIES = 20
"""Half seconds that an engine which failed is given to be put right by another try."""
FINAL = ("superseded", "foreign_controller", "unsafe_root", "bad_argument")
"""What no waiting mends: the node says no."""


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST[:PORT]...")
@click.option("--check", "check_only", is_flag=True, help="Only look: print what was found, write nothing.")
@click.option("--name", help="The node's id; by default its hostname.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="For node_selector; may be repeated.")
@click.option("--engine", "engines", multiple=True, metavar="NAME=/PATH", help="Use an engine that is there already.")
@click.option("--fabric", "fabrics", multiple=True, metavar="NAME:HCA,…", help="Its RDMA adapters on a fabric.")
@click.option("--root", metavar="DIR", help="Where llmgw keeps its files on the node.  [~/.local/share/llmgw]")
@click.option("--nvidia-smi", metavar="PATH", help="Where nvidia-smi is, if not on PATH.")
@click.option("--ib-root", metavar="DIR", help="Where the InfiniBand tree is, if not in /sys.")
@click.option("-i", "--identity", "identities", multiple=True, metavar="FILE", help="Private key for first contact.")
@click.option("--no-key", is_flag=True, help="Leave no key there; the control plane uses yours, as ssh does.")
@click.option("--fingerprint", metavar="SHA256:…", help="The host key to expect.")
@click.option("--accept-new", is_flag=True, help="Pin a host key that nobody knows yet without asking.")
@click.option("--trust-key", metavar="SHA256:…", help="Accept this host key in place of the one that was pinned.")
@click.option("--ssh-wait", type=Seconds(), help="How long to wait for sshd to answer.  [0, once it has answered 180]")
@click.option("--despite", multiple=True, metavar="CODE", help="Go on past this error of preflight; may be repeated.")
@click.option("--mend", is_flag=True, help="Run what mends its findings as root there, by sudo, without asking.")
@click.option("--take-over", is_flag=True, help="Take a node from a control plane that is gone for good.")
@click.option("--timeout", type=Seconds(), default=READY_LIMIT, show_default=True, help="How long to wait.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a step on stdout.")
def add(hosts: tuple[str, ...], **options: Any) -> None:
    """Make machines serve. `local` is this machine, over a server of our own on loopback.

    First contact is made with your own keys, agent and SSH configuration. Nothing is written to a machine before it
    has passed preflight, but for what you agree to have mended. Several machines are added side by side.
    """
    hosts = checked(hosts, options)
    session.run(_check(hosts, options) if options["check_only"] else _add(hosts, options))


async def _add(hosts: tuple[str, ...], options: dict[str, Any]) -> None:
    async with session.acting("node add") as client:
        me = await client.get("/whoami", Whoami)
        machines = await _machines(client)
        going_on: list[str] = []
        try:
            with board(hosts, as_json=options["as_json"]) as shown:
                stories = [_story(client, me, machines, host, options, shown, going_on) for host in hosts]
                ends = await asyncio.gather(*stories, return_exceptions=True)
        finally:
            for sentence in going_on:
                say(sentence)
    for end in ends:
        if isinstance(end, str) and not options["as_json"]:
            click.echo(end)
    failed = [(host, end) for host, end in zip(hosts, ends, strict=True) if isinstance(end, BaseException)]
    if failed:
        worst = failed[0][1]
        if len(hosts) > 1 and isinstance(worst, LlmgwError):
            for host, end in failed:
                say(f"{host}: {end}")
            raise type(worst)(f"{len(failed)} of {len(hosts)} machines were not added.", code=worst.code)
        raise worst


async def _machines(client: AdminClient) -> list[Machine]:
    snapshot = await client.get("/snapshot", Snapshot)
    return [Machine(one.id, one.machine_id, one.boot_id, one.host_key) for one in snapshot.nodes if one.machine_id]


async def _story(
    client: AdminClient,
    me: Whoami,
    machines: list[Machine],
    host: str,
    options: dict[str, Any],
    shown: Board,
    going_on: list[str],
) -> str:
    """One machine from first contact to ready. Its id. `going_on` gets a sentence where that goes on without us."""

    async def tell(step: str, text: str, **more: Any) -> None:
        shown.tell(host, step, text, **more)

    joined: Joined | None = None
    try:
        joined = await _contact(client, me, machines, host, options, shown)
        return await follow(client, joined, tell, options["timeout"])
    except LlmgwError as exc:
        shown.failed(host, exc)
        raise
    except asyncio.CancelledError:
        if joined is not None:  # it is a node by now, and the server goes on with it
            name = joined.node.id
            goes_on = "its engines are installed when a server runs" if client.alone else "the server goes on with it"
            going_on.append(f"{name} is a node already; {goes_on}. To undo that: llmgw node remove {name} --purge")
        raise


async def join_and_follow(client: AdminClient, join: Join, tell: Any, timeout: float) -> str:
    """Hands a node to the control plane and tells what becomes of it until it is ready. Returns its id."""
    return await follow(client, await client.post("/nodes", Joined, join), tell, timeout)


async def follow(client: AdminClient, joined: Joined, tell: Any, timeout: float) -> str:
    """Tells what becomes of a node that was handed over, until it is ready. Returns its id."""
    name = joined.node.id
    if joined.adding_by is not None:
        await tell("join", f"{name} is being added already ({joined.adding_by}); this one waits for it")
    else:
        known = f"{name} was a node already; it is checked again"
        if joined.moved_from is not None:
            known += f", and reached at {joined.node.address.typed} from now on, no more at {joined.moved_from.typed}"
        await tell("join", known if joined.known else f"taken in as {name}")
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
    detail = await _settled(client, name)
    there = ", ".join(f"{one.engine} {one.state}" for one in detail.engines) or "no engines configured"
    usable = [one for one in detail.engines if one.state is InstallState.INSTALLED]
    if detail.engines and not usable:
        first = detail.engines[0]
        raise NodeError(
            f"{name} is a node, but none of its engines runs there: {first.engine} {first.state}: {first.detail}",
            fix=f"Mend that. It is tried again by itself, and at once by `llmgw node add {detail.node.address.typed}`.",
            code="no_engine",
        )
    held = detail.node.drain if detail.node.drain is not DrainState.NONE else "cordoned" if detail.node.cordoned else ""
    but = f", but takes no new replicas: it is {held}" if held else ""
    await tell("ready", f"{name} is ready ({there}){but}", node=name)
    return name


async def _settled(client: AdminClient, name: str) -> NodeDetail:
    """The node once one of its engines runs. An engine that failed is tried again soon, when that may help: a while is
    waited for that."""
    for _ in range(RETRIES):
        detail = await client.get(f"/nodes/{part(name)}", NodeDetail)
        if not detail.engines or any(one.state is InstallState.INSTALLED for one in detail.engines):
            break
        await asyncio.sleep(0.5)
    return detail


async def _contact(
    client: AdminClient, me: Whoami, machines: list[Machine], host: str, options: dict[str, Any], shown: Board
) -> Joined:
    wanted, labels = node_options(options), pairs(options["labels"], "--label")
    if host == "local":
        term = _local_term(wanted.root, options["name"]) if options["take_over"] else None
        here = Join(
            name=options["name"],
            address=Address(host="local", user=getpass.getuser()),
            options=wanted,
            labels=labels,
            take_over=options["take_over"],
            owner_term=term,
            by=_whose(),
        )
        return await client.post("/nodes", Joined, here)

    async def hand_over(join: Join) -> Joined:
        return await client.post("/nodes", Joined, join)

    story = _first_contact(load_settings(client.home), host, options, shown, me, wanted, labels)
    return await story.add(_own_key(client.home), hand_over, machines)


def _own_key(home: Home) -> Path | None:
    """The control plane's private key, where that is on this machine."""
    key = home.path / KEY_NAME
    return key if key.exists() else None


def _first_contact(
    settings: Settings,
    host: str,
    options: dict[str, Any],
    shown: Board,
    me: Whoami | None,
    wanted: NodeOptions,
    labels: dict[str, str],
) -> Story:
    from llmgw.nodes.onboard import Story
    from llmgw.nodes.operator import Wish
    from llmgw.ssh.identity import Login

    identities = options["identities"] or settings.ssh.identities
    config = (Path(settings.ssh.config).expanduser(),) if settings.ssh.config else ()
    answers = Answers(host, options, settings, shown)
    login = Login(
        client_keys=tuple(Path(one).expanduser() for one in identities),
        agent=True,
        config_files=config,
        prompt=answers.type_in if shown.interactive else None,
        passphrase=answers.passphrase if shown.interactive else None,
    )
    wish = Wish(
        host,
        options["name"],
        wanted,
        labels,
        fingerprint=(options["trust_key"] or options["fingerprint"] or "").rstrip("=") or None,
        trust_key=bool(options["trust_key"]),
        take_over=options["take_over"],
        mend=options["mend"],
        wait=options["ssh_wait"],
        ports=settings.engine_ports,
        by=_whose(),
        pins=session.home().known_hosts,
    )
    return Story(wish, me, login=login, user=settings.ssh.user, operator=answers)


def _whose() -> str:
    return f"pid {os.getpid()} of {getpass.getuser()} on {host_name()}"


def _local_term(root: str | None, name: str | None) -> int | None:
    """The term that this machine has obeyed as a node, if it has: read from its own files."""
    host = (name or host_name()).lower()
    path = Path(root or "~/.local/share/llmgw").expanduser() / "hosts" / host / "term"
    try:
        return int(read_json(path)["term"])
    except (OSError, Refused, ValueError, KeyError, TypeError):
        return None


async def _known_machines() -> list[Machine]:
    """The nodes there are, where a control plane runs that can be asked; a look needs none."""
    with contextlib.suppress(LlmgwError):
        async with session.reading() as client:
            if await session.running(client):
                return await _machines(client)
    return []


def _same(found: Examined, machines: Sequence[Machine], host_key: str | None) -> list[str]:
    """The nodes that the machine is already, by its ids and its host key."""
    probe = found.probe
    facts = (probe.machine_id, probe.boot_id, host_key) if probe is not None else None
    return [one.id for one in machines if (one.machine_id, one.boot_id, one.host_key) == facts]


async def _check(hosts: tuple[str, ...], options: dict[str, Any]) -> None:
    """Looks at machines that are no nodes yet. Needs no control plane; writes nothing here or there."""
    settings = load_settings(session.home())
    machines = await _known_machines()
    findings: list[Finding] = []
    already: list[str] = []
    with board(hosts, steps=LOOK) as shown:

        async def one(host: str) -> None:
            story = _first_contact(settings, host, options, shown, None, node_options(options), {})
            try:
                found = await story.check(machines, _own_key(session.home()))
            except LlmgwError as exc:
                shown.failed(host, exc)
                findings.append(Finding(host, (), exc))
                return
            shown.tell(host, "done", "looked at; nothing was written")
            already.extend(f"{host} is {name} already." for name in _same(found, machines, story.host_key))
            findings.append(Finding(host, found.problems, None))

        await asyncio.gather(*(one(host) for host in hosts))
    for sentence in already:
        say(sentence)
    report(sorted(findings, key=lambda found: hosts.index(found.host)), as_json=options["as_json"])
