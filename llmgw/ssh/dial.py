"""The way to a logged-in asyncssh connection: TCP, jump hosts, the host key, the login. Nothing here ever prompts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Collection, Coroutine
from typing import Any

import asyncssh

from llmgw.errors import LlmgwError
from llmgw.model.node import Address
from llmgw.ssh import failures, lean
from llmgw.ssh.client import Client
from llmgw.ssh.identity import HOST_CERTIFICATE_ALGORITHMS, Login, host_key_algorithms

# Below a warning asyncssh would format text for every packet and channel on the hot path.
asyncssh.set_log_level(logging.WARNING)

# In front of asyncssh's own order, whose first choice (chacha20) costs twice as much a token-sized chunk.
CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
KEEPALIVE_COUNT = 3
NOBODY = b"#\n"
"""A known_hosts file that names no host, which leaves it all to `Client`. None would switch checking off, and for an
empty one asyncssh reads ~/.ssh/known_hosts: what stands there would go before the pin."""


async def dial(
    address: Address,
    *,
    login: Login,
    host_key: str | None,
    connect_timeout: float,
    login_timeout: float,
    keepalive: float,
    authorities: Collection[str] = (),
) -> tuple[asyncssh.SSHClientConnection, Client, asyncssh.SSHClientConnection | None]:
    """A logged-in connection, its watcher, and the connection to the jump host it goes through, if any.

    Without `host_key` it never logs in: it raises Refused (`host_key_unknown`, or `host_key_vouched` where the server
    shows a certificate of one of `authorities`; with the key in `data["shown_key"]`).
    Raises what `failures` says. Times in seconds.
    """
    client = Client(
        host_key,
        authorities=authorities if host_key is None else (),
        prompt=login.prompt if host_key is not None else None,
        who=str(address),
    )
    jump: asyncssh.SSHClientConnection | None = None
    try:
        host = (address.config_host or address.host) if login.readable_config else address.host
        options = _options(address, login, host_key, keepalive, client)
        if host_key is None and authorities:
            options["server_host_key_algs"] = [*HOST_CERTIFICATE_ALGORITHMS, *options["server_host_key_algs"]]
        if login.readable_config and (route := await _route(host, options)):
            jump = await _in_time(_jump(route, login, keepalive), address, route, connect_timeout + login_timeout)
        elif "%" in address.host:
            options["sock"] = await _scoped(address, connect_timeout)
        opening = asyncssh.connect(host, tunnel=jump, **options)
        connection = await _within(opening, client, address, connect_timeout, login_timeout)
    except BaseException as exc:
        if jump is not None:
            jump.abort()
        if not isinstance(exc, Exception):
            raise
        hung_up = isinstance(exc, asyncssh.ConnectionLost | asyncssh.KeyExchangeFailed | ConnectionError)
        if hung_up and client.server_version:
            shown = await _other_key(address, login, host_key, client, connect_timeout, login_timeout, keepalive)
            if shown is not None and host_key is not None:
                raise failures.host_key_changed(address, host_key, shown) from None
        raise _why(exc, address, login, client, host_key, connect_timeout) from None
    if host_key is None:  # a server that lets anybody in, and whose certificate was trusted
        connection.abort()
        raise failures.host_key_vouched(address, client.vouched_key or "")
    lean.connection(connection)
    return connection, client, jump


def _options(address: Address, login: Login, host_key: str | None, keepalive: float, client: Client) -> dict[str, Any]:
    """Everything is said, since asyncssh's defaults read the user's files and switch checks off."""

    async def passphrase(path: str) -> str | None:
        client.opened.append(path)
        return await client.asked(login.passphrase(path)) if login.passphrase is not None else None

    keys: Any = [str(path) for path in login.client_keys]
    if not keys:
        keys = () if login.agent or login.readable_config else None
    return {
        "port": address.port,
        "username": address.user,
        "config": login.readable_config,
        "client_factory": lambda: client,
        "client_keys": keys if host_key is not None else None,
        "agent_path": () if login.agent and host_key is not None else None,
        "passphrase": passphrase if login.passphrase is not None else None,
        "ignore_encrypted": login.passphrase is None,
        "password": login.password.reveal() if login.password is not None and host_key is not None else None,
        "known_hosts": NOBODY,
        "host_key_alias": None,
        "server_host_key_algs": host_key_algorithms(host_key),
        "x509_trusted_certs": None,
        "gss_host": None,
        "gss_kex": False,  # a GSS key exchange would go past the host key
        "gss_auth": False,
        "host_based_auth": False,
        "encryption_algs": CIPHERS,
        "compression_algs": None,
        "agent_forwarding": False,
        "x11_forwarding": False,
        "request_pty": False,
        "env": {},
        "send_env": None,
        "command": None,
        "utf8_decode_errors": "replace",
        "connect_timeout": None,  # ours: asyncssh's covers the login too
        "login_timeout": 0,
        "keepalive_interval": keepalive,
        "keepalive_count_max": KEEPALIVE_COUNT,
    }


async def _in_time(
    opening: Coroutine[Any, Any, asyncssh.SSHClientConnection], address: Address, route: str, seconds: float
) -> asyncssh.SSHClientConnection:
    try:
        async with asyncio.timeout(seconds):
            return await opening
    except TimeoutError:
        raise failures.jump_timeout(address, route, seconds) from None


async def _route(host: str, options: dict[str, Any]) -> str | None:
    """The ProxyJump that the OpenSSH configuration names for a host."""
    bare = {**options, "client_keys": None, "agent_path": None}
    found = await asyncssh.SSHClientConnectionOptions.construct(None, host=host, **bare)
    return str(found.tunnel) if found.tunnel else None


async def _jump(route: str, login: Login, keepalive: float) -> asyncssh.SSHClientConnection:
    """Logs in to the jump hosts of `route` (`user@host:port,…`) with the operator's keys, agent and known_hosts.

    Opened here and not by asyncssh, which leaks the jump connection when the attempt is cancelled.
    """
    last: asyncssh.SSHClientConnection | None = None
    try:
        for hop in route.split(","):
            user, at, host = hop.rpartition("@")
            name, colon, port = host.rpartition(":")
            where: dict[str, Any] = {"port": int(port)} if colon and port.isdigit() else {}
            if at:
                where["username"] = user
            usual = await asyncssh.SSHClientConnectionOptions.construct(
                None, config=login.readable_config, host=name or host, ignore_encrypted=True, **where
            )
            following = await asyncssh.connect(
                name if colon and port.isdigit() else host,
                tunnel=last or (),
                config=login.readable_config,
                client_keys=[*map(str, login.client_keys), *(usual.client_keys or ())],
                ignore_encrypted=True,
                x509_trusted_certs=None,
                gss_host=None,
                encryption_algs=CIPHERS,
                compression_algs=None,
                agent_forwarding=False,
                utf8_decode_errors="replace",
                keepalive_interval=keepalive,
                keepalive_count_max=KEEPALIVE_COUNT,
                **where,
            )
            if last is not None:
                following.set_tunnel(last)
            last = following
    except BaseException:
        if last is not None:
            last.abort()
        raise
    assert last is not None
    return last


async def _scoped(address: Address, timeout: float) -> socket.socket:
    """A connected socket for an address with a zone, `fe80::1%eth0`: uvloop loses the zone (its issue 539)."""
    made = await asyncio.to_thread(socket.create_connection, (address.host, address.port), timeout)
    made.setblocking(False)
    return made


async def _within(
    opening: Any, client: Client, address: Address, connect_timeout: float, login_timeout: float
) -> asyncssh.SSHClientConnection:
    """The connection, or TimedOut that says which half took too long. An attempt given up is taken down."""
    task: asyncio.Future[asyncssh.SSHClientConnection] = asyncio.ensure_future(opening)
    try:
        if not await _in_its_time((task, client.connected), client, connect_timeout):
            raise failures.connect_timeout(address, connect_timeout)
        if not await _in_its_time((task,), client, login_timeout):
            raise failures.login_timeout(address, login_timeout)
        return task.result()
    except BaseException:
        task.cancel()
        task.add_done_callback(_discard)
        raise


async def _in_its_time(either: Collection[asyncio.Future[Any]], client: Client, seconds: float) -> bool:
    """Whether one of these was done in time, which begins anew each time a person has typed something."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while not any(one.done() for one in either):
        left = max(began, client.answered_at or began) + seconds - clock()
        if left <= 0 and not client.asking:
            return False
        await asyncio.wait(either, timeout=left if left > 0 else seconds, return_when=asyncio.FIRST_COMPLETED)
    return True


def _discard(task: asyncio.Future[asyncssh.SSHClientConnection]) -> None:
    with contextlib.suppress(BaseException):
        task.result().abort()


async def _other_key(
    address: Address,
    login: Login,
    host_key: str | None,
    client: Client,
    connect_timeout: float,
    login_timeout: float,
    keepalive: float,
) -> str | None:
    """The key of another type that a server shows which has none of the pinned type. sshd just hangs up on us then."""
    if host_key is None or client.shown is not None:
        return None
    times: dict[str, Any] = {"connect_timeout": connect_timeout, "login_timeout": login_timeout, "keepalive": keepalive}
    try:
        await dial(address, login=login, host_key=None, **times)
    except LlmgwError as exc:
        shown = str(exc.data.get("shown_key", ""))
        return shown if shown and shown.split()[0] != host_key.split()[0] else None
    return None


def _why(
    exc: Exception, address: Address, login: Login, client: Client, host_key: str | None, connect_timeout: float
) -> LlmgwError:
    if host_key is None and (vouched := client.vouched_key) is not None:
        return failures.host_key_vouched(address, vouched)
    if client.shown is not None and client.shown != host_key:
        if host_key is None:
            return failures.host_key_unknown(address, client.shown)
        return failures.host_key_changed(address, host_key, client.shown)
    if host_key is None and client.shown is None and isinstance(exc, asyncssh.HostKeyNotVerifiable):
        return failures.certificate_untrusted(address)
    if isinstance(exc, TimeoutError):
        return failures.connect_timeout(address, connect_timeout)
    return failures.explain(exc, address, login, key_shown=client.shown is not None, opened=client.opened)
