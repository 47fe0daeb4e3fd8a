"""`llmgw tui`: the dashboard in a terminal."""

from __future__ import annotations

import asyncio
import sys

import click

from llmgw.cli import session
from llmgw.errors import Unreachable, UsageError
from llmgw.model.requests import Whoami

PATIENCE = 10.0


@click.command()
def tui() -> None:
    """The dashboard: nodes, replicas, models and what happens to them, live; drain and cordon by key.

    It needs a control plane that runs. When that goes away later, the dashboard waits for it.
    """
    # asyncio's own loop: a screen a second needs no faster one, and textual is made and tested for it.
    sys.exit(asyncio.run(_tui()))


async def _tui() -> int:
    async with session.reading() as client:
        try:
            async with asyncio.timeout(PATIENCE):
                await client.get("/whoami", Whoami)
        except TimeoutError:
            raise Unreachable(
                f"The control plane took the question and did not answer within {PATIENCE:g} s.",
                fix="Its log may say what holds it up.",
                code="no_server",
            ) from None
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("The dashboard needs a terminal.", fix="In a pipe, use `llmgw ctl nodes` and its sisters.")
        from llmgw.tui.app import Dashboard

        app = Dashboard(client)
        await app.run_async()
        return app.return_code or 0
