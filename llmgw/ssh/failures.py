"""What went wrong with a connection, in words with a next step."""

from __future__ import annotations

import errno
import importlib.util
import re
import socket
from collections.abc import Sequence

import asyncssh

from llmgw.errors import ConfigError, LlmgwError, Refused, TimedOut, Unreachable
from llmgw.model.node import Address
from llmgw.ssh.identity import Login, host_key_fingerprint

_NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
_ERRNO = re.compile(r"\[Errno (-?\d+)\] ?")

AGENT_WAIT = 0.5


def clean(text: str, limit: int = 300) -> str:
    """Words from a node, safe to show (F52): one line, no control characters or escapes, at most `limit` characters."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def host_key_changed(address: Address, pinned: str, shown: str) -> Refused:
    """The key shown is not the pinned one (F26)."""
    old, new = host_key_fingerprint(pinned), host_key_fingerprint(shown)
    return Refused(
        f"{address} shows the host key {new} and not the pinned {old}: it was installed anew, or somebody is "
        "in between. Nothing was sent to it.",
        fix=f"If you know why it changed, run: llmgw node add {address.typed} --trust-key {new}",
        code="host_key_changed",
        pinned=old,
        shown=new,
        shown_key=shown,
    )


def host_key_unknown(address: Address, shown: str) -> Refused:
    new = host_key_fingerprint(shown)
    return Refused(
        f"{address} shows the host key {new}, which nobody has confirmed.",
        fix=f"Compare it with the key on the machine and run: llmgw node add {address.typed} --fingerprint {new}",
        code="host_key_unknown",
        shown=new,
        shown_key=shown,
    )


def host_key_vouched(address: Address, key: str) -> Refused:
    """No failure to a person: the key is known now, and an authority of theirs vouches for it."""
    return Refused(
        f"{address} shows a certificate of an authority in your known_hosts.", code="host_key_vouched", shown_key=key
    )


def certificate_untrusted(address: Address) -> Refused:
    """Not the end: its plain key may be known, or confirmed."""
    return Refused(f"{address} shows a certificate of an authority that is not known.", code="certificate_untrusted")


def connect_timeout(address: Address, seconds: float) -> TimedOut:
    return TimedOut(
        f"{address} did not answer within {seconds:g} s.",
        fix="Is the machine on, and does a firewall let us through to its SSH port?",
        code="connect_timeout",
    )


def jump_timeout(address: Address, route: str, seconds: float) -> TimedOut:
    return TimedOut(
        f"the way to {address} leads over {route}, which did not let us through within {seconds:g} s.",
        fix=f"Try it by hand: ssh {route.split(',')[0]}",
        code="jump_timeout",
    )


def login_timeout(address: Address, seconds: float) -> TimedOut:
    return TimedOut(
        f"{address} accepted the connection, but the login did not end within {seconds:g} s.",
        fix="Its sshd may be overloaded, or wait for a name server or an account service.",
        code="login_timeout",
    )


def explain(
    exc: BaseException, address: Address, login: Login, *, key_shown: bool, opened: Sequence[str] = ()
) -> LlmgwError:
    """The error for an exception that connecting raised. `key_shown`: it had got as far as the host key.

    `opened` names the encrypted keys whose passphrase was asked for: asyncssh opens them late and keeps silent about
    one that did not open.
    """
    why = clean(_ERRNO.sub("", str(exc))) or type(exc).__name__
    if isinstance(exc, LlmgwError):
        return exc
    if isinstance(exc, asyncssh.PermissionDenied):
        if opened and importlib.util.find_spec("bcrypt") is None:
            return Refused(
                f"{', '.join(opened)} cannot be opened: encrypted keys need the Python package bcrypt.",
                fix="Install bcrypt beside llmgw, or give the key to your agent: ssh-add.",
                code="bad_key",
            )
        why = f"the passphrase given for {', '.join(opened)} may be wrong" if opened else ""
        return _login_refused(address, login, why)
    if isinstance(exc, asyncssh.HostKeyNotVerifiable):
        return Refused(
            f"a jump host on the way to {address} cannot be trusted: {why}.",
            fix="Connect to it once with ssh, so that its key is in your known_hosts.",
            code="jump_host_key",
        )
    if isinstance(exc, asyncssh.KeyExchangeFailed | asyncssh.CompressionError | asyncssh.MACError):
        return Refused(f"{address} and we have no algorithms in common: {why}.", code="no_common_algorithm")
    if isinstance(exc, asyncssh.ConnectionLost):
        return _dropped(address, key_shown)
    if isinstance(exc, asyncssh.ProtocolError | asyncssh.ProtocolNotSupported) and not key_shown:
        return _not_ssh(address, why)
    if isinstance(exc, asyncssh.DisconnectError):
        if "authentication" in why.lower():
            return _login_refused(address, login, why)
        return Unreachable(f"{address} ended the handshake: {why}.", code="handshake_dropped")
    if isinstance(exc, asyncssh.ChannelOpenError):
        return Unreachable(f"the jump host cannot reach {address}: {why}.", code="no_route")
    if isinstance(exc, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        return Refused(f"a key for {address} cannot be used: {why}.", fix="Name another identity.", code="bad_key")
    if isinstance(exc, asyncssh.ConfigParseError):
        return ConfigError(f"the SSH configuration cannot be used: {why}.", fix="Mend it, or set ssh.config.")
    if isinstance(exc, OSError):
        return _os_error(exc, address, why)
    if not key_shown:
        return _not_ssh(address, why)  # asyncssh fell over what it read
    return Unreachable(f"the connection to {address} failed: {why}.", code="unreachable")


def _not_ssh(address: Address, why: str) -> Unreachable:
    return Unreachable(
        f"what answers at {address} speaks no SSH: {why}.", fix="Give the port of sshd with the host.", code="not_ssh"
    )


def _login_refused(address: Address, login: Login, why: str) -> Refused:
    port = "" if address.port == 22 else f"-p {address.port} "
    ask = f"Can `ssh {port}{address.user}@{address.config_host or address.host}` log in?"
    tried = _tried(address, login)
    if not tried:
        return Refused(
            f"{address} refused the login: there was nothing to try (no key, no agent with keys).",
            fix=f"{ask} Name a key that can with `-i FILE`, or make one with ssh-keygen and put its public half into "
            "~/.ssh/authorized_keys there.",
            code="login_refused",
        )
    return Refused(
        f"{address} refused the login: tried {tried}" + (f" ({why})" if why else "") + ".",
        fix=f"{ask} Put the key into ~/.ssh/authorized_keys there, or name another key with `-i FILE`, or another "
        "user as USER@HOST.",
        code="login_refused",
    )


def _tried(address: Address, login: Login) -> str:
    """What there really was to try; empty when nothing."""
    usual, agent = _at_hand(address, login)
    tried = [f"key {path}" for path in login.client_keys]
    if usual and not tried:
        tried.append("the keys of the SSH configuration" if login.readable_config else "the keys in ~/.ssh")
    if agent:
        tried.append("the agent's keys")
    if login.password is not None:
        tried.append("a password")
    return ", ".join(tried)


def _at_hand(address: Address, login: Login) -> tuple[bool, bool]:
    """Whether there are keys in the usual places, and in the agent. asyncssh passes silently over what is not there,
    and a sentence that names it sends people looking in the wrong place."""
    if not (login.agent or login.readable_config):
        return False, False
    try:
        found = asyncssh.SSHClientConnectionOptions(
            config=login.readable_config,
            host=address.config_host or address.host,
            username=address.user,
            agent_path=() if login.agent else None,
            ignore_encrypted=True,
        )
    except (asyncssh.Error, OSError, ValueError):
        return True, login.agent
    return bool(found.client_keys), login.agent and _agent_holds_keys(found.agent_path)


def _agent_holds_keys(path: str | None) -> bool:
    """Asks an agent how many keys it holds (draft-ietf-sshm-ssh-agent: request 11, answer 12 and a number)."""
    if not path:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(AGENT_WAIT)
            agent.connect(path)
            agent.sendall(b"\0\0\0\x01\x0b")
            answer = b""
            while len(answer) < 9 and (more := agent.recv(9 - len(answer))):
                answer += more
    except OSError:
        return False
    return answer[4:5] == b"\x0c" and any(answer[5:])


def _dropped(address: Address, key_shown: bool) -> Unreachable:
    if key_shown:
        return Unreachable(
            f"{address} closed the connection during the login.",
            fix="Its log says why: a limit of sshd, PAM, or an account that may not log in.",
            code="handshake_dropped",
        )
    return Unreachable(
        f"{address} closed the connection before the SSH handshake.",
        fix="sshd does so with too many connections at once (MaxStartups) or after failed logins (PerSourcePenalties), "
        "and lets one in again a while later.",
        code="handshake_dropped",
    )


def _os_error(exc: OSError, address: Address, why: str) -> LlmgwError:
    if isinstance(exc, socket.gaierror):
        return Unreachable(
            f"{address.host} is unknown to the name service: {exc.strerror or why}.",
            fix="Check the spelling.",
            code="unknown_host",
        )
    # Several addresses that fail in several ways come as one OSError without a number, the numbers in its text.
    numbers = {exc.errno} if exc.errno else {int(found) for found in _ERRNO.findall(str(exc))}
    if numbers & {errno.ECONNREFUSED}:
        return Unreachable(
            f"nothing listens at port {address.port} of {address.host}.",
            fix="Start sshd there, or give its port with the host.",
            code="port_closed",
        )
    if numbers & _NO_ROUTE:
        return Unreachable(f"there is no route to {address.host}: {why}.", code="no_route")
    if numbers & {errno.ETIMEDOUT}:
        return TimedOut(f"{address} did not answer.", code="connect_timeout")
    if numbers & {errno.ECONNRESET, errno.EPIPE}:
        return _dropped(address, False)
    if exc.filename:
        return Refused(
            f"{exc.filename} cannot be read: {exc.strerror or why}.", fix="Name another identity.", code="bad_key"
        )
    return Unreachable(f"{address} cannot be reached: {why}.", code="unreachable")
