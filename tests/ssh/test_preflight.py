"""A preflight through a real sshd: it finds the server above it, that server's own file and options, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw.model.node import NodeOptions
from llmgw.nodes.examine import examine
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login

from .conftest import Sshd

PORTS = (41000, 41999)


async def look(server: Sshd, login: Login) -> dict[str, str]:
    """The findings of a node behind this server, by code with their sentence."""
    connection = await connect(server.address, login=login, host_key=server.host_key)
    try:
        found = await examine(connection, NodeOptions(), where="n1", node_id="n1", ports=PORTS)
    finally:
        await connection.close()
    assert found.preflight is not None
    assert found.preflight.sshd is not None, found.preflight.unknown
    assert found.preflight.sshd.server == "openssh"
    return {one.code: one.message for one in found.problems}


async def test_a_plain_server_gives_no_finding_about_itself(sshd: Callable[..., Sshd], login: Login) -> None:
    found = await look(sshd(), login)
    about = {"pubkey_off", "forwarding_forbidden", "forwarding_limited", "max_sessions_small", "max_startups_small"}
    assert not about & set(found)
    # This one reads its keys elsewhere.
    assert "authorized_keys" in found["keys_elsewhere"]


async def test_what_the_server_grants_is_read_from_it(sshd: Callable[..., Sshd], login: Login) -> None:
    server = sshd(MaxSessions=1, AllowTcpForwarding="no", MaxStartups="2:50:10")
    found = await look(server, login)
    assert "(AllowTcpForwarding no)" in found["forwarding_forbidden"]
    assert "grants 1 session a connection" in found["max_sessions_small"]
    assert "MaxStartups 2:50:10" in found["max_startups_small"]


@pytest.mark.parametrize("line", ["PermitOpen 10.0.0.1:80", "Match User *\nPermitOpen 10.0.0.1:80"])
async def test_a_block_for_this_user_counts(sshd: Callable[..., Sshd], login: Login, line: str) -> None:
    name, _, value = line.partition(" ")
    found = await look(sshd(**{name: value}), login)
    assert "10.0.0.1:80" in found["forwarding_limited"]
