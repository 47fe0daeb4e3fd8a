"""Three machines for the whole session; a control plane and clean nodes for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.machines import Fleet, Machine
from tests.fleet.plane import Plane

LLAMACPP = "pypi:xllamacpp==2026.10.11549"


def _reason() -> str | None:
    if os.geteuid() != 0:
        return "the fleet of real nodes needs root (network namespaces, overlay mounts)"
    missing = [program for program in ("ip", "/usr/sbin/sshd", "unshare", "nsenter") if shutil.which(program) is None]
    return f"the fleet of real nodes needs {', '.join(missing)}" if missing else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.fleet)


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if reason := _reason():
        pytest.skip(reason)
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        for name in ("alpha", "beta", "gamma"):
            made.add(name)
        yield made
    finally:
        made.destroy()


@pytest.fixture
def machines(fleet: Fleet) -> Iterator[list[Machine]]:
    """Running, reachable, without anything of an earlier test on them."""
    yield fleet.machines[:3]
    for machine in fleet.machines[:3]:
        machine.heal()
        for pid in machine.engines():
            machine.shell(f"kill -9 {pid} || true")
        machine.shell("rm -rf /root/.local /root/.ssh/authorized_keys.*")
        key = fleet.key.with_suffix(".pub").read_text()
        machine.shell(f"printf %s '{key}' > /root/.ssh/authorized_keys")


@pytest.fixture
def make_plane(fleet: Fleet, tmp_path: Path, mirror: Path) -> Iterator[Callable[..., Plane]]:
    """`make_plane(engines, **settings)` is a control plane, not started yet."""
    made: list[Plane] = []

    def make(engines: dict[str, list[str]], **settings: Any) -> Plane:
        folder = tmp_path / f"plane{len(made)}" if made else tmp_path
        user_home = folder / "operator"
        user_home.mkdir(parents=True)
        made.append(Plane(folder / "home", engines=engines, mirror=mirror, user_home=user_home, **settings))
        return made[-1]

    yield make
    for plane in made:
        plane.close()


@pytest.fixture
def plane(make_plane: Callable[..., Plane]) -> Plane:
    """A control plane with the simulated engine, not started yet."""
    return make_plane({"sim": ["builtin"]})


@pytest.fixture
def real_plane(make_plane: Callable[..., Plane]) -> Plane:
    """A control plane with the real llama.cpp engine."""
    return make_plane({"llamacpp": [LLAMACPP]})


@pytest.fixture
def add(fleet: Fleet):  # type: ignore[no-untyped-def]
    """`add(plane, machine, …)` is `llmgw node add root@… -i KEY`."""

    def adding(plane: Plane, *machines: Machine, words: tuple[str, ...] = ()) -> list[str]:
        hosts = [f"root@{machine.address}" for machine in machines]
        done = plane.llmgw("node", "add", *hosts, "-i", str(fleet.key), *words)
        return done.stdout.split()

    return adding
