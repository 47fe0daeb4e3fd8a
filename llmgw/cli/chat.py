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
from yarl import URL

from llmgw.admin.client import LONGEST_LINE, lines, secret_word, utf8
from llmgw.admin.text import harmless
from llmgw.cli import session
from llmgw.cli.output import show_json
from llmgw.errors import BadReply, LlmgwError, NotFound, Refused, Unreachable, UsageError
from llmgw.model.requests import Whoami


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--url", help="The endpoint.  [that of the running control plane]")
@click.option("--max-tokens", type=int, help="At most so many tokens an answer.")
@click.option("--temperature", type=float, help="How much is left to chance; 0: the likeliest answer.  [the engine's]")
@click.option("--json", "as_json", is_flag=True, help="The whole answer as one JSON object.")
def chat(model: str, prompt: str | None, **options: Any) -> None:
    """Ask MODEL one PROMPT, or talk with it until Ctrl-D. The API key is taken from LLMGW_API_KEY."""
    session.run(_chat(model, prompt, options))


async def _chat(model: str, prompt: str | None, options: dict[str, Any]) -> None:
    url = _checked(options["url"]) if options["url"] else await _endpoint()
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


def _checked(url: str) -> str:
    try:
        if URL(utf8(url)).scheme in ("http", "https"):
            return url
        why = f"it begins with http:// or https://, as http://{url} does"
    except ValueError as exc:
        why = str(exc)
    raise UsageError(f"--url {url!r}: {why}.")


async def _ask(url: str, model: str, messages: list[dict[str, str]], options: dict[str, Any]) -> str:
    """One answer, printed as it comes. Raises the error the endpoint answered with."""
    stream = not options["as_json"]
    utf8(model + messages[-1]["content"])
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": stream}
    for name in ("max_tokens", "temperature"):
        if options[name] is not None:
            body[name] = options[name]
    headers = {}
    if key := os.environ.get("LLMGW_API_KEY"):
        headers["authorization"] = f"Bearer {secret_word('LLMGW_API_KEY', key)}"
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, read_bufsize=LONGEST_LINE) as http,
            http.post(f"{url.rstrip('/')}/chat/completions", json=body, headers=headers) as answer,
        ):
            if answer.status != 200:
                raise _error(answer.status, await answer.read())
            return await _print(answer) if stream else _show(await answer.read())
    except aiohttp.ClientError as exc:
        raise Unreachable(_broken(url, exc), fix="Is `llmgw server run` running?") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadReply(f"{url} answers, but not as an endpoint for chats does.", fix="Does --url end in /v1?") from None


def _show(reply: bytes) -> str:
    found = json.loads(reply)
    answer = str(found["choices"][0]["message"]["content"])
    show_json(found)
    return answer


async def _print(answer: aiohttp.ClientResponse) -> str:
    """Raises ValueError and its like for what is no stream of an answer."""
    said, heard = [], False
    async for line in lines(answer):
        if not line.startswith(b"data: "):
            continue
        heard = True
        if line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            click.echo()
            raise LlmgwError(str(event["error"].get("message", "the answer broke off")))
        for choice in event.get("choices", ()):
            if piece := (choice.get("delta") or {}).get("content"):
                said.append(piece)
                click.echo(harmless(piece), nl=False)
    if not heard:
        raise ValueError("no event at all")
    click.echo()
    return "".join(said)


def _broken(url: str, exc: aiohttp.ClientError) -> str:
    if isinstance(exc, aiohttp.ClientPayloadError):
        return "The answer broke off: the endpoint closed the connection."
    why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return f"{url} does not answer: {why}."


def _error(status: int, reply: bytes) -> LlmgwError:
    try:
        message = str(json.loads(reply)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"The endpoint answered {status}: {reply[:300].decode(errors='replace')}"
    kind = {400: UsageError, 401: Refused, 403: Refused, 404: NotFound, 503: Unreachable}.get(status, LlmgwError)
    fix = "Set LLMGW_API_KEY; `llmgw key create NAME` makes one." if status == 401 else ""
    return kind(message, fix=fix)
