"""What root's word mends on a node, done: by the account itself where it is root, by its sudo elsewhere.

The password is asked for once, lives in a `Mender` for as long as one command does, and is sent in the arguments of one
script (masked in the audit); nothing stores it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from llmgw.core.remedies import Remedy, remedies
from llmgw.errors import LinkLost, LlmgwError, NodeError, Refused
from llmgw.model.secret import Secret
from llmgw.nodes.examine import Examined
from llmgw.nodes.operator import Operator, Say
from llmgw.nodes.remote import OnEvent, Runner
from llmgw.nodes.replies import Mended, typed

PASSWORD_NEEDED, PASSWORD_WRONG = "sudo_password_needed", "sudo_password_wrong"
TRIES = 3
"""How often a password is asked for. More would lock accounts (faillock)."""
TO_SAY_SO = 45.0
"""Seconds beyond a remedy's own that the script has, to end what is late and to tell."""


AskPassword = Callable[[Remedy, str], Awaitable[Secret | None]]
"""Asked for the password of sudo: for what, and the sentence that says why (whose it is, whether one was wrong).
None: nobody answers."""


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


async def take_remedies(runner: Runner, found: Examined, operator: Operator, say: Say, *, unasked: bool) -> bool:
    """Takes those remedies for what was found that are wanted; whether any was tried.

    One that fails ends nothing: a second look judges. Raises LinkLost.
    """
    news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def tell() -> None:
        while True:
            event = await news.get()
            await say("mend", str(event.get("detail") or event.get("state")))

    mender = Mender(runner, operator.password, on_event=news.put_nowait)
    telling, tried = asyncio.create_task(tell()), False
    try:
        for remedy in remedies(found.problems, found.probe, found.preflight):
            wanted = remedy.consent == "given" or unasked
            if not wanted and (remedy.consent != "asked" or not await operator.mend(remedy)):
                continue
            tried = True
            await say("mend", f"to {remedy.does}: {remedy.command}")
            try:
                done = await mender.mend(remedy)
            except LinkLost:
                raise
            except LlmgwError as exc:
                await say("mend", f"{exc.message} {exc.fix}".rstrip())
            else:
                await say("mend", f"{done.command}: {done.said}")
    finally:
        telling.cancel()
    return tried
