"""Connections that die without a word: found, opened again, and no engine the worse for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fleet.machines import Fleet, Machine
from tests.fleet.middlebox import Middlebox
from tests.fleet.plane import Plane, sim
from tests.fleet.test_links import ask


@dataclass
class Served:
    """A node behind a middlebox with a replica on it, its control plane, and a key to ask with."""

    plane: Plane
    box: Middlebox
    machine: Machine
    key: str

    def lost_and_found(self) -> None:
        self.plane.until(lambda: self.plane.replicas()[0]["state"] == "lost", "the connection is found dead", limit=15)
        self.plane.until(lambda: self.plane.ready("echo"), "the replica is adopted", limit=30)
        assert ask(self.plane, self.key)


@pytest.fixture(scope="module")
def served(fleet: Fleet, mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("middlebox")
    (folder / "operator").mkdir()
    # A control plane that looks every second whether its connections live.
    plane = Plane(
        folder / "home",
        engines={"sim": ["builtin"]},
        mirror=mirror,
        user_home=folder / "operator",
        ssh={"keepalive": 1},
    )
    machine = fleet.add("behind")
    box = Middlebox(machine)
    try:
        plane.start()
        plane.llmgw("node", "add", box.target, "-i", str(fleet.key))
        plane.add_model(folder, sim("echo"))
        yield Served(plane, box, machine, plane.key())
    finally:
        plane.close()
        box.close()
        fleet.remove(machine)


def test_a_firewall_that_forgets_idle_connections_forgets_none_of_ours(served: Served):
    connections, served.box.idle = served.box.accepted, 2.5
    time.sleep(6)
    assert ask(served.plane, served.key)
    assert served.box.accepted == connections
    served.box.idle = None


def test_half_open_connections_are_found_and_opened_again(served: Served):
    engines = served.machine.engines()
    served.box.forget()
    served.lost_and_found()
    assert served.machine.engines() == engines


def test_a_server_that_hangs_is_found_and_asked_anew(served: Served):
    """sshd's process for our connection is stopped: TCP still acknowledges, nobody answers."""
    engines, hung = served.machine.engines(), served.machine.processes("sshd: root@notty")
    assert hung
    served.machine.shell(f"kill -STOP {' '.join(map(str, hung))}")
    served.lost_and_found()
    assert served.machine.engines() == engines
