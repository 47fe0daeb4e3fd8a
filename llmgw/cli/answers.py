"""What a first contact asks: answered by what was said on the command line, or by the person in front of it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import click

from llmgw.admin.text import clean
from llmgw.cli import ask
from llmgw.cli.board import Board
from llmgw.config.settings import Settings
from llmgw.core.fabric import Group
from llmgw.core.remedies import Remedy
from llmgw.errors import Refused
from llmgw.model.base import NAME_RULE, is_name
from llmgw.model.node import Problem
from llmgw.model.secret import Secret
from llmgw.protocol.randomart import randomart


class Answers:
    """Speaks for the operator of one machine; see `nodes.onboard.Operator`."""

    def __init__(self, host: str, options: dict[str, Any], settings: Settings, shown: Board) -> None:
        self._host = host
        self._options = options
        self._settings = settings
        self._shown = shown

    async def say(self, step: str, text: str, **more: Any) -> None:
        if self._options["check_only"] and "severity" in more:
            return  # they are the report
        self._shown.tell(self._host, step, text, **more)

    async def trust(self, host: str, key: str, fingerprint: str) -> bool:
        new_hosts = self._settings.ssh.new_hosts
        if self._options["accept_new"] or (not self._shown.interactive and new_hosts == "pin"):
            pinned = "" if self._options["check_only"] else " and will be pinned"
            await self.say("reach", f"host key {fingerprint} of {host} is not known yet{pinned}")
            return True
        if not self._shown.interactive:
            raise Refused(
                f"The host key of {host}, {fingerprint}, is not known and ssh.new_hosts is `refuse`.",
                fix="Add --fingerprint with the value you expect, or --accept-new.",
                code="host_key_unknown",
            )

        async def question() -> bool:
            click.echo("\n".join(_picture(key)), err=True)
            click.echo(f"{self._named(host)} shows a host key that nobody here knows:\n  {fingerprint}", err=True)
            return await ask.confirm("Trust it?")

        return await self._shown.ask(self._host, question)

    async def go_on(self, problems: Sequence[Problem]) -> bool:
        if not self._shown.interactive or self._options["check_only"]:
            return False

        async def question() -> bool:
            for problem in problems:
                click.echo(
                    f"{click.style('error', fg='red')}  {clean(problem.message)}\n       {clean(problem.fix)}", err=True
                )
            return await ask.confirm(f"Add {self._host} all the same?", default=False)

        return await self._shown.ask(self._host, question)

    async def mend(self, remedy: Remedy) -> bool:
        if not self._shown.interactive:
            return False
        asked = f"{self._host}: llmgw would {clean(remedy.does)}:\n  {clean(remedy.command)}\nDo it now?"
        return await self._shown.ask(self._host, lambda: ask.confirm(asked, default=True))

    async def password(self, remedy: Remedy, why: str) -> Secret | None:
        if not self._shown.interactive:
            return None
        typed = await self.type_in(f"{self._host}: {why}. Password", False)
        return Secret(typed) if typed else None

    async def fabrics(self, found: Sequence[Group]) -> dict[str, tuple[str, ...]]:
        if not self._shown.interactive:
            return {}

        async def question() -> dict[str, tuple[str, ...]]:
            named: dict[str, tuple[str, ...]] = {}
            for group in found:
                asked = f"{self._host}: {clean(group)}. Name of the fabric it is on (empty: none): "
                name = (await ask.line(asked) or "").strip()
                while name and not is_name(name):
                    click.echo(f"{name!r} is no name: {NAME_RULE}", err=True)
                    name = (await ask.line(asked) or "").strip()
                if name:
                    named[name] = (*named.get(name, ()), *group.adapters)
            return named

        return await self._shown.ask(self._host, question)

    async def type_in(self, question: str, echo: bool) -> str | None:
        asked = f"{self._named(question.rstrip(': '))}: "
        return await self._shown.ask(self._host, lambda: ask.line(asked, hidden=not echo))

    async def passphrase(self, path: str) -> str | None:
        return await self.type_in(f"Passphrase for {path}", False)

    def _named(self, text: str) -> str:
        """With the machine as it was typed, where that is not in the text already: several may ask."""
        return text if self._host in text else f"{self._host}: {text}"


def _picture(key: str) -> list[str]:
    kind, blob = key.split()[:2]
    names = {"ssh-ed25519": "ED25519 256", "ssh-rsa": "RSA"}
    return randomart(base64.b64decode(blob), names.get(kind, kind.rpartition("-")[2].upper()))
