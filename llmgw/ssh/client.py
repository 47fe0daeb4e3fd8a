"""Watches one connection: the key it shows, what its login asks a person, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import asyncssh

from llmgw.ssh import failures
from llmgw.ssh.identity import Prompt, public_text

PROMPTS = 3
"""Times that a person is asked for a password or code of one login, as OpenSSH does."""


class Client(asyncssh.SSHClient):
    """Asked by asyncssh as the connection goes on."""

    def __init__(
        self,
        pinned: str | None,
        *,
        authorities: Collection[str] = (),
        prompt: Prompt | None = None,
        who: str = "",
    ) -> None:
        self._pinned = pinned
        self._authorities = authorities
        self._prompt = prompt
        self._who = who
        self._asked = 0
        self._asked_before: int | None = None
        self._nothing_asked = False
        self.asking = False
        """A person is typing: time does not count meanwhile."""
        self.answered_at: float | None = None
        """When they last had typed, by the loop's clock."""
        self.shown: str | None = None
        self.vouched = False
        """The server showed a certificate of one of the authorities."""
        self.connected = asyncio.get_running_loop().create_future()
        self.lost = False
        self.lost_because: Exception | None = None
        self.on_lost: Callable[[], None] = lambda: None
        self.opened: list[str] = []
        """Encrypted keys whose passphrase was asked for."""
        self._connection: asyncssh.SSHClientConnection | None = None

    @property
    def server_version(self) -> str:
        """What the server called itself; empty when it did not get that far (MaxStartups closes before)."""
        return str(self._connection.get_extra_info("server_version", "")) if self._connection is not None else ""

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn
        if not self.connected.done():
            self.connected.set_result(None)

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        # Called before authentication: a wrong or unknown key ends the connection here and nothing is sent (F26).
        self.shown = public_text(key)
        return self.shown == self._pinned

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.vouched = public_text(key) in self._authorities
        return self.vouched

    @property
    def vouched_key(self) -> str | None:
        """The key in the certificate that an authority vouches for."""
        if not self.vouched or self._connection is None:
            return None
        key = self._connection.get_server_host_key()
        return public_text(key) if key is not None else None

    async def password_auth_requested(self) -> str | None:
        return await self._ask(f"{self._who}'s password: ", echo=False)

    def kbdint_auth_requested(self) -> str | None:
        if self._prompt is None:
            return super().kbdint_auth_requested()  # type: ignore[return-value]  # asyncssh gives a password it has
        # A server may offer it and have nothing to ask: each try counts against its MaxAuthTries.
        self._nothing_asked = self._nothing_asked or self._asked == self._asked_before
        self._asked_before = self._asked
        return "" if not self._nothing_asked and self._asked < PROMPTS else None

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        answers = []
        for question, echo in prompts:
            answer = await self._ask(f"{self._who}: {failures.clean(question)} ", echo=echo)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    async def _ask(self, question: str, *, echo: bool) -> str | None:
        if self._prompt is None or self._asked >= PROMPTS:
            return None
        again = "" if self._asked == 0 or echo else "Wrong; once more. "
        self._asked += 1
        return await self.asked(self._prompt(f"{again}{question}", echo))

    async def asked(self, answer: Awaitable[str | None]) -> str | None:
        """Waits for what a person types; the clocks stand still meanwhile."""
        self.asking = True
        try:
            return await answer
        finally:
            self.asking = False
            self.answered_at = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.lost_because = exc
        self.on_lost()
