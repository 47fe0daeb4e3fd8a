"""Twenty real nodes: added side by side, and probed beside what ansible takes to gather its facts of them.

Root on Linux only, like the fleet of the tests.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from llmgw.core.findings import judge
from llmgw.model.node import Address, NodeOptions
from llmgw.model.probe import Probe
from llmgw.nodes.remote import probe_args
from llmgw.nodes.replies import typed
from llmgw.ssh.connection import Connection, connect
from llmgw.ssh.identity import Login
from tests.bench.load import cpu_seconds
from tests.bench.plane import LLAMACPP
from tests.bench.proxies import CACHE, Missing
from tests.fleet.machines import Fleet, Machine
from tests.fleet.plane import Plane

COUNT = 20
ANSIBLE = "ansible-core==2.19.14"
PORTS = (41000, 41999)
LIMITS = "at most 0.15 of the wall time and 0.02 of the CPU"


@dataclass(frozen=True)
class Cost:
    wall: float
    """Seconds."""
    cpu: float
    """Seconds of the process that asks; the nodes' own work is not in it."""


def section(rounds: int = 3) -> str:
    """The report's section; says so where it cannot be measured."""
    title = "## Twenty nodes\n\n"
    if os.geteuid() != 0:
        return title + "Not measured: the fleet of real nodes needs root.\n"
    with _stage() as (plane, machines, fleet):
        plane.start()
        words = ("node", "add", *(machine.target for machine in machines[1:]), "-i", str(fleet.key))
        one = _took(lambda: plane.llmgw("node", "add", machines[0].target, "-i", str(fleet.key)))
        others = _took(lambda: plane.llmgw(*words))
        ours = _median(asyncio.run(_probes(machines, fleet, rounds)))
        asked = _median([_asked(plane, machines) for _ in range(rounds)])
        try:
            theirs = _median([_ansible(machines, fleet) for _ in range(rounds)])
        except Missing as missing:
            beside = f"ansible was not measured: {missing}.\n"
        else:
            beside = (
                f"- llmgw to ansible: {ours.wall / theirs.wall:.3f} of the wall time and {ours.cpu / theirs.cpu:.4f} "
                f"of the CPU ({LIMITS} are promised).\n"
            )
            beside = f"| `ansible -m setup`, {COUNT} forks | {theirs.wall:.2f} s | {theirs.cpu:.2f} s |\n\n" + beside
    return (
        f"{title}{COUNT} real sshd nodes on this machine, whose two cores also do the nodes' own work. A probe of all "
        "of\nthem on open connections, beside ansible's facts with pipelining and open connections (ControlPersist); "
        f"the CPU\nis that of the side that asks. Median of {rounds}.\n\n"
        "| all nodes once | wall | CPU |\n|---|---|---|\n"
        f"| llmgw, a full probe, judged | {ours.wall:.2f} s | {ours.cpu:.3f} s |\n"
        "| llmgw, over the admin API: also engines listed, differences told, stored, all details answered "
        f"| {asked.wall:.2f} s | {asked.cpu:.3f} s |\n{beside}"
        f"- `node add` of one node to ready, the real engine in the mirror: {one:.1f} s.\n"
        f"- `node add` of {COUNT - 1} more in one command, side by side, to ready: {others:.1f} s.\n"
    )


@contextmanager
def _stage() -> Iterator[tuple[Plane, list[Machine], Fleet]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fleet").mkdir()
        fleet = Fleet(folder / "fleet")
        plane = Plane(
            folder / "home", engines={"llamacpp": [LLAMACPP]}, mirror=CACHE.parent / "mirror", user_home=folder
        )
        try:
            yield plane, [fleet.add(f"node{number:02}") for number in range(COUNT)], fleet
        finally:
            plane.close()
            fleet.destroy()


def _took(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _median(costs: list[Cost]) -> Cost:
    return Cost(median(cost.wall for cost in costs), median(cost.cpu for cost in costs))


async def _probes(machines: list[Machine], fleet: Fleet, rounds: int) -> list[Cost]:
    """What the control plane does every ten minutes: the probe of each node, read and judged."""

    async def trust(host: str, key: str, fingerprint: str) -> bool:
        return True

    async def probe(connection: Connection) -> None:
        document = await connection.run_script("probe", probe_args(NodeOptions(), "", PORTS), deadline=60)
        judge(typed(Probe, document, "it"), None, None)

    login = Login(client_keys=(fleet.key,))
    addresses = [Address(host=machine.address, user=machine.user) for machine in machines]
    connections = [await connect(address, login=login, host_key=None, ask=trust) for address in addresses]
    costs = []
    for _ in range(rounds):
        wall, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(probe(connection) for connection in connections))
        costs.append(Cost(time.monotonic() - wall, time.process_time() - cpu))
    for connection in connections:
        connection.abort()
    return costs


def _asked(plane: Plane, machines: list[Machine]) -> Cost:
    """A look at every node at once, as an operator may ask for."""
    pid = plane.process.pid  # type: ignore[union-attr]
    before = cpu_seconds([pid])
    with ThreadPoolExecutor(len(machines)) as pool:
        asked = [f"/nodes/{machine.name}/probe" for machine in machines]
        wall = _took(lambda: list(pool.map(lambda path: plane.admin(path, method="POST"), asked)))
    return Cost(wall, cpu_seconds([pid]) - before)


def _ansible(machines: list[Machine], fleet: Fleet) -> Cost:
    program = _installed()
    hosts = ",".join(machine.address for machine in machines)
    control = fleet.folder / "cp"
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(fleet.folder),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_HOST_KEY_CHECKING": "0",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control),
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
    }
    common = (str(program), "all", "-i", f"{hosts},", "-u", "root", "--private-key", str(fleet.key), "-f", str(COUNT))

    def gather(module: str) -> None:
        done = subprocess.run((*common, "-m", module), env=environ, capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"it ended with {done.returncode}: {done.stderr[-300:]}")

    gather("ping")  # opens the connections
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = _took(lambda: gather("setup"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _installed() -> Path:
    """ansible in a virtual environment of its own, kept in the cache."""
    program = CACHE / "ansible" / "bin" / "ansible"
    if not program.exists():
        for argv in (
            (sys.executable, "-m", "venv", str(CACHE / "ansible")),
            (str(CACHE / "ansible/bin/pip"), "install", "-q", ANSIBLE),
        ):
            done = subprocess.run(argv, capture_output=True, text=True)
            if done.returncode:
                raise Missing(f"{ANSIBLE} cannot be installed: {done.stderr.strip()[-200:]}")
    return program
