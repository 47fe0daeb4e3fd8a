"""Every recorded machine of tests/machines gives exactly the document beside it.

`LLMGW_WRITE_EXPECTED=1` writes the documents anew: read the difference before it is committed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from machines.layout import HERE, Layout, load, names

from llmgw.model.probe import Probe

from .conftest import Node, tree

RUNNER = {
    "schema", "at", "hostname", "boot_id", "python", "user", "home_mode", "load", "disks", "owner", "processes",
    "ports_in_use",
}  # fmt: skip
"""What the machine that runs the tests says of itself."""


def probe(node: Node, root: Path, name: str) -> Any:
    machine = load(name)
    Layout(root, node.home).build(machine)
    node.env.update(machine.get("env", {}))
    given = {"_root": str(root), "_arch": machine.get("arch", "x86_64"), "_addresses": machine.get("addresses", {})}
    before = tree(root)
    found = node.call("probe", **given, **machine.get("args", {}))
    assert tree(root) == before, "nothing is written"
    Probe.model_validate(found)
    return json.loads(json.dumps(found).replace(str(root), ""))


def particular(found: dict[str, Any]) -> dict[str, Any]:
    """What of the document is told by the recorded machine."""
    kept = {key: value for key, value in found.items() if key not in RUNNER}
    kept["cpu"] = {key: value for key, value in found["cpu"].items() if key != "usable"}
    kept["limits"] = {"cpu_quota": found["limits"]["cpu_quota"]}
    kept["root"] = {key: found["root"][key] for key in ("fs", "shared")} if found["root"]["shared"] else None
    kept["kernel_modules"] = sorted(name for name, there in found["kernel_modules"].items() if there)
    if found["libc"]["kind"] != "musl":
        del kept["libc"]
    return kept


def printed(document: dict[str, Any]) -> str:
    """One line a fact, and one an item of a list: short, and a difference is seen."""
    lines = []
    for key, value in sorted(document.items()):
        if isinstance(value, list | dict) and value:
            opening, closing = "[]" if isinstance(value, list) else "{}"
            items = [json.dumps(each) for each in value] if isinstance(value, list) else [
                f"{json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()
            ]  # fmt: skip
            text = opening + "\n  " + ",\n  ".join(items) + "\n " + closing
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@pytest.mark.parametrize("name", names())
def test_a_recorded_machine(name: str, node: Node, tmp_path: Path) -> None:
    found = particular(probe(node, tmp_path / "machine", name))
    expected = HERE / name / "expected.json"
    if os.environ.get("LLMGW_WRITE_EXPECTED"):
        expected.write_text(printed(found))
    assert found == json.loads(expected.read_text())


def test_there_are_at_least_forty_and_each_says_where_it_is_from() -> None:
    machines = [load(name) for name in names()]
    assert len(machines) >= 40
    for machine in machines:
        assert all(each.startswith("http") for each in machine["source"])
