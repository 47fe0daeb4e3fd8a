"""What a request whose body is complete asks for: a model that is served, that the key may use, at the right path."""

from __future__ import annotations

from llmgw.gateway import problems
from llmgw.gateway.auth import Visit
from llmgw.gateway.client import Client
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.problems import Problem
from llmgw.model.catalog import Task
from llmgw.protocol.openai import EMBEDDINGS, BadBody, count_stream, read_ask

WRITING, EMBEDDING = (Task.CHAT, Task.COMPLETION), (Task.EMBED,)
"""Tasks whose engines are started for the one and refuse the other."""


def open_exchange(gateway: Gateway, client: Client, visitor: Visit, path: str, body: bytes) -> Exchange | Problem:
    """The exchange for it, or why there is none."""
    if gateway.closing:  # since it was admitted
        return problems.CLOSING
    try:
        ask = read_ask(body)
    except BadBody as exc:
        return problems.bad_body(exc)
    route = gateway.router.route(ask.model)
    if route is None:
        return problems.unknown_model(ask.model, gateway.names(visitor.key))
    if visitor.key is not None and not visitor.key.allows(route.model):
        return problems.not_allowed(visitor.key.name, ask.model)
    embeds = path == EMBEDDINGS
    if route.task in (WRITING if embeds else EMBEDDING):
        return problems.wrong_task(ask.model, route.task, path)
    hide = ask.uncounted and not embeds
    if hide:
        body = count_stream(body)
    return Exchange(gateway, client, visitor, path, body, route=route, model=ask.model, hides_usage=hide)
