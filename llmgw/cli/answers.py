"""What a first contact asks: answered by what was said on the command line, or by the person in front of it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import click

from llmgw.admin.text import clean
from llmgw.cli.board import Board
from llmgw.config.settings import Settings
from llmgw.core.fabric import Group
from llmgw.core.remedies import Remedy
from llmgw.errors import Refused
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
            await self.say("reach", f"host key {fingerprint} of {host} is not known yet and will be pinned")
            return True
        if not self._shown.interactive:
            raise Refused(
                f"The host key of {host}, {fingerprint}, is not known and ssh.new_hosts is `refuse`.",
                fix="Add --fingerprint with the value you expect, or --accept-new.",
                code="host_key_unknown",
            )

        def question() -> bool:
            click.echo("\n".join(_picture(key)), err=True)
            return click.confirm(
                f"{host} shows the host key {fingerprint}, which nobody here knows. Trust it?", err=True
            )

        return await self._shown.ask(question)

    async def go_on(self, problems: Sequence[Problem]) -> bool:
        if not self._shown.interactive or self._options["check_only"]:
            return False

        def question() -> bool:
            for problem in problems:
                click.echo(
                    f"{click.style('error', fg='red')}  {clean(problem.message)}\n       {clean(problem.fix)}", err=True
                )
            return click.confirm(f"Add {self._host} all the same?", default=False, err=True)

        return await self._shown.ask(question)

    async def mend(self, remedy: Remedy) -> bool:
        if not self._shown.interactive:
            return False
        asked = f"{self._host}: llmgw would {clean(remedy.does)}:\n  {clean(remedy.command)}\nDo it now?"
        return await self._shown.ask(lambda: click.confirm(asked, default=True, err=True))

    async def password(self, remedy: Remedy, why: str) -> Secret | None:
        if not self._shown.interactive:
            return None
        typed = await self.type_in(f"{self._host}: {why}. Password", False)
        return Secret(typed) if typed else None

    async def fabrics(self, found: Sequence[Group]) -> dict[str, tuple[str, ...]]:
        if not self._shown.interactive:
            return {}

        def question() -> dict[str, tuple[str, ...]]:
            named: dict[str, tuple[str, ...]] = {}
            for group in found:
                name = click.prompt(
                    f"{self._host}: {clean(group)}. Name of the fabric it is on (empty: none)",
                    default="",
                    show_default=False,
                    err=True,
                ).strip()
                if name:
                    named[name] = (*named.get(name, ()), *group.adapters)
            return named

        return await self._shown.ask(question)

    async def type_in(self, question: str, echo: bool) -> str | None:
        def ask() -> str | None:
            try:
                return str(
                    click.prompt(question.rstrip(": "), hide_input=not echo, default="", show_default=False, err=True)
                )
            except click.Abort:
                return None

        return await self._shown.ask(ask)

    async def passphrase(self, path: str) -> str | None:
        return await self.type_in(f"Passphrase for {path}", False)


def _picture(key: str) -> list[str]:
    kind, blob = key.split()[:2]
    names = {"ssh-ed25519": "ED25519 256", "ssh-rsa": "RSA"}
    return randomart(base64.b64decode(blob), names.get(kind, kind.rpartition("-")[2].upper()))
