"""Models, health, metrics and the hello at `/`."""

from __future__ import annotations

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmgw.gateway.pages import render_metrics
from llmgw.model.catalog import Task
from llmgw.model.route import Route, RouteTable

from .conftest import table
from .engines import plain, upstream
from .raw import ask


def two_models() -> RouteTable:
    chat = Route(model="chat", aliases=("Org/Chat-1.5B", "c"), upstreams=(upstream(1, "r1"),), context_length=2048,
                 max_output=512, created=1_700_000_000)  # fmt: skip
    embed = Route(model="embed", task=Task.EMBED, reason="loading")
    return RouteTable({"chat": chat, "Org/Chat-1.5B": chat, "c": chat, "embed": embed})


async def test_models(house) -> None:
    home = await house(table=two_models())
    async with openai.AsyncOpenAI(base_url=home.url, api_key="sk-test", max_retries=0) as api:
        chat, embed = (await api.models.list()).data
        assert (chat.id, chat.object, chat.created, chat.owned_by) == ("chat", "model", 1_700_000_000, "llmgw")
        assert chat.model_extra == {
            "task": "chat", "aliases": ["Org/Chat-1.5B", "c"], "ready": True, "context_length": 2048, "max_output": 512,
        }  # fmt: skip
        assert (embed.id, embed.model_extra["ready"]) == ("embed", False)
        for name in ("chat", "c", "Org/Chat-1.5B"):
            assert (await api.models.retrieve(name)).id == "chat"
        with pytest.raises(openai.NotFoundError, match="Did you mean `chat`"):
            await api.models.retrieve("chatt")


@pytest.mark.parametrize(
    ("routes", "status"),
    [
        (RouteTable(), "ok"),
        (table(upstream(1, "r1")), "ok"),
        (table(hold=True), "degraded"),
        (two_models(), "degraded"),
        (table(adopting=True), "starting"),
    ],
)
async def test_health_is_open(house, routes: RouteTable, status: str) -> None:
    home = await house(table=routes)
    raw = await home.raw(key=None)
    answer = await raw.ask(path="/health", method="GET")
    assert (answer.status, answer.json()["status"], answer.json()["version"]) == (200, status, "1.2.3")
    names = {name for name in routes.routes if len(name) > 1}
    assert not any(name in str(answer.json()["models"]) for name in names), "it counts and names nothing"


async def test_hello(house) -> None:
    raw = await (await house()).raw(key=None)
    answer = await raw.ask(path="/", method="GET")
    assert answer.status == 200
    assert b"/v1/chat/completions" in answer.body
    assert answer.headers["x-request-id"]
    assert "server" not in answer.headers


async def test_head_requests_have_no_body(house) -> None:
    home = await house()
    raw = await home.raw()
    raw.send(path="/health", method="HEAD")
    assert (await raw.answer_head()).status == 200
    assert (await raw.ask(path="/", method="GET")).whole


async def test_metrics(house, fake) -> None:
    engine = await fake(plain({"usage": {"prompt_tokens": 7, "completion_tokens": 5}}))
    home = await house(engine.upstream)
    for model in ("m", "m", "nope"):
        await home.ask(ask(model))
    raw = await home.raw(key=None)
    await raw.ask(ask())
    text = (await raw.ask(path="/metrics", method="GET")).body.decode()
    assert text == render_metrics(home.gateway)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["llmgw_requests_total", "m", "200"] == 2
    assert found["llmgw_requests_total", "", "404"] == 1
    assert found["llmgw_requests_total", "", "401"] == 1
    assert found["llmgw_tokens_total", "m", "prompt"] == 14
    assert found["llmgw_tokens_total", "m", "completion"] == 10
    assert found["llmgw_first_byte_seconds_count", "m"] == 2
    assert found["llmgw_first_byte_seconds_bucket", "m", "+Inf"] == 2
    assert found["llmgw_replicas_ready", "m"] == 1
    assert found["llmgw_open_requests",] == 0
    assert found["llmgw_idle_upstream_connections",] == 1


async def test_metrics_cannot_be_made_to_grow_by_clients(house) -> None:
    home = await house()
    for number in range(20):
        await home.ask(ask(f"model-{number}"))
    assert home.gateway.metrics.answers == {("", 404): 20}


async def test_metrics_through_a_proxy_need_a_key(house) -> None:
    home = await house()
    for secret, status in ((None, 401), ("sk-test", 200)):
        raw = await home.raw(key=secret)
        answer = await raw.ask(path="/metrics", method="GET", x_forwarded_for="203.0.113.9")
        assert answer.status == status


async def test_a_body_nobody_asked_for_is_read_away(house) -> None:
    home = await house()
    raw = await home.raw()
    for _ in range(3):
        assert (await raw.ask(b"x" * 300_000, "/nope")).status == 404
