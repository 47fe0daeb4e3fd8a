"""Finds `remote_scripts/` and `state/`: inside the installed package, or beside it in a checkout.

Hatchling's force-include puts both into the wheel under `llmgw/`; it does not resolve in an editable install.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `name` ("remote_scripts" or "state"). Raises FileNotFoundError when the installation is broken."""
    for place in (_HERE / name, _HERE.parent / name):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"{name}/ is missing from this installation of llmgw; install it again")


SHARED_PARTS = {"preflight": ("probe_facts", "probe_storage")}
"""Parts of another script that a script takes along."""


@cache
def prelude() -> bytes:
    """What is sent ahead of every script: three files, one module."""
    return remote_script("prelude") + remote_script("ground") + remote_script("living")


@cache
def remote_script(name: str) -> bytes:
    """Source of `remote_scripts/NAME.py`, as it is sent to a node, ahead of it its parts: every `NAME_*.py`, and those
    that it shares with another script.

    One text travels. Its parts are handed to the prelude, which makes each a module when it is imported; they go in
    front of the script's first line, so that a traceback names the right one.
    """
    here = folder("remote_scripts")
    script = (here / f"{name}.py").read_bytes()
    files = [*sorted(here.glob(f"{name}_*.py")), *(here / f"{part}.py" for part in SHARED_PARTS.get(name, ()))]
    parts = {file.stem: file.read_text() for file in files}
    return f"import prelude; prelude.parts({parts!r}); ".encode() + script if parts else script
