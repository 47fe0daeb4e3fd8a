"""What is released: the sdist, the wheel built from it, and that wheel alone in a fresh environment."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from llmgw import assets

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel: `python -m build` builds the wheel from the sdist, not from the tree."""
    out = tmp_path_factory.mktemp("dist")
    here = [] if importlib.util.find_spec("hatchling") is None else ["--no-isolation"]
    run(sys.executable, "-m", "build", *here, "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it.

    Its dependencies are lent by this one: a path in a .pth file makes packages importable, while the .pth files there,
    the editable install of the checkout among them, are not read.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    found = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    if shutil.which("uv"):
        run("uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--python", found, wheel, cwd=folder)
    else:
        run(sys.executable, "-m", "pip", "--python", found, "install", "--quiet", "--no-deps", wheel, cwd=folder)
    site = run(found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    Path(site, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return found


PROBE = """
import llmgw, sys
from llmgw import assets
from llmgw.store import migrate
print(llmgw.__file__)
print(len(assets.remote_script("probe")))
print(assets.folder("state") / "migrations")
print([file.name for file in migrate.files()])
"""


def test_the_installed_wheel_finds_its_scripts_and_its_schema(python: Path, tmp_path: Path) -> None:
    where, probe, folder, migrations = run(python, "-I", "-c", PROBE, cwd=tmp_path).splitlines()
    assert not Path(where).is_relative_to(ROOT), "not the checkout"
    assert Path(where).is_relative_to(python.parent.parent)
    assert int(probe) == len(assets.remote_script("probe"))
    assert Path(folder).is_relative_to(Path(where).parent)
    assert migrations == str(sorted(file.name for file in (ROOT / "state" / "migrations").glob("*.sql")))


def test_every_remote_script_is_in_it_byte_for_byte(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for folder in ("remote_scripts", "state"):
            for file in (ROOT / folder).rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    name = f"llmgw/{file.relative_to(ROOT)}"
                    assert name in names, name
                    assert archive.read(name) == file.read_bytes(), name
        assert not [name for name in names if name.endswith(".pyc") or name.startswith("tests/")]


def test_the_command_runs(python: Path, tmp_path: Path) -> None:
    said = run(python.parent / "llmgw", "--help", cwd=tmp_path)
    assert "node" in said
    assert "ctl" in said
    assert run(python, "-I", "-m", "llmgw", "--help", cwd=tmp_path)


def test_the_sdist_holds_what_its_wheel_is_built_from_and_the_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "remote_scripts/probe.py", "tests/test_wheel.py"} <= names
