"""Every way the gateway itself says no: status, OpenAI's words for it, and a sentence with a next step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from llmgw.model.catalog import Task
from llmgw.protocol.openai import INFERENCE, MODELS, BadBody, error_body

INVALID, AUTH, PERMISSION = "invalid_request_error", "authentication_error", "permission_error"
RATE, SERVER = "rate_limit_error", "server_error"

RETRY_SOON, RETRY_LATER = 1, 5
KNOWN = (*sorted(INFERENCE), MODELS)

_NUMBERS = re.compile(r"\[(?:Errno -?\d+|SSL[^\]]*)\] ?| ?\(_ssl\.c:\d+\)")


LONGEST_ECHO, LONGEST_REASON = 200, 1000
"""Characters of what a client sent, and of what a node or an engine said, that an answer repeats."""


def brief(text: str, longest: int = LONGEST_ECHO) -> str:
    """What somebody else wrote, as far as it is repeated; that it was cut can be seen."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def words(exc: Exception) -> str:
    """What an exception says, without the numbers that only programmers look up."""
    return _NUMBERS.sub("", str(exc))


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    kind: str
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None

    def body(self) -> bytes:
        return error_body(self.message, self.kind, self.code, self.param)

    def headers(self, request_id: bytes) -> bytes:
        lines = b"content-type: application/json\r\nx-request-id: %b\r\n" % request_id
        if self.retry_after is not None:
            lines += b"retry-after: %d\r\n" % self.retry_after
        if self.status == 401:
            lines += b"www-authenticate: Bearer\r\n"
        return lines


BAD_HTTP = Problem(400, INVALID, "bad_http", "This is not a valid HTTP/1.1 request.")
HEAD_TOO_LARGE = Problem(431, INVALID, "head_too_large", "The request's headers are too large or too many.")
TOO_MANY = Problem(503, SERVER, "too_many_connections", "Too many open connections. Try again.", None, RETRY_SOON)
BUSY = Problem(503, SERVER, "busy", "Too many large requests are being read. Try again.", None, RETRY_SOON)
INTERNAL = Problem(500, SERVER, "internal", "The gateway failed; its log has the request id.")
CLOSING = Problem(503, SERVER, "shutting_down", "The gateway is shutting down. Try again.", None, RETRY_LATER)
NO_KEY = Problem(401, AUTH, "missing_api_key", "No API key was given. Send it as `Authorization: Bearer sk-…`.")
BAD_KEY = Problem(401, AUTH, "invalid_api_key", "The API key is not known here, or was revoked. Ask for a new one.")


def bad_body(exc: BadBody) -> Problem:
    return Problem(400, INVALID, "invalid_body", brief(exc.message, LONGEST_REASON), exc.param)


def too_large(limit: int) -> Problem:
    return Problem(413, INVALID, "body_too_large", f"The request body is larger than {limit} bytes, the limit here.")


def too_slow(seconds: float) -> Problem:
    return Problem(408, INVALID, "body_too_slow", f"The request body did not arrive within {seconds:g} s. Try again.")


def no_such_path(method: str, path: str) -> Problem:
    """Most come of a base URL without its /v1, or with two of them."""
    wanted = "/v1/" + path[:200].removeprefix("/v1").removeprefix("/v1").strip("/")
    near = wanted if wanted.startswith(f"{MODELS}/") else next(iter(get_close_matches(wanted, KNOWN, 1, 0.9)), None)
    hint = f". Did you mean {near}?" if near else "; GET /v1/models lists the models."
    return Problem(404, INVALID, "unknown_path", f"There is no {brief(method)} {brief(path)} here{hint}")


def wrong_method(method: str, path: str, allowed: str) -> Problem:
    message = f"The path {brief(path)} takes {allowed}, not {brief(method)}."
    return Problem(405, INVALID, "wrong_method", message)


def wrong_task(model: str, task: Task, path: str) -> Problem:
    what = f"{'an' if task[0] in 'aeiou' else 'a'} {task} model (task: {task})"
    message = f"`{brief(model)}` is {what}; it does not do {brief(path)}. GET /v1/models tells each model's task."
    return Problem(400, INVALID, "wrong_task", message, "model")


def unknown_model(model: str, names: Iterable[str]) -> Problem:
    near = get_close_matches(brief(model), list(names), n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else " GET /v1/models lists them."
    message = f"The model `{brief(model)}` does not exist here.{hint}"
    return Problem(404, INVALID, "model_not_found", message, "model")


def not_allowed(key: str, model: str) -> Problem:
    message = f"The key `{brief(key)}` may not use the model `{brief(model)}`. GET /v1/models lists those it may use."
    return Problem(403, PERMISSION, "model_not_allowed", message, "model")


def queue_full(model: str, waiting: int) -> Problem:
    message = f"{waiting} requests wait for the model `{brief(model)}` already. Try again in a moment."
    return Problem(429, RATE, "queue_full", message, None, RETRY_LATER)


def unavailable(model: str, reason: str, *, coming: bool) -> Problem:
    """No replica can answer. `reason` is the route's own.

    Clients' libraries try again whatever we say, and the header makes them do it slowly; people are told to only when
    it may help.
    """
    reason = brief(reason, LONGEST_REASON).rstrip(". ")
    message = f"The model `{brief(model)}` has no replica that can answer" + (f": {reason}." if reason else ".")
    if coming:
        return Problem(503, SERVER, "loading", f"{message} Try again in a moment.", None, RETRY_LATER)
    return Problem(503, SERVER, "unavailable", message, None, RETRY_LATER)


def upstream_failed(model: str, why: str) -> Problem:
    message = f"The engine that runs `{brief(model)}` {brief(why, LONGEST_REASON)}. Try again."
    return Problem(502, SERVER, "upstream_failed", message)


def first_byte_late(model: str, seconds: float) -> Problem:
    message = f"The engine that runs `{brief(model)}` did not begin to answer within {seconds:g} s."
    return Problem(504, SERVER, "first_byte_late", message)
