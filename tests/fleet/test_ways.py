"""OpenSSH's configuration as people have it: aliases, includes, ports, jump hosts, IPv6; and `node show` says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.machines import BRIDGE, Fleet, Machine, run
from tests.fleet.plane import Plane, sim
from tests.fleet.test_links import ask

NET6 = "fd00:11:77"


@pytest.fixture
def configured(plane: Plane) -> Callable[..., Path]:
    """`configured(text, file=text, …)` writes the operator's ~/.ssh/config and files beside it."""
    folder = Path(plane.environ["HOME"]) / ".ssh"
    folder.mkdir(mode=0o700)

    def write(text: str, **files: str) -> Path:
        (folder / "config").write_text(text)
        for name, content in files.items():
            (folder / name).write_text(content)
        return folder

    return write


def known(*machines: Machine) -> str:
    """known_hosts with the keys of these machines."""
    keys = [machine.upper / "etc/ssh/ssh_host_ed25519_key.pub" for machine in machines]
    return "".join(
        f"{machine.address} {' '.join(key.read_text().split()[:2])}\n"
        for machine, key in zip(machines, keys, strict=True)
    )


def settings(plane: Plane, node: str) -> dict[str, tuple[str, str]]:
    """What `node show` says of how it is reached: setting → (value, source)."""
    shown = json.loads(plane.llmgw("node", "show", node, "--json").stdout)
    return {one["name"]: (one["value"], one["source"]) for one in shown["ssh"]}


def test_an_alias_with_all_that_goes_with_it(
    plane: Plane, machines: list[Machine], fleet: Fleet, configured: Callable[..., Path], tmp_path: Path
):
    """Include, Port, User, IdentityFile, HostKeyAlias: nothing is typed but the alias."""
    alpha = machines[0]
    alpha.shell(
        "/usr/sbin/sshd -p 2222 -o UsePAM=no -o PidFile=/run/second.pid -o HostKey=/etc/ssh/ssh_host_ed25519_key"
    )
    folder = configured(
        f"Include {tmp_path}/operator/.ssh/lab\nHost *\n  ServerAliveInterval 30\n",
        lab=f"Host bigbox\n  HostName {alpha.address}\n  Port 2222\n  User root\n  IdentityFile {fleet.key}\n"
        "  HostKeyAlias bigbox.lab\n",
    )
    try:
        plane.start()
        done = plane.llmgw("node", "add", "bigbox")
        assert done.stdout.strip() == "alpha"
        plane.add_model(tmp_path, sim("echo"))
        assert ask(plane, plane.key())
        found = settings(plane, "alpha")
        config = str(folder / "config")
        assert found["Host"] == ("bigbox", "node add")
        assert found["HostName"] == (alpha.address, config)
        assert found["Port"] == ("2222", config)
        assert found["User"] == ("root", config)
        assert found["HostKeyAlias"] == ("bigbox.lab", config)
        assert found["IdentityFile"][1] == "the control plane's own"
        shown = plane.llmgw("node", "show", "alpha").stdout
        assert re.search(rf"^Port +2222  \({re.escape(config)}\)$", shown, re.MULTILINE)
    finally:
        alpha.shell("kill $(cat /run/second.pid)")


def test_a_host_key_known_by_its_alias(make_plane: Callable[..., Plane], machines: list[Machine], fleet: Fleet):
    alpha = machines[0]
    plane = make_plane({"sim": ["builtin"]}, ssh={"new_hosts": "refuse"})
    folder = Path(plane.environ["HOME"]) / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "config").write_text(
        f"Host bigbox\n  HostName {alpha.address}\n  User root\n  IdentityFile {fleet.key}\n  HostKeyAlias big.lab\n"
    )
    (folder / "known_hosts").write_text(known(alpha).replace(alpha.address, "big.lab"))
    plane.llmgw("node", "add", "--check", "bigbox")


def test_two_jump_hosts_one_of_them_dying(
    make_plane: Callable[..., Plane], machines: list[Machine], fleet: Fleet, tmp_path: Path
):
    alpha, first, second = machines
    plane = make_plane({"sim": ["builtin"]}, ssh={"keepalive": 1})
    folder = Path(plane.environ["HOME"]) / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "config").write_text(
        f"Host first\n  HostName {first.address}\nHost second\n  HostName {second.address}\n"
        f"Host behind\n  HostName {alpha.address}\n  ProxyJump first,second\n"
        f"Host *\n  User root\n  IdentityFile {fleet.key}\n"
    )
    (folder / "known_hosts").write_text(known(*machines))
    plane.start()
    plane.llmgw("node", "add", "behind")
    plane.add_model(tmp_path, sim("echo"))
    key, engines = plane.key(), alpha.engines()
    assert ask(plane, key)
    assert settings(plane, "alpha")["ProxyJump"] == ("first,second", str(folder / "config"))
    second.cut()
    plane.until(lambda: plane.node("alpha")["link"] == "down", "it is out of reach", limit=20)
    assert plane.replicas()[0]["state"] == "lost"
    second.heal()
    plane.until(lambda: plane.ready("echo"), "it is back", limit=40)
    assert ask(plane, key)
    assert alpha.engines() == engines


def test_a_jump_host_that_nobody_knows_is_named(
    plane: Plane, machines: list[Machine], fleet: Fleet, configured: Callable[..., Path]
):
    alpha, first = machines[:2]
    configured(
        f"Host behind\n  HostName {alpha.address}\n  ProxyJump root@{first.address}\n"
        f"Host *\n  User root\n  IdentityFile {fleet.key}\n",
        known_hosts=known(alpha),
    )
    before = alpha.tree(), first.tree()
    done = plane.llmgw("node", "add", "behind", check=False)
    assert done.returncode == 4
    assert "jump host" in done.stderr
    assert (alpha.tree(), first.tree()) == before


@pytest.fixture
def six(machines: list[Machine]) -> Iterator[list[str]]:
    """A global IPv6 address of alpha, and one of beta that only means something together with our zone."""
    alpha, beta = (("ip", "-n", machine.namespace) for machine in machines[:2])
    addresses = [
        (("ip",), f"{NET6}::1/64", BRIDGE),
        (("ip",), "fe80::1/64", BRIDGE),
        (alpha, f"{NET6}::11/64", "eth0"),
        (beta, "fe80::12/64", "eth0"),
    ]
    for where, address, device in addresses:
        run(*where, "addr", "add", address, "dev", device, "nodad")
    yield [f"{NET6}::11", f"fe80::12%{BRIDGE}"]
    for where, address, device in addresses:
        run(*where, "addr", "del", address, "dev", device)


def test_ipv6_with_and_without_a_zone(plane: Plane, six: list[str], fleet: Fleet, tmp_path: Path):
    plane.start()
    plane.llmgw("node", "add", *(f"root@[{address}]:22" for address in six), "-i", str(fleet.key))
    assert [plane.node(name)["address"]["host"] for name in ("alpha", "beta")] == six
    plane.add_model(tmp_path, sim("echo", replicas=2))
    key = plane.key()
    for _ in range(4):
        assert ask(plane, key)
    assert len(plane.served()) == 2
    again = plane.llmgw("node", "add", *(f"root@{address}" for address in six), "-i", str(fleet.key))
    assert "not known yet" not in again.stderr
