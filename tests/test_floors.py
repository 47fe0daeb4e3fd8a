"""The house holds: who may import whom, who may touch what, how long a room may be."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.assets import SHARED_PARTS

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    "cli": 7,
    "__main__": 7,
    "tui": 6,
    "server": 5,
    "loops": 4,
    "gateway": 4,
    "admin": 4,
    "nodes": 3,
    "mirror": 3,
    "host": 3,
    "ssh": 2,
    "store": 2,
    "pki": 2,
    "core": 1,
    "engines": 1,
    "protocol": 1,
    "config": 1,
    "model": 0,
    "errors": 0,
    "clock": 0,
    "assets": 0,
    "": 0,  # llmgw/__init__.py itself: the version and nothing else
}

SIDEWAYS = {
    ("__main__", "cli"): "`python -m llmgw` is the command line",
    ("core", "engines"): "placement asks an engine how much memory a model takes: pure on both sides",
}
"""Imports within a floor that are allowed, and why. Anything else goes down."""

WHY_NOT = {
    "cli": "a face is called by people, never by the parts it shows",
    "__main__": "it is where the process begins; nothing is above it",
    "tui": "the dashboard is a client of the admin API; what needs it is another face",
    "server": "only whoever starts a process knows how it is wired",
    "loops": "the HTTP edges are fed by holders in model/, the stories are told what to do",
    "gateway": "the hot path is fed and asks nobody; it can be replaced whole",
    "admin": "it is handed a Control; what it serves does not know that it is served",
    "nodes": "a story is begun by a loop or a command, never by what it uses",
    "mirror": "a file is handed across as a record; who wants it knows where it comes from",
    "host": "what is done to this machine is done on an operator's word",
    "ssh": "decisions and records know nothing of connections",
    "store": "decisions and records know nothing of where they are kept",
    "pki": "keys are made by those who own a home, not by the parts they open",
    "core": "what is decided from must not depend on the decisions",
    "engines": "records describe an engine; they do not know how one is started",
    "protocol": "records have no wire form of their own",
    "config": "records are the same however they were configured",
    "model": "it imports only its own floor",
    "errors": "it imports only its own floor",
    "clock": "it imports only its own floor",
    "assets": "it imports only its own floor",
    "": "it imports nothing",
}
"""For each room the reason why nothing on its own floor or below may import it."""

OWNERS = {"asyncssh": "ssh", "sqlite_utils": "store", "cryptography": "pki"}
"""Libraries that one room alone knows."""

STANDARD_LIBRARY = sys.stdlib_module_names
LIMIT = 350


def modules() -> list[Path]:
    return sorted((ROOT / "llmgw").rglob("*.py"))


def room(path: Path) -> str:
    parts = path.relative_to(ROOT / "llmgw").with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a module imports, wherever in it that stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written from the top"
            assert node.module
            if node.module == "llmgw":
                yield from ((node.lineno, f"llmgw.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def target(name: str) -> str | None:
    """The room of ours that a dotted name lies in; None for a library."""
    parts = name.split(".")
    if parts[0] != "llmgw":
        return None
    if len(parts) == 1 or parts[1].startswith("__"):
        return parts[1] if len(parts) > 1 and parts[1] == "__main__" else ""
    return parts[1]


def allowed(importer: str, imported: str) -> bool:
    if importer == imported or (importer, imported) in SIDEWAYS:
        return True
    above, below = FLOORS[importer], FLOORS[imported]
    return below < above or above == below == 0


def test_every_room_has_a_floor_and_a_reason() -> None:
    assert {room(path) for path in modules()} <= set(FLOORS)
    assert set(WHY_NOT) == set(FLOORS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_floors_below(path: Path) -> None:
    here = room(path)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: {here or 'llmgw'} (floor {FLOORS[here]}) may not import "
        f"{there} (floor {FLOORS[there]}): {WHY_NOT[there]}"
        for line, name in imports(path)
        if (there := target(name)) is not None and not allowed(here, there)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_exception_is_left_that_nobody_needs() -> None:
    used = {(room(path), target(name)) for path in modules() for _, name in imports(path)}
    assert set(SIDEWAYS) <= used


def test_no_circle_of_modules() -> None:
    """Also not one that is tied by annotations only: whoever reads one file of a circle has to read them all."""
    files = {path for path in modules() if path.name != "__init__.py"}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    below: dict[str, set[str]] = {}
    for name, path in names.items():
        imported = {full for _, full in imports(path)}
        below[name] = {other for full in imported for other in (full, full.rpartition(".")[0]) if other in names}
    while ends := {name for name, others in below.items() if not others & below.keys()}:
        below = {name: others for name, others in below.items() if name not in ends}
    assert not below, f"these import each other: {', '.join(sorted(below))}"


@pytest.mark.parametrize(("library", "owner"), OWNERS.items())
def test_only_one_room_knows_the_library(library: str, owner: str) -> None:
    users = {room(path) for path in modules() for _, name in imports(path) if name.split(".")[0] == library}
    assert users == {owner}


def test_core_and_model_do_nothing() -> None:
    """No await, no clock, no I/O where decisions are made."""
    forbidden = {
        "asyncio",
        "time",
        "datetime",
        "os",
        "socket",
        "subprocess",
        "random",
        "pathlib",
        "threading",
        "sqlite3",
    }
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules()
        if room(path) == "core"
        for line, name in imports(path)
        if name.split(".")[0] in forbidden
    ]
    assert not wrong


def test_a_table_that_lets_everything_through_would_be_noticed() -> None:
    assert allowed("loops", "store")
    assert not allowed("store", "loops")
    assert not allowed("gateway", "admin")
    assert not allowed("nodes", "mirror")
    assert not allowed("model", "core")
    assert allowed("model", "errors")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for_and_stays_short(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), f"{path.relative_to(ROOT)} has no docstring"
    assert len(text.splitlines()) <= LIMIT, f"{path.relative_to(ROOT)} is longer than {LIMIT} lines"


@pytest.mark.parametrize("path", sorted((ROOT / "remote_scripts").glob("*.py")), ids=lambda path: path.name)
def test_a_remote_script_imports_the_standard_library_the_prelude_and_its_own_parts_only(path: Path) -> None:
    parts = {each.stem for each in path.parent.glob(f"{path.stem.partition('_')[0]}_*.py")}
    parts |= set(SHARED_PARTS.get(path.stem, ()))
    also = {"prelude"} | parts | ({"xllamacpp"} if path.name == "llama_wheel.py" else set())
    strangers = {name.split(".")[0] for _, name in imports(path)} - also - STANDARD_LIBRARY
    assert not strangers
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_control_plane_never_imports_a_remote_script() -> None:
    scripts = {path.stem for path in (ROOT / "remote_scripts").glob("*.py")} | {"remote_scripts", "state"}
    wrong = [str(path) for path in modules() for _, name in imports(path) if name.split(".")[0] in scripts]
    assert not wrong
