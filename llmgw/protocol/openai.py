"""OpenAI's HTTP API as far as a gateway must understand it: who is asked, what was used, what an error looks like.

A request is decoded once, and only what routing needs; its bytes go on as they came, but for what `count_stream` adds.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MODELS = "/v1/models"
INFERENCE = frozenset({CHAT, COMPLETIONS, EMBEDDINGS})


class Ask(msgspec.Struct, frozen=True):
    """The part of a request body that decides where it goes. Everything else is the engine's to judge."""

    model: str
    stream: bool | None = None
    stream_options: msgspec.Raw = msgspec.Raw()
    """As it stands in the body; empty where the client says nothing of it."""

    @property
    def uncounted(self) -> bool:
        """Whether a stream is asked for whose tokens an engine would not tell."""
        return self.stream is True and not bytes(self.stream_options)


class BadBody(Exception):
    """A request body that no engine need see. `param` is the field to blame, where one is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


_ask = msgspec.json.Decoder(Ask)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BLAMED = re.compile(r"\$\.(\w+)|required field `(\w+)`")


def read_ask(body: bytes) -> Ask:
    """What the body asks for. Raises BadBody with a sentence for the client."""
    if not body:
        raise BadBody("The request has no body; send a JSON object.")
    try:
        ask = _ask.decode(body)
        # Strings that are skipped are not checked above; an engine must not be handed bytes that are no text (F61).
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError as exc:
        match = _BLAMED.search(str(exc))
        param = (match[1] or match[2]) if match else None
        raise BadBody(f"The request body is not what it should be: {exc}.", param) from None
    except UnicodeDecodeError as exc:
        raise BadBody(f"The request body is not UTF-8: byte {exc.start} cannot be decoded.") from None
    except msgspec.DecodeError as exc:
        raise BadBody(f"The request body is not JSON: {exc}.") from None
    except RecursionError:
        raise BadBody("The request body is nested too deeply.") from None
    if not ask.model:
        raise BadBody("The request names no model.", "model")
    return ask


def rename(body: bytes, model: str) -> bytes:
    """The same request for the name the engine knows the model by; every other value keeps its bytes."""
    fields = _fields.decode(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def count_stream(body: bytes) -> bytes:
    """The same request with the engine's count as the last event. `body` is an object that was read, and not empty."""
    return body[: body.rindex(b"}")] + b',"stream_options":{"include_usage":true}}'


_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,12})')
_COMPLETION = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,12})')


def read_usage(tail: bytes) -> tuple[int, int] | None:
    """(prompt, completion) tokens as the engine counted them, from the last bytes of its answer, or None.

    A look at the bytes, not a parse. Generated text cannot forge it: inside a string its quotes are escaped.
    """
    at = tail.rfind(b'"usage"')
    while at >= 0:
        match = _USAGE.match(tail, at)
        if match is not None:
            prompt = _PROMPT.search(tail, match.end())
            if prompt is None:
                return None
            completion = _COMPLETION.search(tail, match.end())
            return int(prompt[1]), int(completion[1]) if completion else 0
        at = tail.rfind(b'"usage"', 0, at)
    return None


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: dict[str, msgspec.Raw]


_chunk = msgspec.json.Decoder(_Chunk)


def is_usage_alone(data: bytes) -> bool:
    """Whether an event of a stream tells the usage and nothing that was generated: what `count_stream` asks for."""
    try:
        return not _chunk.decode(data).choices
    except (msgspec.DecodeError, RecursionError):
        return False


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`: what OpenAI's own clients know how to show."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def is_json(body: bytes) -> bool:
    """Whether an engine's error body may be shown to a client as it is."""
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def model_entry(name: str, created: int, **more: Any) -> dict[str, Any]:
    """One model in the answer of /v1/models; `more` are fields OpenAI does not know and its clients ignore."""
    return {"id": name, "object": "model", "created": created, "owned_by": "llmgw", **more}
