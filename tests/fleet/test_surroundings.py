"""Every surrounding of the list on a real SSH server: the node serves, or what is wrong is named before a byte is
written.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.machines import Fleet, Machine
from tests.fleet.plane import Plane, sim
from tests.fleet.surroundings import SURROUNDINGS, Surrounding
from tests.fleet.test_main_job import ask

HERE = Path(__file__).parent
TRIED = [one for one in SURROUNDINGS if one.test is None]


@dataclass
class Outcome:
    """What became of one machine."""

    machine: Machine
    looked: dict[str, Any] = field(default_factory=dict)
    """Its part of what `node add --check --json` printed."""
    changed_by_look: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    changed_by_add: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    status: int | None = None
    said: str = ""
    node: dict[str, Any] = field(default_factory=dict)
    served: int = 0


def difference(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {
        name: (before.get(name), after.get(name))
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, mirror: Path
) -> Iterator[dict[str, Outcome]]:
    """All machines at once, as a site that is being taken over: looked at, added, asked."""
    asked = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = {each.params["one"].name for each in asked}
    chosen = [one for one in TRIED if one.name in wanted and not (one.needs and not Path(one.needs).exists())]
    folder = tmp_path_factory.mktemp("surroundings")
    plane = Plane(folder / "home", engines={"sim": ["builtin"]}, mirror=mirror, user_home=folder)
    found: dict[str, Outcome] = {}
    try:
        for one in chosen:
            machine = fleet.add(one.name, boot=False)
            found[one.name] = Outcome(machine)
            one.make(machine)
            machine.boot(wait=False)
        for one in chosen:
            found[one.name].machine.await_sshd()
            one.after(found[one.name].machine)
        plane.start()
        _look(plane, fleet, chosen, found)
        _add(plane, fleet, chosen, found)
        _serve(plane, folder, [one for one in chosen if one.serves], found)
        yield found
    finally:
        plane.close()
        for outcome in found.values():
            fleet.remove(outcome.machine)


def _groups(chosen: list[Surrounding]) -> list[list[Surrounding]]:
    """Those that are given the same options, and that are looked at with the same end."""
    groups: dict[tuple[object, ...], list[Surrounding]] = defaultdict(list)
    for one in chosen:
        groups[one.words, one.fit].append(one)
    return list(groups.values())


def _command(plane: Plane, fleet: Fleet, group: list[Surrounding], found: dict[str, Outcome], *words: str) -> Any:
    hosts = [found[one.name].machine.target for one in group]
    return plane.llmgw("node", "add", *words, *hosts, "-i", str(fleet.key), *group[0].words, check=False)


def _look(plane: Plane, fleet: Fleet, chosen: list[Surrounding], found: dict[str, Outcome]) -> None:
    before = {name: outcome.machine.tree() for name, outcome in found.items()}
    reports: dict[str, dict[str, Any]] = {}
    for group in _groups(chosen):
        done = _command(plane, fleet, group, found, "--check", "--json")
        assert done.returncode == (0 if group[0].fit else 4), done.stderr
        reports |= {report["host"]: report for report in json.loads(done.stdout)}
    for name, outcome in found.items():
        outcome.looked = reports[outcome.machine.target]
        outcome.changed_by_look = difference(before[name], outcome.machine.tree())


def _add(plane: Plane, fleet: Fleet, chosen: list[Surrounding], found: dict[str, Outcome]) -> None:
    """Those that are to serve side by side in one command; the others one by one, for what each of them says."""
    before = {name: outcome.machine.tree() for name, outcome in found.items()}

    def alone(one: Surrounding) -> None:
        done = _command(plane, fleet, [one], found)
        outcome = found[one.name]
        outcome.status, outcome.said = done.returncode, done.stderr
        outcome.changed_by_add = difference(before[one.name], outcome.machine.tree())

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(alone, [one for one in chosen if not one.serves]))
    for group in _groups([one for one in chosen if one.serves]):
        done = _command(plane, fleet, group, found)
        for one in group:
            target = found[one.name].machine.target
            found[one.name].said = "\n".join(line for line in done.stderr.splitlines() if target in line)


def _serve(plane: Plane, folder: Path, serving: list[Surrounding], found: dict[str, Outcome]) -> None:
    """One replica on each node; as many questions that each of them is asked some."""
    nodes = {node["id"]: node for node in plane.json("node", "list")}
    for name, outcome in found.items():
        outcome.node = nodes.get(name, {})
    ready = [one for one in serving if nodes.get(one.name, {}).get("state") == "ready"]
    if not ready:
        return
    plane.add_model(folder, sim("echo", replicas=len(ready)))
    asyncio.run(ask(plane, plane.key(), "echo", 4 * len(ready)))
    places = {replica["id"]: replica["shards"][0]["node"] for replica in plane.replicas()}
    for replica, count in plane.served().items():
        found[places[replica]].served += count
    for one in ready:
        found[one.name].node = {**found[one.name].node, "detail": plane.admin(f"/nodes/{one.name}")}


def test_names_are_hostnames_and_tests_exist():
    names = [one.name for one in SURROUNDINGS]
    assert len(set(names)) == len(names)
    for one in SURROUNDINGS:
        if one.test is not None:
            file, _, test = one.test.partition("::")
            assert f"def {test}(" in (HERE / file).read_text(), one.test


@pytest.mark.parametrize("one", TRIED, ids=lambda one: one.name)
def test_it_serves_or_is_named(one: Surrounding, outcomes: dict[str, Outcome]):
    if one.name not in outcomes:
        pytest.skip(f"{one.what}: {one.needs} is not installed here")
    outcome = outcomes[one.name]
    assert outcome.changed_by_look == {}
    _named(one, outcome)
    if one.serves:
        assert outcome.node.get("state") == "ready", outcome.said
        assert outcome.served >= 1
        path = outcome.node["detail"]["data_path"]
        assert path == ("relay" if one.relay else "direct-tcpip")
        return
    assert outcome.status == one.status, outcome.said
    assert "Traceback" not in outcome.said
    assert outcome.node == {}
    assert outcome.changed_by_add == {}


def _named(one: Surrounding, outcome: Outcome) -> None:
    """The look says it, with the right code, and how to mend it."""
    look = outcome.looked
    codes = {finding["code"]: finding for finding in look["findings"]}
    if look["failed"] is not None:
        codes[look["failed"]["code"]] = look["failed"]
    assert look["ok"] is one.fit, look
    if one.code is None:
        worse = {code for code, finding in codes.items() if finding.get("severity") != "note"}
        assert worse == set(), look
        return
    if one.fit and one.severity is None:  # what only `node add` can try
        assert one.do.replace("USER", outcome.machine.user) in outcome.said
        return
    assert one.code in codes, look
    if one.severity is not None:
        assert codes[one.code]["severity"] == one.severity
        if one.severity == "error":
            assert codes[one.code]["fix"]
