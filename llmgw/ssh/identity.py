"""Who we are to a node, and which key a node must show us."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from llmgw.config.files import LARGE, read_plain
from llmgw.errors import ConfigError, UsageError
from llmgw.model.node import Address
from llmgw.model.secret import Secret

AskHostKey = Callable[[str, str, str], Awaitable[bool]]
"""Asked with (host, public key, fingerprint) whether an unknown key is to be trusted."""

Prompt = Callable[[str, bool], Awaitable[str | None]]
"""Asks a person for a password or a code: (question, whether what is typed may be seen). None: they gave up."""

# Host key types we take, best first. No certificates: the pin is a key, and a server that has one also has its key.
HOST_KEY_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
# Taken at first contact only, where the operator's known_hosts names an authority. What is pinned is the key inside.
HOST_CERTIFICATE_ALGORITHMS = tuple(f"{name}-cert-v01@openssh.com" for name in HOST_KEY_ALGORITHMS)


@dataclass(frozen=True)
class Login:
    """How we log in. Nothing here ever prompts: a key that needs a passphrase is skipped unless `passphrase` knows it.

    With `config_files` (OpenSSH client configuration) aliases, HostName, ProxyJump, certificates and the rest apply;
    an empty `client_keys` then means the configured identities or the usual files under `~/.ssh`.
    """

    client_keys: tuple[Path, ...] = ()
    agent: bool = False
    password: Secret | None = None
    """Sent only to a host whose key was pinned, known or confirmed."""
    passphrase: Callable[[str], Awaitable[str | None]] | None = None
    """Asked with the path of an encrypted key."""
    prompt: Prompt | None = None
    """Asked for passwords and codes, after every key; only while somebody is watching. None otherwise."""
    config_files: tuple[Path, ...] = ()

    @property
    def readable_config(self) -> list[str]:
        """The files of `config_files` that exist, as OpenSSH silently passes over the others."""
        return [str(path) for name in self.config_files if os.access(path := Path(name).expanduser(), os.R_OK)]

    def describe(self) -> str:
        """What is tried, for the sentence about a refused login: `key /…/id_ed25519, the agent's keys, password`."""
        tried = [f"key {path}" for path in self.client_keys]
        if not tried and self.readable_config:
            tried.append("the keys of the SSH configuration")
        if self.agent:
            tried.append("the agent's keys")
        if self.password is not None or self.prompt is not None:
            tried.append("a password")
        return ", ".join(tried) or "nothing (no key, agent or password was given)"


def parse_public_key(text: str) -> asyncssh.SSHKey:
    """The key in `TYPE BASE64 [comment]`. Raises UsageError."""
    try:
        return asyncssh.import_public_key(text)
    except (asyncssh.KeyImportError, ValueError):
        raise UsageError(f"{text[:40]!r} is no public key in OpenSSH's format.") from None


def public_text(key: asyncssh.SSHKey) -> str:
    """`TYPE BASE64`, without a comment: the form in which keys are pinned."""
    return " ".join(key.export_public_key("openssh").decode("ascii").split()[:2])


def host_key_fingerprint(public_key: str) -> str:
    """`SHA256:…` as ssh-keygen prints it. Raises UsageError."""
    return parse_public_key(public_key).get_fingerprint()


def host_key_algorithms(pinned: str | None) -> list[str]:
    """What to offer so that a server with several keys shows the pinned one, not another it happens to prefer."""
    if pinned is None:
        return list(HOST_KEY_ALGORITHMS)
    kind = pinned.split(maxsplit=1)[0]
    return ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]


async def resolve(name: str, *, login: Login, user: str | None = None, port: int | None = None) -> Address:
    """The address behind `name`, an alias perhaps, with what the OpenSSH configuration says about user and port.

    `user` and `port` win over it. Raises ConfigError when the configuration cannot be read.
    """
    try:
        found = await asyncssh.SSHClientConnectionOptions.construct(
            None, config=login.readable_config, host=name, username=user or (), port=port or (), client_keys=None
        )
    except (asyncssh.ConfigParseError, ValueError) as exc:
        raise ConfigError(f"the SSH configuration cannot be used: {exc}.", fix="Mend it, or set ssh.config.") from None
    alias = name if found.host != name else None
    return Address(host=found.host, port=found.port, user=found.username, config_host=alias)


async def host_key_alias(address: Address, login: Login) -> str | None:
    """The name under which known_hosts knows an address, where the OpenSSH configuration gives it one."""
    found = await asyncssh.SSHClientConnectionOptions.construct(
        None, config=login.readable_config, host=address.config_host or address.host, client_keys=None
    )
    return str(found.host_key_alias) if found.host_key_alias else None


def operator_known_keys(address: Address, files: Iterable[Path], alias: str | None = None) -> list[str]:
    """The keys that OpenSSH `known_hosts` files hold for a host, best type first. Files that are missing hold none.

    `alias`: see `host_key_alias`; it takes the place of name and port. Revoked keys are left out. Raises ConfigError
    for a file that cannot be parsed.
    """
    order = ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"]
    keys = [key for key in _operator_entries(address, files, alias, authorities=False) if key.split()[0] in order]
    return sorted(keys, key=lambda key: order.index(key.split()[0]))


def operator_authorities(address: Address, files: Iterable[Path], alias: str | None = None) -> list[str]:
    """The keys that `@cert-authority` lines of `known_hosts` files name for a host. Raises ConfigError."""
    return _operator_entries(address, files, alias, authorities=True)


def _operator_entries(address: Address, files: Iterable[Path], alias: str | None, *, authorities: bool) -> list[str]:
    names = {alias} if alias else {address.host, address.config_host or address.host}
    port = None if address.port == 22 or alias else address.port
    keys: dict[str, None] = {}
    for path in files:
        try:
            hosts = asyncssh.read_known_hosts(str(path))
        except OSError:
            continue
        except ValueError as exc:
            raise ConfigError(f"{path} cannot be read as known_hosts: {exc}.") from None
        for name in names:
            found = asyncssh.match_known_hosts(hosts, name, "", port)
            plain, trusted, bad = found[:3]
            revoked = {public_text(key) for key in bad}
            for key in trusted if authorities else plain:
                if (text := public_text(key)) not in revoked:
                    keys[text] = None
    return list(keys)


def _pattern(address: Address) -> str:
    """The hosts field of a line. An alias comes first: behind two jump hosts may be two machines of one address."""
    names = dict.fromkeys(name for name in (address.config_host, address.host) if name)
    return ",".join(name if address.port == 22 else f"[{name}]:{address.port}" for name in names)


class HostKeys:
    """The pins: which key each address must show. Kept in OpenSSH's `known_hosts` format, so that `ssh` can use it.

    One writer: whoever holds the lease. `pin` and `forget` write at once (beside, then rename; 0600).
    """

    def __init__(self, path: Path | None = None) -> None:
        """Reads `path` when it exists. Without a path nothing is written. Raises ConfigError for a damaged file."""
        self._path = path
        self._keys: dict[str, str] = {}
        if path is None:
            return
        with contextlib.suppress(FileNotFoundError):
            for number, line in enumerate(read_plain(path, LARGE).decode().splitlines(), 1):
                words = line.split()
                if not words or words[0].startswith("#"):
                    continue
                if len(words) < 3:
                    raise ConfigError(f"{path}:{number} is no known_hosts line.", fix="Restore it from a backup.")
                self._keys[words[0]] = " ".join(words[1:3])

    def lookup(self, address: Address) -> str | None:
        """The key pinned for an address, or None."""
        return self._keys.get(_pattern(address))

    def pin(self, address: Address, public_key: str) -> None:
        """Demands `public_key` of an address from now on. Raises UsageError for something that is no key."""
        if self.hold(address, public_key):
            self.write()

    def hold(self, address: Address, public_key: str) -> bool:
        """As `pin`, for whoever pins many: True where it is left to the caller to `write`."""
        pattern, text = _pattern(address), " ".join(public_key.split()[:2])
        if self._keys.get(pattern) == text:
            return False
        self._keys[pattern] = public_text(parse_public_key(public_key))
        return True

    def forget(self, address: Address) -> None:
        if self._keys.pop(_pattern(address), None) is not None:
            self.write()

    def text(self) -> str:
        """All pins as `known_hosts` lines, sorted: `[host]:port TYPE BASE64`."""
        return "".join(f"{pattern} {key}\n" for pattern, key in sorted(self._keys.items()))

    def write(self) -> None:
        if self._path is None:
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(self.text())
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._path)
        finally:
            beside.unlink(missing_ok=True)
