"""A bare HTTP/1.1 client that shows what really came over the wire, proper endings included."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    whole: bool = False
    """Whether the body ended as HTTP says it must."""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json()["error"]


def ask(model: str = "m", **more: Any) -> bytes:
    """A chat request's body."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "one two three"}], **more}).encode()


@dataclass
class Raw:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def open(cls, port: int, *, key: str | None = "sk-test", buffer: int = 0) -> Raw:
        """`buffer` bytes are what the kernel takes in for a client that does not read; 0 leaves that to the kernel."""
        sock = socket.socket()
        sock.setblocking(False)
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
        return cls(reader, writer, {"authorization": f"Bearer {key}"} if key is not None else {})

    def head(self, method: str, path: str, length: int | None, **headers: str) -> bytes:
        lines = {"host": "test", **self.headers, **{name.replace("_", "-"): text for name, text in headers.items()}}
        if length is not None:
            lines["content-length"] = str(length)
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1")

    def send(self, body: bytes = b"", path: str = CHAT, method: str = "POST", **headers: str) -> None:
        if method == "POST":
            self.writer.write(self.head(method, path, len(body), **headers) + body)
        else:
            self.writer.write(self.head(method, path, None, **headers))

    async def answer_head(self) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), f"a header came twice: {lines}"
        return Answer(int(first.split()[1]), headers)

    async def answer(self, within: float = 15.0) -> Answer:
        async with asyncio.timeout(within):  # a test that fails shall not hang
            return await self._answer()

    async def _answer(self) -> Answer:
        answer = await self.answer_head()
        if answer.headers.get("transfer-encoding") == "chunked":
            answer.body = b"".join([piece async for piece in self.chunks()])
            answer.whole = self.ended
        elif "content-length" in answer.headers:
            length = int(answer.headers["content-length"])
            try:
                answer.body = await self.reader.readexactly(length)
                answer.whole = True
            except asyncio.IncompleteReadError as exc:
                answer.body = exc.partial
        else:
            answer.body = await self.reader.read()
        return answer

    async def chunks(self) -> Any:
        """The pieces of a chunked body as they come; `ended` says whether the last one came too."""
        self.ended = False
        while True:
            try:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                piece = (await self.reader.readexactly(size + 2))[:-2]
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if not size:
                self.ended = True
                return
            yield piece

    async def ask(self, body: bytes = b"", path: str = CHAT, method: str = "POST", **h: str) -> Answer:
        self.send(body, path, method, **h)
        return await self.answer()

    async def closed(self, within: float = 2.0) -> bool:
        """Whether the server closes the connection; what it still sends is thrown away."""
        try:
            async with asyncio.timeout(within):
                while await self.reader.read(1 << 16):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
