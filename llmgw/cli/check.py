"""`llmgw node check`: a look over nodes that changes nothing, as a report; worst first, each with what mends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import click

from llmgw.admin.client import part
from llmgw.admin.text import clean
from llmgw.cli import session
from llmgw.cli.names import check_node
from llmgw.cli.output import show_json
from llmgw.errors import LlmgwError, Refused
from llmgw.model.node import Problem
from llmgw.model.requests import Checked
from llmgw.model.snapshot import Snapshot

_COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}


class Finding(NamedTuple):
    """One machine's findings; or why it could not be looked at."""

    host: str
    problems: tuple[Problem, ...]
    failed: LlmgwError | None


def report(found: Sequence[Finding], *, as_json: bool) -> None:
    """Prints all of it. Raises Refused where a machine has errors, or its failure where the only one could not be seen.

    What mends a thing is said once: with the finding, or else with the error that ends the command.
    """
    failed = [(one.host, one.failed) for one in found if one.failed is not None]
    if as_json:
        show_json([_plain(one) for one in found])
    elif len(found) != len(failed) or len(found) > 1:
        for one in found:
            _show(one)
    bad = [one.host for one in found if any(problem.severity == "error" for problem in one.problems)]
    if failed and len(found) == 1:
        raise failed[0][1]
    if not failed and not bad:
        return
    said = [f"{', '.join(bad)} cannot serve as it is"] if bad else []
    said += [f"{', '.join(host for host, _ in failed)} could not be looked at"] if failed else []
    message, fix = f"{'; '.join(said)}.", "Mend the errors above and check again."
    if len(failed) == len(found):
        first = failed[0][1]
        raise type(first)(message, fix=fix, code=first.code)
    raise Refused(message, fix=fix, code="findings")


def _plain(one: Finding) -> dict[str, object]:
    return {
        "host": one.host,
        "ok": one.failed is None and not any(problem.severity == "error" for problem in one.problems),
        "failed": one.failed.as_dict() if one.failed is not None else None,
        "findings": [problem.model_dump() for problem in one.problems],
    }


def _show(one: Finding) -> None:
    click.echo(click.style(one.host, bold=True))
    if one.failed is not None:
        click.echo(f"  {click.style('could not be looked at', fg='red')}: {clean(one.failed.message)}")
        if one.failed.fix:
            click.echo(f"           {clean(one.failed.fix)}")
        return
    for problem in one.problems:
        mark = click.style(f"{problem.severity:<8}", fg=_COLOURS[problem.severity])
        click.echo(f"  {mark} {problem.code}: {clean(problem.message)}")
        if problem.fix:
            click.echo(f"           {clean(problem.fix)}")
    if not any(problem.severity == "error" for problem in one.problems):
        click.echo(click.style("  it can serve", fg="green"))


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("--json", "as_json", is_flag=True, help="Stable keys for programs.")
def check(names: tuple[str, ...], as_json: bool) -> None:
    """Look nodes over: every finding with what mends it. All nodes without a name. Writes nothing on them."""
    session.run(_check_nodes(names, as_json))


async def _check_nodes(names: tuple[str, ...], as_json: bool) -> None:
    async with session.acting("node check") as client:
        snapshot = await client.get("/snapshot", Snapshot)
        known = [node.id for node in snapshot.nodes]
        for name in names:
            if name not in known:
                await check_node(client, name)

        async def one(name: str) -> Finding:
            try:
                found = await client.post(f"/nodes/{part(name)}/check", Checked)
            except LlmgwError as exc:
                return Finding(name, (), exc)
            return Finding(name, found.problems, None)

        findings = await asyncio.gather(*(one(name) for name in names or known))
    report(findings, as_json=as_json)
