"""Where the control plane listens."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from llmgw.config.settings import parse_listen
from llmgw.host import processes
from llmgw.host.checks import Here, Said, Sentence, check


def _wanted(here: Here) -> Iterator[tuple[str, str, int]]:
    """(option, host, port) of each TCP listener; without a port 0, which takes any."""
    settings = here.effective
    for option, listen in (("listen", settings.listen), ("admin_listen", settings.admin_listen)):
        if listen is not None:
            host, port = parse_listen(listen)
            if port:
                yield option, host, port


def _ours(here: Here, option: str, port: int) -> bool:
    """Our own server listens there."""
    said = here.server.whoami.get(option) if here.server else None
    return isinstance(said, str) and said.rpartition(":")[2] == str(port)


@check("error", "Stop what uses it, or set the option to another port.")
def port_in_use(here: Here) -> Said:
    """Something else listens where the server would: a start is refused."""
    found: list[Sentence] = []
    for option, host, port in _wanted(here):
        if _ours(here, option, port):
            continue
        try:
            addresses = processes.resolved(host)
        except OSError:
            continue  # listen_unknown says so
        for each in processes.listeners(port):
            if not any(processes.overlap(address, each.address) for address in addresses):
                continue
            pid = processes.owner(each.inode)
            if pid is not None and pid == here.held_by:
                continue
            who = f"pid {pid} ({processes.name(pid)})" if pid else f"a process of uid {each.uid}"
            fix = f"Stop it, or set {option} in llmgw.yaml to another port."
            found.append((f"{option}: port {port} is used by {who} on {each.address}", fix))
            break
    return found


@check("error", "Take a port from 1024 on, or a reverse proxy.")
def port_privileged(here: Here) -> Said:
    """Ports below a limit of the kernel's (1024) are root's."""
    if here.uid == 0:
        return None
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    except (OSError, ValueError):
        first = 1024
    capable = _may_bind_low()
    return [
        f"{option}: port {port} is root's here (those from {first} on are free)"
        for option, _, port in _wanted(here)
        if port < first and not capable and not _ours(here, option, port)
    ]


def _may_bind_low() -> bool:
    """CAP_NET_BIND_SERVICE, number 10 of capabilities(7): systemd gives it as an ambient capability."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 10 & 1)
    return False


@check("error", "Name an address of this machine; 0.0.0.0 means all of them.")
def listen_unknown(here: Here) -> Said:
    """An address that this machine does not have cannot be listened on; a start is refused."""
    found: list[Sentence] = []
    for option, host, _ in _wanted(here):
        try:
            addresses = processes.resolved(host)
        except OSError as exc:
            found.append(f"{option}: nobody knows the name {host}: {exc.strerror or exc}")
            continue
        if not any(map(_here, addresses)):
            found.append(f"{option}: {host} is no address of this machine")
    return found


def _here(address: str) -> bool:
    """Port 0 asks for the address alone: no port that anybody wants is taken, not even for an instant."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError as exc:
            return exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


@check("error", "Give them different ports.")
def ports_equal(here: Here) -> Said:
    """The endpoint and the admin API cannot listen on one port; a start is refused."""
    wanted = list(_wanted(here))
    if len(wanted) < 2 or wanted[0][2] != wanted[1][2]:
        return None
    if {wanted[0][1], wanted[1][1]} & {"0.0.0.0", "::"} or wanted[0][1] == wanted[1][1]:
        return f"listen and admin_listen both take port {wanted[0][2]}"
    return None


@check("note", "Start the server again; engines go on running.")
def listen_differs(here: Here) -> Said:
    """The server listens elsewhere than the configuration says: it was started with another, or before the change."""
    if here.server is None or here.settings is None:
        return None
    found: list[Sentence] = []
    for option, host, port in _wanted(here):
        said = here.server.whoami.get(option)
        if isinstance(said, str) and said.rpartition(":")[2] != str(port):
            found.append(f"the server has {option} {said}, the configuration {host}:{port}")
    return found


@check("note", "llmgw key create NAME")
def no_keys(here: Here) -> Said:
    """The endpoint lets nobody in without an API key, and there is none."""
    if here.state is None or here.state.keys != 0:
        return None
    return "there is no API key: the endpoint refuses everybody"
