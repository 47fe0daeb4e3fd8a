"""A model is asked only for what its engine was started for; the rest is said in our words and reaches no engine."""

from __future__ import annotations

import pytest

from llmgw.model.catalog import Task

from .conftest import table
from .engines import plain
from .raw import CHAT, ask

TEXT, EMBED = "/v1/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("task", "path", "kind"),
    [
        (Task.CHAT, EMBED, "a chat model (task: chat)"),
        (Task.COMPLETION, EMBED, "a completion model (task: completion)"),
        (Task.EMBED, CHAT, "an embed model (task: embed)"),
        (Task.EMBED, TEXT, "an embed model (task: embed)"),
    ],
)
async def test_the_wrong_one(house, fake, task: Task, path: str, kind: str) -> None:
    engine = await fake(plain({}))
    home = await house(table=table(engine.upstream, task=task, aliases=("alias",)))
    answer = await home.ask(ask("alias"), path)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "wrong_task", "model")
    assert answer.error["message"].startswith(f"`alias` is {kind}; it does not do {path}.")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("task", "path"), [(Task.CHAT, CHAT), (Task.CHAT, TEXT), (Task.COMPLETION, TEXT), (Task.EMBED, EMBED)]
)
async def test_the_right_one(house, fake, task: Task, path: str) -> None:
    home = await house(table=table((await fake(plain({}))).upstream, task=task))
    assert (await home.ask(ask(), path)).status == 200
