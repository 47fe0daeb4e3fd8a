"""What root's word mends on a node, done: by the account itself where it is root, by its sudo elsewhere.

The password is asked for once, lives in a `Mender` for as long as one command does, and is sent in the arguments of one
script (masked in the audit); nothing stores it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from llmgw.core.remedies import Remedy
from llmgw.errors import NodeError, Refused
from llmgw.model.base import Report
from llmgw.model.secret import Secret
from llmgw.nodes.remote import OnEvent, Runner, typed

PASSWORD_NEEDED, PASSWORD_WRONG = "sudo_password_needed", "sudo_password_wrong"
TRIES = 3
"""How often a password is asked for. More would lock accounts (faillock)."""
TO_SAY_SO = 45.0
"""Seconds beyond a remedy's own that the script has, to end what is late and to tell."""

AskPassword = Callable[[Remedy, str], Awaitable[Secret | None]]
"""Asked for the password of sudo: for what, and the sentence that says why (whose it is, whether one was wrong).
None: nobody answers."""


class Mended(Report):
    """A remedy that was taken. Whether it helped is for another look to say."""

    remedy: str
    by: str
    """`root` or `sudo`."""
    command: str
    """What ran, as a person would type it."""
    said: str = ""
    """Its last line."""
    seconds: float = 0.0


async def mend(
    runner: Runner, remedy: Remedy, *, password: Secret | None = None, on_event: OnEvent | None = None
) -> Mended:
    """Takes one remedy. Events: `{state: "running" | "waiting", detail}`, the last line of what runs.

    Raises Refused with the codes `sudo_missing`, `sudo_refused`, `sudo_password_needed` and `sudo_password_wrong`;
    NodeError with `remedy_failed` (data: `output`), `too_slow`, `package_lock`, `tool_missing`, `no_package`; and what
    `run_script` raises. Every fix holds the command for the operator to run. After LinkLost and TimedOut it is open
    whether it was taken: look again.
    """
    args = {"remedy": remedy.name, **remedy.args, "seconds": remedy.seconds, "password": password}
    try:
        reply = await runner.run_script("privileged", args, deadline=remedy.seconds + TO_SAY_SO, on_event=on_event)
    except NodeError as exc:
        if exc.code.startswith("sudo_"):
            raise Refused(exc.message, fix=exc.fix, code=exc.code, **exc.data) from None
        raise
    return typed(Mended, reply, "the node")


class Mender:
    """Takes remedies one after another, and keeps the password between them. Made for one command, then dropped."""

    def __init__(self, runner: Runner, ask: AskPassword | None = None, *, on_event: OnEvent | None = None) -> None:
        """`ask` is None where nobody can be asked: then only what needs no password is done."""
        self._runner = runner
        self._ask = ask
        self._on_event = on_event
        self._password: Secret | None = None

    async def mend(self, remedy: Remedy) -> Mended:
        """As the function; a password that is wanted is asked for, at most three times."""
        tries = 0
        while True:
            try:
                return await mend(self._runner, remedy, password=self._password, on_event=self._on_event)
            except Refused as exc:
                if exc.code not in (PASSWORD_NEEDED, PASSWORD_WRONG):
                    raise
                self._password = None
                if self._ask is None or tries == TRIES:
                    raise
                tries += 1
                self._password = await self._ask(remedy, exc.message)
                if self._password is None:
                    raise
