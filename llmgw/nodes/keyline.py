"""The control plane's line in a node's authorized_keys: put there, and taken away where an add does not succeed."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from llmgw.errors import LlmgwError
from llmgw.model.requests import Whoami
from llmgw.nodes.operator import Say
from llmgw.nodes.replies import KeyThere, KeyWritten, typed
from llmgw.ssh.connection import Connection

R = TypeVar("R", bound=BaseModel)


class KeyLine:
    """One add's dealings with the line. `again` logs in once more, to take it away."""

    def __init__(
        self, me: Whoami, *, root: str | None, node_id: str, again: Callable[[], Awaitable[Connection]], say: Say
    ) -> None:
        self._me = me
        self._about = {"key": me.public_key.split()[1], "root": root, "node_id": node_id}
        self._again = again
        self._say = say
        self._ours = False
        """Whether this add is what put it there, as far as is known."""

    async def leave(self, connection: Connection, undo: contextlib.AsyncExitStack) -> tuple[str, ...]:
        """Puts the line there; returns the files that were made for it. `undo` learns how to take it away."""
        there = await self._run(KeyThere, connection, "look")
        if not there.present:
            # Before the line is sent: of a call that is cut short nobody knows whether it has written.
            self._ours = True
            undo.push_async_callback(self._take_away, there.missing)
        done = await self._run(KeyWritten, connection, "add", line=self._me.key_line)
        self._ours = done.changed and not there.present
        await self._say("key", f"the control plane's key is in {done.path}{'' if done.changed else ' already'}")
        return done.created

    async def _take_away(self, made: tuple[str, ...]) -> None:
        if not self._ours:
            return
        await self._say("key", "taking the control plane's key away again, by one more login")
        try:
            connection = await self._again()
            try:
                await self._run(KeyWritten, connection, "remove", trace=list(made))
            finally:
                await connection.close()
        except LlmgwError as exc:
            mark = self._me.key_line.split()[-1]
            await self._say(
                "key",
                f"the control plane's key could not be taken away again: {exc.message} Its line in authorized_keys, if "
                f"it is there, ends in {mark}.",
            )
        else:
            await self._say("key", "the control plane's key is taken away again")

    async def _run(self, cls: type[R], connection: Connection, action: str, **args: Any) -> R:
        reply = await connection.run_script("authorize", {**self._about, "action": action, **args}, deadline=30.0)
        return typed(cls, reply, connection.name)
