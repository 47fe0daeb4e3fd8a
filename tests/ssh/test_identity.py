"""Pins, known_hosts files, and what is said about a login."""

from __future__ import annotations

import stat
from pathlib import Path

import asyncssh
import pytest

from llmgw.errors import ConfigError, UsageError
from llmgw.model.node import Address
from llmgw.model.secret import Secret
from llmgw.pki.sshkey import fingerprint
from llmgw.ssh.identity import (
    HostKeys,
    Login,
    host_key_algorithms,
    host_key_fingerprint,
    operator_known_keys,
    parse_public_key,
    public_text,
)

KEYS = {
    kind: public_text(asyncssh.generate_private_key(kind)) for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
}
ED, EC, RSA = KEYS.values()


def test_pins_survive_and_are_readable_by_ssh(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    keys = HostKeys(path)
    plain, port = Address(host="gpu01", user="x"), Address(host="fe80::1", port=2222, user="x")
    keys.pin(plain, f"{ED} a comment")
    keys.pin(port, RSA)
    assert path.read_text() == f"[fe80::1]:2222 {RSA}\ngpu01 {ED}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = HostKeys(path)
    assert (again.lookup(plain), again.lookup(port)) == (ED, RSA)
    assert again.lookup(Address(host="gpu01", port=2222, user="x")) is None
    found = asyncssh.match_known_hosts(str(path), "fe80::1", "", 2222)
    assert [public_text(key) for key in found[0]] == [RSA]
    again.pin(plain, EC)
    again.forget(port)
    again.forget(port)
    assert HostKeys(path).text() == f"gpu01 {EC}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["known_hosts"]


def test_two_machines_of_one_address_behind_two_jump_hosts(tmp_path: Path) -> None:
    keys = HostKeys(tmp_path / "known_hosts")
    here = Address(host="10.0.0.5", user="x", config_host="here")
    there = Address(host="10.0.0.5", user="x", config_host="there")
    keys.pin(here, ED)
    keys.pin(there, RSA)
    keys.forget(here)
    assert (keys.lookup(here), keys.lookup(there)) == (None, RSA)
    assert keys.text() == f"there,10.0.0.5 {RSA}\n"


def test_pins_without_a_file_and_from_a_damaged_one(tmp_path: Path) -> None:
    keys = HostKeys()
    keys.pin(Address(host="a", user="x"), ED)
    assert keys.text() == f"a {ED}\n"
    with pytest.raises(UsageError):
        keys.pin(Address(host="a", user="x"), "rubbish")
    path = tmp_path / "known_hosts"
    path.write_text("# a comment\n\ngpu01\n")
    with pytest.raises(ConfigError, match=":3 is no known_hosts line"):
        HostKeys(path)


def test_the_operators_known_hosts(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.write_text(f"gpu01 {RSA}\n[gpu01]:2222 {EC}\n@revoked * {EC}\n")
    second.write_text(f"*.example,gpu* {ED}\n")
    files = (first, second, tmp_path / "missing")
    assert operator_known_keys(Address(host="gpu01", user="x"), files) == [ED, RSA]
    assert operator_known_keys(Address(host="10.0.0.1", user="x", config_host="gpu07"), files) == [ED]
    assert operator_known_keys(Address(host="other", user="x"), files) == []


def test_fingerprints_agree() -> None:
    for key in KEYS.values():
        assert host_key_fingerprint(key) == fingerprint(key)
        assert fingerprint(key).startswith("SHA256:")
        assert not fingerprint(key).endswith("=")
    for bad in ("", "ssh-ed25519", "ssh-ed25519 !!!", "ssh-ed25519 AAAA"):
        with pytest.raises(UsageError):
            parse_public_key(bad)
    with pytest.raises(UsageError):
        fingerprint("ssh-ed25519 !!!")


def test_the_pinned_type_is_what_is_offered() -> None:
    assert host_key_algorithms(ED) == ["ssh-ed25519"]
    assert host_key_algorithms(RSA) == ["rsa-sha2-512", "rsa-sha2-256"]
    assert host_key_algorithms(None)[0] == "ssh-ed25519"


def test_a_login_describes_itself_without_secrets(tmp_path: Path) -> None:
    login = Login(client_keys=(Path("/k"),), agent=True, password=Secret("hunter2"))
    assert login.describe() == "key /k, the agent's keys, a password"
    assert "hunter2" not in repr(login)
    assert Login().describe() == "nothing (no key, agent or password was given)"
    config = tmp_path / "config"
    config.touch()
    assert Login(config_files=(config,)).describe() == "the keys of the SSH configuration"
