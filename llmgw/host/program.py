"""This installation of llmgw: its interpreter, its libraries, its files."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import sqlite3
import ssl
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from llmgw import __version__, assets
from llmgw.core.findings.rules import arg, listed
from llmgw.host.checks import Here, Said, Sentence, check
from llmgw.store.look import OLDEST_SQLITE

OLDEST_OPENSSL = (3, 0)
"""1.1.1 has had no fixes since September 2023: https://endoflife.date/openssl"""
FAST = ("uvloop", "httptools")
INSTALL = "Run `pip install --force-reinstall llmgw` in its own environment."
_PIP = f"{arg(sys.executable)} -m pip install"


def _said() -> importlib.metadata.PackageMetadata | None:
    try:
        return importlib.metadata.metadata("llmgw")
    except importlib.metadata.PackageNotFoundError:
        return None


@check("error", INSTALL)
def installation_unknown(here: Here) -> Said:
    """It runs from files that no package manager knows of: what it needs cannot be checked."""
    found = _said()
    if found is None:
        return "this installation of llmgw has no metadata"
    told = found["Version"]
    if told == __version__:
        return None
    return f"the files are of llmgw {__version__}, the package manager knows {told}", f"{_PIP} --force-reinstall llmgw"


@check("error", "Install it with a Python that it supports.")
def python_unsupported(here: Here) -> Said:
    """Another version of Python than the ones it is written and tested for."""
    found = _said()
    wanted = SpecifierSet(found["Requires-Python"] if found and found["Requires-Python"] else ">=3.11")
    have = ".".join(map(str, sys.version_info[:3]))
    return None if wanted.contains(have, prereleases=True) else f"this is Python {have}, it needs {wanted}"


@check("error", INSTALL)
def package_missing(here: Here) -> Said:
    """A library that it needs is not installed: some commands end with an error."""
    absent = []
    for wanted in _requirements():
        try:
            importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(wanted.name)
    return (f"not installed: {listed(absent)}", f"{_PIP} {' '.join(absent)}") if absent else None


@check("error", INSTALL)
def package_unfit(here: Here) -> Said:
    """A library of another version than the ones it is written for: asyncssh, uvicorn and Starlette change."""
    wrong: list[Sentence] = []
    for wanted in _requirements():
        try:
            have = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not wanted.specifier.contains(have, prereleases=True):
            fix = f"{_PIP} {arg(str(wanted))}"
            wrong.append((f"{wanted.name} is {have}, it has to be {wanted.specifier}", fix))
    return wrong


def _requirements() -> list[Requirement]:
    found = [Requirement(line) for line in importlib.metadata.requires("llmgw") or ()]
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]


@check("warning", f"Run `pip install --force-reinstall {' '.join(FAST)}` in its own environment.")
def loop_slow(here: Here) -> Said:
    """Without uvloop and httptools a request costs the endpoint 2.8 times as much."""
    absent = []
    for name in FAST:
        try:
            importlib.import_module(name)
        except ImportError:
            absent.append(name)
    return f"{listed(absent)} cannot be loaded by this Python" if absent else None


@check("error", "Use a Python with a newer SQLite.")
def sqlite_old(here: Here) -> Said:
    """The state is written with statements that older versions of SQLite do not know."""
    if sqlite3.sqlite_version_info >= OLDEST_SQLITE:
        return None
    return f"this Python has SQLite {sqlite3.sqlite_version}, {'.'.join(map(str, OLDEST_SQLITE))} is needed"


@check("warning", "Use a Python with a newer OpenSSL.")
def openssl_old(here: Here) -> Said:
    """A version of OpenSSL that gets no fixes any more."""
    if ssl.OPENSSL_VERSION_INFO[:2] >= OLDEST_OPENSSL:
        return None
    return f"this Python has {ssl.OPENSSL_VERSION}, which gets no fixes any more"


@check("error", INSTALL)
def files_missing(here: Here) -> Said:
    """The scripts that are sent to nodes, or the shape of the state, are missing from the installation."""
    try:
        absent = [name for name in ("probe", "engine", "prelude") if not assets.remote_script(name)]
        if not list((assets.folder("state") / "migrations").glob("*.sql")):
            absent.append("migrations")
    except OSError as exc:
        return f"the installation is incomplete: {exc}"
    return f"the installation is incomplete: {listed(absent)}" if absent else None


@check("note", "Correct PATH, or call the one you mean by its whole path.")
def another_in_path(here: Here) -> Said:
    """`llmgw` in this shell is another installation than the one that speaks here."""
    found = shutil.which("llmgw", path=here.environ.get("PATH"))
    own = Path(sys.executable).parent / "llmgw"
    if found is None or not own.exists() or os.path.realpath(found) == os.path.realpath(own):
        return None
    return f"PATH leads to {found}, this is {own}"
