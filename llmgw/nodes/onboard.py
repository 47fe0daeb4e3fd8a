"""First contact with a machine, in the operator's own process and with the operator's own keys.

    reach → identify → preflight → decide → mend → key → prove → join

Nothing is written to the node before `key` but what the operator agreed to have mended, and then one line: the control
plane's key, restricted. What a script cannot know is asked of the operator: whether a host key is right, whether to go
on past a problem, which fabric a group of adapters is on. An add that fails takes its line away again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from llmgw.core.fabric import groups
from llmgw.core.findings.rules import sentence
from llmgw.errors import LinkLost, NodeError, Refused, TimedOut, Unreachable
from llmgw.model.node import Address, NodeOptions
from llmgw.model.probe import Probe
from llmgw.model.requests import Join, Step, Whoami
from llmgw.nodes.describe import counted, in_a_line
from llmgw.nodes.examine import Examined, Machine, examine
from llmgw.nodes.keyline import KeyLine
from llmgw.nodes.mend import take_remedies
from llmgw.nodes.operator import Operator, Wish
from llmgw.nodes.replies import Outlived, Sleeper, typed
from llmgw.nodes.target import parse_target
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.identity import (
    Login,
    host_key_alias,
    host_key_fingerprint,
    operator_authorities,
    operator_known_keys,
    resolve,
)

KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))
RESTARTS = ("port_closed", "handshake_dropped", "connect_timeout", "no_route")
"""What a server looks like that is being restarted, or a machine that is still booting."""
PAUSE = 2.0
"""Seconds between two tries."""
SECOND_WAIT = 180.0
"""Seconds to wait for a server that had answered before: a cloud machine restarts it once it has its host keys."""

T = TypeVar("T")


class Story:
    """One machine's first contact. `me` is None where there is no control plane yet, for a look only."""

    def __init__(self, wish: Wish, me: Whoami | None, *, login: Login, user: str | None, operator: Operator) -> None:
        self._wish = wish
        self._me = me
        self._login = login
        self._user = user
        self._operator = operator
        self._told: list[Step] = []
        self._address: Address | None = None
        self._host_key: str | None = None
        self._own: Login | None = None
        """With the control plane's own key, where it is here and to be left there."""

    async def check(self, machines: Sequence[Machine] = (), key: Path | None = None) -> Examined:
        """Looks only. Raises what `reach` raises; what is wrong with the node is in the findings. `key` as for `add`:
        where the control plane has been before, it is let in."""
        self._use(key)
        async with self._reached() as connection:
            return await self._examined(connection, self._wish.options, machines)

    async def add(self, key: Path | None, join: Callable[[Join], Awaitable[T]], machines: Sequence[Machine] = ()) -> T:
        """All of it; returns what `join` returns, which hands the node to the control plane.

        `key` is the control plane's private key; None where that is on another machine, which then tries it itself.
        Raises Unreachable, TimedOut, Refused (login, host key, preflight, another owner), NodeError, and what `join`
        raises.
        """
        self._use(key)
        async with contextlib.AsyncExitStack() as undo:
            wish = await self._through(machines, undo)
            try:
                joined = await join(wish)
            except Refused as exc:
                if exc.code == "same_machine":
                    undo.pop_all()  # added by another name meanwhile: the line is that node's
                raise
            undo.pop_all()  # it is the control plane's now
            return joined

    @property
    def host_key(self) -> str | None:
        """What the machine showed, once it was reached."""
        return self._host_key

    def _use(self, key: Path | None) -> None:
        if key is not None and self._wish.options.own_key:
            self._own = Login(client_keys=(key,))

    async def _through(self, machines: Sequence[Machine], undo: contextlib.AsyncExitStack) -> Join:
        """Every step but the last. `undo` gets what has to be done where one of them, or the last, fails."""
        async with self._reached() as connection:
            options = self._wish.options
            found = await self._examined(connection, options, machines)
            if found.probe is not None:
                await self._owned(found.probe)
                self._refuse_namesake(found.probe, machines)
                if fabrics := await self._fabrics(found.probe):
                    options = options.model_copy(update={"fabrics": fabrics})
                    found = found.with_fabrics(fabrics)
                if await take_remedies(connection, found, self._operator, self._say, unasked=self._wish.mend):
                    found = await self._examined(connection, options, machines)
            probe, accepted = await self._decided(found)
            options = options.model_copy(update={"despite": (*options.despite, *accepted)})
            created: tuple[str, ...] = ()
            if options.own_key:
                created = await self._key_line().leave(connection, undo)
            else:
                await self._say("key", "none is left there: the control plane comes with your keys")
            reply = await connection.run_script("engine", {"action": "outlive"}, deadline=20.0)
            sleeper = typed(Sleeper, reply, connection.name)
        await self._prove(sleeper, probe)
        return self._join(probe, options, created)

    @contextlib.asynccontextmanager
    async def _reached(self) -> AsyncIterator[Connection]:
        user, host, port = parse_target(self._wish.target)
        self._address = await resolve(host, login=self._login, user=user or self._user, port=port)
        try:
            connection = await self._let_in()
        except Refused as exc:
            if exc.code == "login_refused" and self._login.prompt is None:
                exc.fix = f"{exc.fix} In a terminal a password is asked for.".lstrip()
            raise
        self._host_key = connection.host_key
        try:
            await self._say("reach", f"{self._address} answers, {host_key_fingerprint(connection.host_key)}")
            yield connection
        except LinkLost as exc:
            raise Unreachable(
                exc.message, fix="Add it again; if it ends there too, its sshd's log says why.", code=exc.code
            ) from None
        finally:
            await connection.close()

    async def _let_in(self) -> Connection:
        """A node that is known has the control plane's key already: nobody is asked for a password once more."""
        wait = self._wish.wait or 0.0
        if self._own is not None and self._pinned() and self._wish.fingerprint is None:
            try:
                return await self._waited(self._own, wait)
            except Refused as exc:
                if exc.code != "login_refused":
                    raise
        return await self._waited(self._login, wait)

    def _pinned(self) -> list[str]:
        """The key that this control plane has pinned for the address, if it has."""
        assert self._address is not None
        return operator_known_keys(self._address, [self._wish.pins]) if self._wish.pins is not None else []

    async def _waited(self, login: Login, limit: float) -> Connection:
        """A connection; one that is refused by a server that is just starting is tried again for `limit` seconds."""
        clock = asyncio.get_running_loop().time
        end = clock() + limit
        said = False
        while True:
            try:
                return await self._connect(login)
            except (Unreachable, TimedOut) as exc:
                if exc.code not in RESTARTS or clock() + PAUSE > end:
                    raise
                if not said:
                    await self._say("reach", f"{exc.message} Waiting for it, at most {limit:.0f} s.")
                said = True
            await asyncio.sleep(PAUSE)

    async def _connect(self, login: Login) -> Connection:
        address = self._address
        assert address is not None
        if self._host_key is not None:
            return await connect(address, login=login, host_key=self._host_key)
        await self._say("reach", f"connecting to {address}")
        if self._wish.fingerprint is not None:
            return await connect(address, login=login, host_key=None, ask=self._demand)
        files = [path.expanduser() for path in KNOWN_HOSTS]
        if pinned := self._pinned():
            return await connect(address, login=login, host_key=pinned[0])
        alias = await host_key_alias(address, login)
        if known := operator_known_keys(address, files, alias):
            return await connect(address, login=login, host_key=known[0])
        authorities = operator_authorities(address, files, alias)
        return await connect(address, login=login, host_key=None, ask=self._operator.trust, authorities=authorities)

    async def _demand(self, host: str, key: str, fingerprint: str) -> bool:
        if fingerprint != self._wish.fingerprint:
            raise Refused(
                f"{self._address} shows the key {fingerprint}, not {self._wish.fingerprint}.",
                fix="Compare it on the machine itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
                code="host_key_changed",
            )
        return True

    async def _examined(self, connection: Connection, options: NodeOptions, machines: Sequence[Machine]) -> Examined:
        wish = self._wish
        found = await examine(
            connection,
            options,
            where=wish.target,
            node_id=wish.name,
            ports=wish.ports,
            machines=machines,
            host_key=self._host_key,
            key_line=self._me.key_line if self._me is not None else None,
            ask_sudo=wish.mend,
        )
        if found.probe is not None:
            await self._say("identify", in_a_line(found.probe))
        for problem in found.problems:
            await self._say("preflight", problem.message, **problem.model_dump(exclude={"message"}))
        await self._say("preflight", counted(found.problems))
        return found

    async def _decided(self, found: Examined) -> tuple[Probe, tuple[str, ...]]:
        """Goes on, with the codes of the errors that were accepted; or ends the story before anything was written."""
        wish, errors, probe = self._wish, found.errors, found.probe
        if errors and (probe is None or not await self._operator.go_on(errors)):
            first = errors[0]
            more = f" ({len(errors) - 1} more errors above)" if len(errors) > 1 else ""
            name = probe.hostname if probe is not None else wish.target
            despite = f" Or add --despite {first.code}." if probe is not None else ""
            fix = f"{sentence(first.fix or 'Mend that first.')}{despite}"
            raise Refused(f"{name} cannot serve: {first.message.rstrip('.')}.{more}", fix=fix, code=first.code)
        assert probe is not None  # without one there is an error, and nothing to go on with
        if errors:
            await self._say("decide", f"going on past {', '.join(problem.code for problem in errors)}")
        return probe, tuple(problem.code for problem in errors)

    async def _owned(self, probe: Probe) -> None:
        """A node of another control plane is not touched, and nothing on it is mended."""
        owner, me = probe.owner, self._me
        if owner is None and "owner" in probe.unknown:
            await self._say("decide", f"whose it is is not known: {probe.unknown['owner']}")
        elif owner is None:
            await self._say("decide", "it belongs to no control plane yet")
        elif me is not None and owner.controller_id == me.controller_id:
            await self._say("decide", "it is ours already")
        elif self._wish.take_over:
            await self._say("decide", f"it is taken over from control plane {owner.controller_id}")
        else:
            raise Refused(
                f"{probe.hostname} belongs to another control plane ({owner.controller_id}, term {owner.term}).",
                fix="Remove it there first; add --take-over if that one is gone for good.",
                code="foreign_controller",
            )

    def _refuse_namesake(self, probe: Probe, machines: Sequence[Machine]) -> None:
        """Two machines that call themselves alike are told apart before a byte is written, not after."""
        name, wish = probe.hostname.lower(), self._wish
        other = next((one for one in machines if one.id == name), None)
        if other is None or wish.name is not None or wish.trust_key or other.host_key == self._host_key:
            return
        by_ids = (other.machine_id, other.boot_id) == (probe.machine_id, probe.boot_id)
        what = "the same machine by its ids, with another host key" if by_ids else "another machine"
        raise Refused(
            f"There is a node {name} already; {self._address}, which calls itself {name} too, is {what}.",
            fix="Give this one another name with --name.",
            code="name_taken",
        )

    async def _fabrics(self, probe: Probe) -> dict[str, tuple[str, ...]]:
        """What was declared stays; where nothing was, and there are adapters, the operator is asked."""
        declared = self._wish.options.fabrics
        found = groups(probe)
        named = {} if declared or not found else await self._operator.fabrics(found)
        for name, adapters in (declared or named).items():
            await self._say("decide", f"fabric {name}: {', '.join(adapters)}")
        return named

    def _key_line(self) -> KeyLine:
        wish, me = self._wish, self._me
        assert me is not None

        async def again() -> Connection:
            if self._own is not None:  # what is to be taken away still opens the door, and asks nobody for a password
                with contextlib.suppress(Refused):
                    return await self._connect(self._own)
            return await self._connect(self._login)

        return KeyLine(me, root=wish.options.root, node_id=wish.name or "", again=again, say=self._say)

    async def _prove(self, sleeper: Sleeper, probe: Probe) -> None:
        """From here on the control plane comes by itself, and what it starts must live on: both are tried now, while
        somebody is watching."""
        try:
            connection = await self._waited(
                self._own or self._login, SECOND_WAIT if self._wish.wait is None else self._wish.wait
            )
        except Refused as exc:
            if self._own is None or exc.code != "login_refused":
                raise
            raise NodeError(
                f"{self._address} refuses the control plane's own key although its line is in authorized_keys: "
                f"{exc.message}",
                fix="Check AuthorizedKeysFile and PubkeyAuthentication in its sshd_config, and the modes of ~ and "
                "~/.ssh.",
                code="key_refused",
            ) from None
        try:
            asked = {**sleeper.model_dump(), "action": "outlived"}
            reply = await connection.run_script("engine", asked, deadline=20.0)
            outlived = typed(Outlived, reply, connection.name)
        finally:
            await connection.close()
        if not outlived.alive:
            name = probe.user.name
            raise NodeError(
                f"{probe.hostname} ends {name}'s processes when the SSH connection ends: no engine would live.",
                fix=f"Run on it: sudo loginctl enable-linger {name}; or set KillUserProcesses=no in logind.conf.",
                code="processes_killed",
            )
        whose = "the control plane logs in with its own key" if self._own is not None else "your keys log in once more"
        await self._say("prove", f"{whose}; what is started outlives the connection")

    def _join(self, probe: Probe, options: NodeOptions, created: tuple[str, ...]) -> Join:
        wish = self._wish
        assert self._address is not None
        return Join(
            name=wish.name,
            address=self._address,
            host_key=self._host_key or "",
            hostname=probe.hostname,
            machine_id=probe.machine_id,
            boot_id=probe.boot_id,
            options=options,
            labels=wish.labels,
            created=created,
            take_over=wish.take_over,
            trust_key=wish.trust_key,
            by=wish.by,
            story=tuple(self._told),
            owner_term=probe.owner.term if probe.owner is not None else None,
        )

    async def _say(self, step: str, text: str, **more: Any) -> None:
        self._told.append(Step(step=step, message=text))
        await self._operator.say(step, text, **more)
