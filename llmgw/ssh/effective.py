"""How a node is reached, setting by setting, and where each of them comes from."""

from __future__ import annotations

from typing import Any

import asyncssh

from llmgw.model.node import Node
from llmgw.model.requests import SshSetting
from llmgw.ssh.identity import Login, host_key_fingerprint

SAID = "node add"


async def effective(node: Node, login: Login) -> list[SshSetting]:
    """The settings that a connection to `node` is made with; one that says why, where a configuration is damaged.

    `login` is the one that is used for it. What OpenSSH's configuration sets is told apart from what was typed by
    reading it again without either.
    """
    address = node.address
    if address.is_local:
        return [SshSetting(name="HostName", value="this machine, over the embedded server on loopback", source=SAID)]
    name = address.config_host or address.host
    files = " ".join(login.readable_config)
    try:
        configured = await _options(name, login.readable_config)
        plain = await _options(name, [])
    except (asyncssh.ConfigParseError, ValueError) as exc:
        return [SshSetting(name="Host", value=f"the SSH configuration cannot be used: {exc}", source=files)]

    def told(setting: str, value: Any, attribute: str) -> SshSetting:
        here, bare = getattr(configured, attribute), getattr(plain, attribute)
        named = configured.config is not None and configured.config.get(setting) is not None
        source = SAID if value != here else files if named or here != bare else "default"
        return SshSetting(name=setting, value=str(value), source=source)

    found = [
        told("HostName", address.host, "host"),
        told("Port", address.port, "port"),
        told("User", address.user, "username"),
    ]
    if address.config_host is not None:
        found.insert(0, SshSetting(name="Host", value=address.config_host, source=SAID))
    if configured.tunnel:
        found.append(SshSetting(name="ProxyJump", value=str(configured.tunnel), source=files))
    if configured.host_key_alias:
        found.append(SshSetting(name="HostKeyAlias", value=str(configured.host_key_alias), source=files))
    found.append(_identity(node, login, configured, files))
    if login.agent and configured.agent_path:
        source = files if configured.agent_path != plain.agent_path else "SSH_AUTH_SOCK"
        found.append(SshSetting(name="IdentityAgent", value=str(configured.agent_path), source=source))
    kind, fingerprint = node.host_key.split()[0], host_key_fingerprint(node.host_key)
    found.append(SshSetting(name="HostKey", value=f"{kind} {fingerprint}", source="pinned"))
    return found


async def _options(name: str, config: list[str]) -> asyncssh.SSHClientConnectionOptions:
    made: asyncssh.SSHClientConnectionOptions = await asyncssh.SSHClientConnectionOptions.construct(
        None, config=config, host=name, client_keys=None
    )
    return made


def _identity(node: Node, login: Login, configured: asyncssh.SSHClientConnectionOptions, files: str) -> SshSetting:
    if node.options.own_key:
        return SshSetting(name="IdentityFile", value=login.describe(), source="the control plane's own")
    if login.client_keys:
        return SshSetting(name="IdentityFile", value=login.describe(), source=SAID)
    named: Any = configured.config.get("IdentityFile", ()) if configured.config else ()
    if named:
        return SshSetting(name="IdentityFile", value=", ".join(map(str, named)), source=files)
    return SshSetting(name="IdentityFile", value="the keys in ~/.ssh", source="default")
