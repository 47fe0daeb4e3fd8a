"""A home of its own and a way to run `llmgw` in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.plane import Plane

LLMGW = str(Path(sys.executable).parent / "llmgw")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def llmgw(home: Path, tmp_path: Path) -> Run:
    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LLMGW_HOME": str(home), "HOME": str(tmp_path), "NO_COLOR": "1", **environ}
        done = subprocess.run((LLMGW, *words), env=env, capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    """A running control plane with this machine as its node and the simulated engine."""
    user_home = tmp_path / "user"
    user_home.mkdir()
    made = Plane(tmp_path / "home", engines={"sim": ["builtin"]}, mirror=tmp_path / "mirror", user_home=user_home)
    made.start()
    yield made
    made.llmgw("node", "remove", "here", "--purge", "--force", "--yes", check=False)
    made.close()
