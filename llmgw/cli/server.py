"""`llmgw server`: the control plane in the foreground."""

from __future__ import annotations

import logging
import os
import sys

import click

from llmgw.cli import session
from llmgw.cli.output import say
from llmgw.config.load import load_settings


@click.group()
def server() -> None:
    """The control plane itself."""


@server.command()
@click.option("--config", metavar="FILE", help="llmgw.yaml; by default LLMGW_CONFIG or the one in LLMGW_HOME.")
@click.option("--standby", is_flag=True, help="Wait for as long as another control plane holds the state.")
@click.option("-v", "--verbose", is_flag=True, help="Log what the loops do.")
def run(config: str | None, standby: bool, verbose: bool) -> None:
    """Run it in the foreground until SIGTERM or Ctrl-C. Engines go on running when it ends."""
    from llmgw import server as wiring
    from llmgw.config.home import find_home

    set_up_log(verbose)
    home = find_home()
    settings = load_settings(home, config)

    async def ready(plane: wiring.ControlPlane) -> None:
        assert plane.gateway_server is not None
        say(f"llmgw serves {home.path}")
        say(f"  inference  http://{plane.gateway_server.host}:{plane.gateway_server.port}/v1")
        if plane.admin_port:
            say(f"  admin      http://127.0.0.1:{plane.admin_port}  (token in {home.token})")
        say("  next       llmgw node add HOST · llmgw model add FILE · llmgw key create NAME")

    session.run(wiring.run(home, settings, ready, say, standby=standby))


def set_up_log(verbose: bool) -> None:
    """One line an entry on stderr; a journal adds the time itself."""
    level = logging.DEBUG if verbose or "--debug" in sys.argv else logging.WARNING
    stamp = "" if os.environ.get("INVOCATION_ID") else "%(asctime)s "
    logging.basicConfig(level=level, format=f"{stamp}%(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    for noisy in ("asyncssh", "asyncio", "aiohttp", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
