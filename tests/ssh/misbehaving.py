"""A node whose server is malicious or broken: the embedded server with its manners taken off."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import asyncssh

from llmgw.ssh.embedded import EmbeddedServer, Server

Behaviour = Callable[["Speaker"], Awaitable[None]]


def framed(token: str, body: Any, *, digest: str | None = None, length: int | None = None) -> bytes:
    """A frame, or nearly one."""
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    shown = digest if digest is not None else hashlib.sha256(text).hexdigest()[:32]
    return b"\n#%s %d %s\n%s\n" % (token.encode(), len(text) if length is None else length, shown.encode(), text)


class Speaker(asyncssh.SSHServerSession[bytes]):
    """Reads the request as the bootstrap does, learns the token, and then does what it is told to."""

    def __init__(self, behave: Behaviour, *, answer_exec: bool | None = True) -> None:
        self._behave = behave
        self._answer_exec = answer_exec
        self._read = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.token = ""
        self.args: dict[str, Any] = {}

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self.channel = chan
        chan.set_encoding(None)

    def exec_requested(self, command: str) -> bool:
        return self._answer_exec  # type: ignore[return-value]  # None: asyncssh then never answers

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._read += data
        blocks, rest = [], bytes(self._read)
        while len(rest) >= 8 and len(blocks) < 4:
            size = int(rest[:8])
            blocks.append(rest[8 : 8 + size])
            rest = rest[8 + size :]
        if len(blocks) == 4 and len(blocks[3]) and self._task is None:
            try:
                self.args = json.loads(blocks[3])
            except ValueError:
                return
            self.token = self.args["_token"]
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._behave(self)
        except OSError:
            return  # the client has closed

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    async def write(self, data: bytes) -> None:
        self.channel.write(data)
        await self._writable.wait()

    async def frame(self, body: Any, **wrong: Any) -> None:
        await self.write(framed(self.token, body, **wrong))

    def end(self, status: int = 0) -> None:
        self.channel.exit(status)


class Misbehaving(EmbeddedServer):
    """`behave` is what each command does; `before_session` may return False or hang; `connection` is the last one."""

    behave: Behaviour
    answer_exec: bool | None = True
    connection: asyncssh.SSHServerConnection

    async def before_session(self) -> bool:
        return True

    def serve(self) -> asyncssh.SSHServer:
        return _Server(self, self._authorized, self._connections)


class _Server(Server):
    def __init__(self, owner: Misbehaving, *args: Any) -> None:
        super().__init__(*args)
        self._owner = owner

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        super().connection_made(conn)
        self._owner.connection = conn

    def session_requested(self) -> Any:
        return self._session()

    async def _session(self) -> Speaker:
        if not await self._owner.before_session():
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        return Speaker(self._owner.behave, answer_exec=self._owner.answer_exec)
