"""`node show`: every setting of the way to a node, and whether it was typed, configured or nobody's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from llmgw.model.node import Address, Node, NodeOptions
from llmgw.ssh.effective import SAID, effective
from llmgw.ssh.identity import Login, resolve

CONFIG = """
Host gpu
  HostName 10.0.0.7
  User ada
  Port 2222
  ProxyJump bastion
  HostKeyAlias gpu.inside
  IdentityFile ~/.ssh/gpu
"""


@pytest.fixture
def login(tmp_path: Path) -> Login:
    included = tmp_path / "more"
    included.write_text(CONFIG)
    config = tmp_path / "config"
    config.write_text(f"Include {included}\n")
    return Login(client_keys=(Path("/home/llmgw/id_ed25519"),), config_files=(config,))


async def shown(address: Address, login: Login, host_key: str, **options: object) -> dict[str, tuple[str, str]]:
    node = Node(id="gpu", address=address, host_key=host_key, options=NodeOptions(**options))
    return {one.name: (one.value, one.source) for one in await effective(node, login)}


async def test_what_is_configured_names_the_file(login: Login, shared_sshd) -> None:
    address = await resolve("gpu", login=login)
    found = await shown(address, login, shared_sshd.host_key)
    file = str(login.config_files[0])
    assert found["Host"] == ("gpu", SAID)
    assert found["HostName"] == ("10.0.0.7", file)
    assert found["User"] == ("ada", file)
    assert found["Port"] == ("2222", file)
    assert found["ProxyJump"] == ("bastion", file)
    assert found["HostKeyAlias"] == ("gpu.inside", file)
    assert found["IdentityFile"] == ("key /home/llmgw/id_ed25519", "the control plane's own")
    assert found["HostKey"][1] == "pinned"
    assert found["HostKey"][0].startswith("ssh-ed25519 SHA256:")


async def test_what_was_typed_wins_and_says_so(login: Login, shared_sshd) -> None:
    address = await resolve("gpu", login=login, user="root", port=2200)
    found = await shown(address, login, shared_sshd.host_key)
    assert found["User"] == ("root", SAID)
    assert found["Port"] == ("2200", SAID)


async def test_a_plain_host(login: Login, shared_sshd) -> None:
    address = await resolve("10.0.0.9", login=login, user="root")
    found = await shown(address, login, shared_sshd.host_key)
    assert "Host" not in found
    assert "ProxyJump" not in found
    assert found["HostName"] == ("10.0.0.9", "default")
    assert found["Port"] == ("22", "default")


async def test_without_our_key_it_is_the_configured_one(login: Login, shared_sshd) -> None:
    address = await resolve("gpu", login=login)
    keyless = dataclasses.replace(login, client_keys=())
    found = await shown(address, keyless, shared_sshd.host_key, own_key=False)
    assert found["IdentityFile"][0].endswith(".ssh/gpu")
    assert found["IdentityFile"][1] == str(login.config_files[0])


async def test_this_machine(login: Login) -> None:
    found = await shown(Address(host="local", user="me"), login, "")
    assert "loopback" in found["HostName"][0]


async def test_a_broken_configuration_is_said_and_not_raised(tmp_path: Path, shared_sshd) -> None:
    config = tmp_path / "broken"
    config.write_text("Port many\n")
    found = await shown(Address(host="h", user="u"), Login(config_files=(config,)), shared_sshd.host_key)
    assert "cannot be used" in found["Host"][0]
