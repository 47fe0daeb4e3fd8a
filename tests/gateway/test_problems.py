"""No answer repeats without bound what somebody else wrote, and what was cut can be seen."""

from __future__ import annotations

import pytest

from llmgw.gateway import problems
from llmgw.gateway.problems import Problem, brief
from llmgw.protocol.openai import BadBody

BIG = "x" * (1 << 20)


@pytest.mark.parametrize(
    "problem",
    [
        problems.bad_body(BadBody(BIG)),
        problems.no_such_path(BIG, BIG),
        problems.no_such_path("GET", f"/v1/models/{BIG}"),
        problems.wrong_method(BIG, BIG, "GET"),
        problems.wrong_task(BIG, "chat", BIG),
        problems.unknown_model(BIG, ("m",)),
        problems.unknown_model("m" * 199, ("m" * 200,) * 3),
        problems.not_allowed(BIG, BIG),
        problems.queue_full(BIG, 3),
        problems.unavailable(BIG, BIG, coming=True),
        problems.unavailable(BIG, BIG, coming=False),
        problems.upstream_failed(BIG, BIG),
        problems.first_byte_late(BIG, 3.0),
    ],
    ids=lambda problem: problem.code,
)
def test_every_echo_is_bounded(problem: Problem) -> None:
    assert len(problem.body()) < 2000
    assert problem.status >= 400


def test_that_something_was_cut_can_be_seen() -> None:
    assert brief("x" * 200) == "x" * 200
    assert brief("x" * 201) == "x" * 199 + "…"
    assert f"`{'x' * 199}…`" in problems.unknown_model(BIG, ()).message
