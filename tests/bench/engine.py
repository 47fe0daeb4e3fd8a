"""An engine that costs next to nothing, so that what is measured is the proxy in front of it.

`python -m tests.bench.engine` prints its port. A plain answer is a JSON body of 500 bytes; a stream sends `max_tokens`
events of the size real engines send, `rate` a second, each stream at its own phase.
"""

from __future__ import annotations

import asyncio
import json
import sys

import httptools
import uvloop

USAGE = {"prompt_tokens": 12, "completion_tokens": 40, "total_tokens": 52}


def _answer() -> bytes:
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "bench", "choices": [], "usage": USAGE}
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
    body["choices"] = [choice]
    choice["message"]["content"] = "w" * (500 - len(json.dumps(body)))  # type: ignore[index]
    return json.dumps(body).encode()


def _event() -> bytes:
    delta = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
    body = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
    return b"data: " + json.dumps({**body, "choices": [delta]}).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _json(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


ANSWER = _json(_answer())
MODELS = _json(b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}')
HEALTH = _json(b'{"status":"ok"}')
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = _chunk(_event())
END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Server(asyncio.Protocol):
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if self.url.startswith(b"/v1/models"):
            self.transport.write(MODELS)
        elif not self.url.startswith(b"/v1/"):
            self.transport.write(HEALTH)
        elif b'"stream":true' not in body and b'"stream": true' not in body:
            self.transport.write(ANSWER)
        else:
            asked = json.loads(body)
            self.transport.write(STREAM_HEAD)
            self.left, self.gap = asked["max_tokens"], 1.0 / asked.get("rate", 50)
            self.due = self.loop.time()
            self.tick()

    def tick(self) -> None:
        if self.left == 0:
            self.transport.write(END)
            return
        self.left -= 1
        self.transport.write(TOKEN)
        self.due += self.gap
        self.timer = self.loop.call_at(self.due, self.tick)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
