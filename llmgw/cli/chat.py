"""`llmgw chat`: talk to a model from the shell."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import aiohttp
import click

from llmgw.cli import session
from llmgw.errors import LlmgwError, NotFound, Refused, Unreachable, UsageError
from llmgw.model.requests import Whoami


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--url", help="The endpoint.  [that of the running control plane]")
@click.option("--max-tokens", type=int, help="At most so many tokens an answer.")
@click.option("--temperature", type=float)
@click.option("--json", "as_json", is_flag=True, help="The whole answer as one JSON object.")
def chat(model: str, prompt: str | None, **options: Any) -> None:
    """Ask MODEL one PROMPT, or talk with it until Ctrl-D. The API key is taken from LLMGW_API_KEY."""
    session.run(_chat(model, prompt, options))


async def _chat(model: str, prompt: str | None, options: dict[str, Any]) -> None:
    url = options["url"] or await _endpoint()
    messages: list[dict[str, str]] = []
    once = prompt is not None or not sys.stdin.isatty()
    if prompt is None and once:
        prompt = sys.stdin.read()
    while True:
        if prompt is None:
            prompt = click.prompt(click.style("you", bold=True), prompt_suffix="  ")
            if prompt.strip() in ("/exit", "/quit"):
                return
        messages.append({"role": "user", "content": prompt})
        if once:
            await _ask(url, model, messages, options)
            return
        answer = await _interruptible(_ask(url, model, messages, options))
        messages.append({"role": "assistant", "content": answer})
        prompt = None


async def _interruptible(asking: Coroutine[Any, Any, str]) -> str:
    """Ctrl-C ends the answer, not the talk."""
    task = asyncio.ensure_future(asking)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        click.echo(" …")
        return ""
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _endpoint() -> str:
    async with session.reading() as client:
        me = await client.get("/whoami", Whoami)
    if me.listen is None:
        raise Unreachable("No endpoint is being served.", fix="Start it with `llmgw server run`.", code="no_server")
    return f"http://{me.listen}/v1"


async def _ask(url: str, model: str, messages: list[dict[str, str]], options: dict[str, Any]) -> str:
    """One answer, printed as it comes. Raises the error the endpoint answered with."""
    stream = not options["as_json"]
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": stream}
    for name in ("max_tokens", "temperature"):
        if options[name] is not None:
            body[name] = options[name]
    headers = {}
    if key := os.environ.get("LLMGW_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(f"{url.rstrip('/')}/chat/completions", json=body, headers=headers) as answer,
        ):
            if answer.status != 200:
                raise _error(answer.status, await answer.text())
            if not stream:
                reply = await answer.json(content_type=None)
                click.echo(json.dumps(reply, indent=2, ensure_ascii=False))
                return str(reply["choices"][0]["message"]["content"])
            return await _print(answer)
    except aiohttp.ClientError as exc:
        raise Unreachable(_broken(url, exc), fix="Is `llmgw server run` running?") from None


async def _print(answer: aiohttp.ClientResponse) -> str:
    said = []
    async for line in answer.content:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            click.echo()
            raise LlmgwError(str(event["error"].get("message", "the answer broke off")))
        for choice in event.get("choices", ()):
            if piece := choice.get("delta", {}).get("content"):
                said.append(piece)
                click.echo(piece, nl=False)
    click.echo()
    return "".join(said)


def _broken(url: str, exc: aiohttp.ClientError) -> str:
    if isinstance(exc, aiohttp.ClientPayloadError):
        return "The answer broke off: the endpoint closed the connection."
    why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return f"{url} does not answer: {why}."


def _error(status: int, text: str) -> LlmgwError:
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:300]
    kind = {400: UsageError, 401: Refused, 403: Refused, 404: NotFound, 503: Unreachable}.get(status, LlmgwError)
    fix = "Set LLMGW_API_KEY; `llmgw key create NAME` makes one." if status == 401 else ""
    return kind(message, fix=fix)
