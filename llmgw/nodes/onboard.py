"""First contact with a machine, in the operator's own process and with the operator's own keys.

    reach → identify → preflight → key → prove

Nothing is written to the node before preflight is done, and then one line: the control plane's key, restricted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.errors import NodeError, Refused, Unreachable, UsageError
from llmgw.model.node import Address, NodeOptions
from llmgw.model.probe import Probe
from llmgw.model.requests import Join, Whoami
from llmgw.nodes.remote import typed
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.identity import Login, host_key_fingerprint, operator_known_keys, resolve

Say = Callable[[str, str], Awaitable[None]]
"""Called with a step and a sentence."""
Confirm = Callable[[str, str, str], Awaitable[bool]]
"""Called with host, public key and fingerprint of a host that nobody knows yet; True pins it."""

UNUSED_PORT = 9
"""discard: nothing listens there on any machine of today."""
KNOWN_HOSTS = (Path("~/.ssh/known_hosts").expanduser(), Path("/etc/ssh/ssh_known_hosts"))


@dataclass(frozen=True)
class Wish:
    """What the operator typed after `node add`."""

    target: str
    name: str | None = None
    options: NodeOptions = field(default_factory=NodeOptions)
    labels: dict[str, str] = field(default_factory=dict)
    fingerprint: str | None = None
    take_over: bool = False


async def first_contact(
    wish: Wish, me: Whoami, *, login: Login, key: Path, user: str | None, say: Say, confirm: Confirm
) -> tuple[Join, Probe]:
    """Raises Unreachable, TimedOut, Refused (login, key, preflight), NodeError; nothing is written before `key`."""
    name, host, port = parse_target(wish.target)
    address = await resolve(host, login=login, user=name or user, port=port)
    connection = await _reach(wish, address, login, say, confirm)
    try:
        await say("reach", f"{address} answers, {host_key_fingerprint(connection.host_key)}")
        probe = await _identify(connection, wish, say)
        await _preflight(probe, wish, say)
        _check_owner(probe, me, wish)
        await _forwarding(connection, probe)
        created = await _leave_key(connection, me, wish, say)
    finally:
        await connection.close()
    await _prove(address, connection.host_key, key, say)
    join = Join(
        name=wish.name,
        address=address,
        host_key=connection.host_key,
        hostname=probe.hostname,
        machine_id=probe.machine_id,
        boot_id=probe.boot_id,
        options=wish.options,
        labels=wish.labels,
        created=created,
        take_over=wish.take_over,
        owner_term=probe.owner.term if probe.owner is not None else None,
    )
    return join, probe


def parse_target(target: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]`, `[user@][v6][:port]` → user, host, port."""
    user, at, rest = target.rpartition("@")
    port: int | None = None
    if rest.startswith("[") and "]" not in rest:
        raise UsageError(f"{target!r}: the bracket is not closed.", fix="Write [user@][v6-address][:port].")
    if not target.isprintable() or len(target) > 300:
        raise UsageError(f"{target[:40]!r} is no host.", fix="Write [user@]host[:port].")
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        text = tail.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, text = rest.partition(":")
    else:
        host, text = rest, ""
    if text:
        if not text.isdigit() or not 0 < int(text) < 65536:
            raise UsageError(f"{target!r}: {text!r} is no port.", fix="Write [user@]host[:port].")
        port = int(text)
    if not host or (at and not user):
        raise UsageError(f"{target!r} names no host.", fix="Write [user@]host[:port].")
    return (user if at else None), host, port


async def _reach(wish: Wish, address: Address, login: Login, say: Say, confirm: Confirm) -> Connection:
    await say("reach", f"connecting to {address}")
    known = operator_known_keys(address, KNOWN_HOSTS)
    if wish.fingerprint is not None:
        # The operator says what to expect: that goes before whatever any file holds.
        wanted = wish.fingerprint

        async def demand(host: str, key: str, fingerprint: str) -> bool:
            if fingerprint != wanted:
                raise Refused(
                    f"{address} shows the key {fingerprint}, not {wanted}.",
                    fix="Compare it on the machine itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
                    code="host_key_changed",
                )
            return True

        return await connect(address, login=login, host_key=None, ask=demand)
    if known:
        return await connect(address, login=login, host_key=known[0])
    return await connect(address, login=login, host_key=None, ask=confirm)


async def _identify(connection: Connection, wish: Wish, say: Say) -> Probe:
    options = wish.options
    args = {"root": options.root, "node_id": wish.name or "", "nvidia_smi": options.nvidia_smi, "ports": [41000, 41999]}
    document = await connection.run_script("probe", {**args, "ib_root": options.ib_root}, deadline=60.0)
    probe = typed(Probe, document, wish.target)
    memory = f"{probe.memory.total / (1 << 30):.1f} GiB" if probe.memory.total else "unknown memory"
    gpus = ", ".join(gpu.name or gpu.vendor for gpu in probe.gpus) or "no GPU"
    threads = f"{probe.cpu.threads} threads" if probe.cpu.threads else "CPU"
    await say(
        "identify",
        f"{probe.hostname}: {probe.os.pretty or probe.os.id or 'Linux'} {probe.os.arch}, {threads}, {memory}, {gpus}, "
        f"python {probe.python.version}",
    )
    return probe


async def _preflight(probe: Probe, wish: Wish, say: Say) -> None:
    """Findings are said; an error ends the add before anything is written."""
    for problem in probe.problems:
        await say("preflight", f"{problem.severity}: {problem.message} {problem.fix}".rstrip())
    errors = [problem for problem in probe.problems if problem.severity == "error"]
    if errors:
        first = errors[0]
        raise Refused(
            f"{probe.hostname} cannot serve: {first.message}", fix=first.fix or "Mend that first.", code=first.code
        )
    if not probe.problems:
        await say("preflight", "no findings")


async def _forwarding(connection: Connection, probe: Probe) -> None:
    """Engines are reached through the connection: an sshd that forwards nothing cannot serve. A closed port tells."""
    try:
        await connection.open_stream(UNUSED_PORT, asyncio.Protocol)
    except Unreachable:
        return  # Nothing listens there: forwarding works.
    except Refused as exc:
        raise Refused(
            f"The sshd of {probe.hostname} forbids forwarding: {exc.message}",
            fix="Set `AllowTcpForwarding local` (and no PermitOpen) in its sshd_config, and reload it.",
            code="forwarding_forbidden",
        ) from None


def _check_owner(probe: Probe, me: Whoami, wish: Wish) -> None:
    owner = probe.owner
    if owner is not None and owner.controller_id != me.controller_id and not wish.take_over:
        raise Refused(
            f"{probe.hostname} belongs to another control plane ({owner.controller_id}, term {owner.term}).",
            fix="Remove it there first; add --take-over if that one is gone for good.",
            code="foreign_controller",
        )


async def _leave_key(connection: Connection, me: Whoami, wish: Wish, say: Say) -> tuple[str, ...]:
    blob = me.public_key.split()[1]
    args = {"action": "add", "line": me.key_line, "key": blob, "root": wish.options.root, "node_id": wish.name or ""}
    reply = await connection.run_script("authorize", args, deadline=30.0)
    if reply.get("changed"):
        await say("key", f"the control plane's key is in {reply.get('path')}")
    else:
        await say("key", f"the control plane's key is in {reply.get('path')} already")
    return tuple(str(path) for path in reply.get("created") or ())


async def _prove(address: Address, host_key: str, key: Path, say: Say) -> None:
    """From here on the control plane comes by itself: that is tried now, while somebody is watching."""
    try:
        connection = await connect(address, login=Login(client_keys=(key,)), host_key=host_key)
    except Refused as exc:
        raise NodeError(
            f"{address} refuses the control plane's own key although its line is in authorized_keys: {exc.message}",
            fix="Check AuthorizedKeysFile and PubkeyAuthentication in its sshd_config, and the modes of ~ and ~/.ssh.",
            code="key_refused",
        ) from None
    await connection.close()
    await say("key", "the control plane logs in with its own key")
