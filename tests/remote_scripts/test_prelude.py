"""prelude.py and the transport: how scripts end, under every Python they may meet."""

from __future__ import annotations

import ast
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from llmgw.assets import SHARED_PARTS

from .conftest import SCRIPTS, Node, ScriptError

ALL = sorted(path.name for path in SCRIPTS.glob("*.py"))
RESIDENT = {"llama_wheel.py"}  # runs under the engine's own Python, of 3.10 or newer


def pythons() -> list[str]:
    """An interpreter of every version that this machine has: on the PATH, and where pyenv and uv keep theirs."""
    places = [Path(path) for minor in range(6, 15) if (path := shutil.which(f"python3.{minor}"))]
    places += Path.home().glob(".pyenv/versions/3.*/bin/python3")
    places += Path.home().glob(".local/share/uv/python/cpython-3.*/bin/python3")
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
    found: dict[str, str] = {}
    for path in places:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        version, _, executable = done.stdout.strip().partition(" ")
        if executable and int(version.partition(".")[2]) >= 6:
            found.setdefault(version, executable)
    return [executable for _, executable in sorted(found.items())]


PYTHONS = pythons()


@pytest.mark.parametrize("name", ALL)
def test_grammar_is_that_of_python_3_6(name: str) -> None:
    ast.parse((SCRIPTS / name).read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("name", ALL)
def test_vermin_agrees(name: str) -> None:
    vermin = Path(sysconfig.get_path("scripts")) / "vermin"
    if not vermin.exists():
        pytest.skip("vermin is not installed here")
    done = subprocess.run([vermin, "-t=3.6-", "--no-tips", SCRIPTS / name], capture_output=True, text=True, check=False)
    fits_any = "Not enough evidence" in done.stdout  # so short a file that every Python would do: no target is met
    assert done.returncode == 0 or fits_any, done.stdout


@pytest.mark.parametrize("name", ALL)
def test_only_the_standard_library_is_imported(name: str) -> None:
    parts = {path.stem for path in SCRIPTS.glob(f"{name.partition('.')[0].partition('_')[0]}_*.py")}
    parts |= set(SHARED_PARTS.get(name.partition(".")[0], ()))
    allowed = set(sys.stdlib_module_names) | {"prelude"} | parts | ({"xllamacpp"} if name in RESIDENT else set())
    for part in ast.walk(ast.parse((SCRIPTS / name).read_text())):
        if isinstance(part, ast.Import):
            assert {alias.name.split(".")[0] for alias in part.names} <= allowed
        if isinstance(part, ast.ImportFrom):
            assert (part.module or "").split(".")[0] in allowed - {"__future__"}


@pytest.mark.parametrize("executable", PYTHONS)
def test_a_whole_life_under_each_python_of_this_machine(executable: str, node: Node) -> None:
    node.use(executable)
    found = node.call("probe", ports=[41700, 41799])
    assert tuple(map(int, found["python"]["version"].split("."))) >= (3, 6)
    assert node.last is not None
    assert node.last.stderr == ""
    data = b"w" * 100000
    sha = hashlib.sha256(data).hexdigest()
    file = {"sha256": sha, "size": len(data), "file": "m"}
    assert node.call("weights", action="receive", payload=data, offset=0, **file)["present"] is True
    text = "import sys,time\nprint('version', *sys.argv[1:], flush=True)\ntime.sleep(0 if sys.argv[1:] else 60)\n"
    files = {"e.py": {"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}}
    engine = {"engine": "e", "directory": "1", "archive": {"kind": "none"}, "files": files, "requires_python": [3, 6]}
    check = ["{python}", "{dir}/e.py", "1"]
    installed = node.call("install", action="receive", check=check, **engine)
    assert installed["version_text"] == "version 1"
    shard = {"replica": "é".encode().hex(), "rank": 0, "cluster": "k"}
    argv = [installed["python"], "-S", installed["path"] + "/e.py"]
    env = {"NAME": "größe"}
    node.call("engine", action="start", attempt=1, argv=argv, ports=[41700, 41799], env=env, **shard)
    assert node.last.stderr == ""
    (item,) = node.call("engine", action="list")["replicas"]
    assert (item["alive"], item["key_env"]) == (True, env)
    variables = Path(f"/proc/{item['pid']}/environ").read_bytes().split(b"\0")
    assert "NAME=größe".encode() in variables
    node.call("engine", action="stop", attempt=None, grace=5, remove=True, **shard)
    assert node.call("purge", action="purge", cluster="k")["left"] == []
    assert list(node.home.iterdir()) == []


@pytest.mark.parametrize(
    "shell", [path for name in ("bash", "dash", "fish", "tcsh", "zsh") if (path := shutil.which(name))]
)
def test_the_bootstrap_is_the_same_in_every_login_shell(shell: str, node: Node) -> None:
    call = node.begin("engine", action="list", shell=shell)
    stdin, call.process.stdin = call.process.stdin, None
    assert call.finish()["replicas"] == []
    assert stdin is not None
    stdin.close()


def run(node: Node, text: str, **args: Any) -> Any:
    """`text` as the whole of a script's main."""
    node.change = ("prelude.main(main)\n", f"def main(args):\n    {text}\n\n\nprelude.main(main)\n")
    return node.call("weights", **args)


def error(node: Node, text: str, **args: Any) -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        run(node, text, **args)
    return caught.value


def test_what_breaks_is_told_with_its_place(node: Node) -> None:
    found = error(node, "return {}['secret']")
    assert found.code == "crash"
    assert found.body["message"].startswith("KeyError: 'secret' (weights.py:")
    assert "Traceback" in found.body["traceback"]


@pytest.mark.parametrize(
    ("number", "code"), [("ENOSPC", "disk_full"), ("EDQUOT", "disk_full"), ("EROFS", "read_only"), ("EACCES", "denied")]
)
def test_refusals_of_a_file_system_are_sentences(node: Node, number: str, code: str) -> None:
    found = error(node, f"import errno; raise OSError(errno.{number}, 'x', '/some/where')")
    assert found.code == code
    assert "/some/where" in found.body["message"]
    assert found.body["fix"]


def test_noise_around_the_frames_does_no_harm(node: Node) -> None:
    assert run(node, "print('noise ' * 2000, flush=True); return {'a': 1}") == {"a": 1}
    assert run(node, "os.write(1, b'#' * 100); return {'b': 2}") == {"b": 2}


def test_a_deadline_ends_even_a_script_whose_frame_nobody_reads(node: Node) -> None:
    node.change = (
        "prelude.main(main)\n",
        "def main(args):\n    prelude.event(text='x' * (1 << 20))\n\n\nprelude.main(main)\n",
    )
    call = node.begin("weights", deadline=0.4)
    began = time.monotonic()
    assert call.process.wait(8) in (124, -14, 142)
    assert time.monotonic() - began < 6
    for pipe in (call.process.stdin, call.process.stdout, call.process.stderr):
        assert pipe is not None
        pipe.close()


def test_a_tool_ends_with_the_script_that_started_it(node: Node) -> None:
    node.change = (
        "prelude.main(main)\n",
        "def main(args):\n    return prelude.run(['sleep', '47.11'], 30)\n\n\nprelude.main(main)\n",
    )
    call = node.begin("weights")
    time.sleep(0.3)
    assert call.process.stdin is not None
    call.process.stdin.close()
    assert call.process.wait(5) == 75
    for pipe in (call.process.stdout, call.process.stderr):
        assert pipe is not None
        pipe.close()
    ends = time.monotonic() + 2
    while b"sleep\x0047.11" in b"".join(commands()):
        assert time.monotonic() < ends
        time.sleep(0.02)


def commands() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 3"], [3, "out\n", "err\n"]),
        (["sh", "-c", "sleep 30 & echo left"], [0, "left\n", ""]),
        (["sh", "-c", "exec sleep 30"], [None, "", ""]),
        (["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"], [0, "x" * (1 << 17), ""]),
    ],
)
def test_tools_have_a_deadline_and_a_limit_of_their_own(node: Node, tool: list[str], result: list[Any]) -> None:
    status, out, err = run(node, f"return {{'r': prelude.run({tool!r}, 1, limit=1 << 17)}}")["r"]
    assert [status, out[: 1 << 17], err] == result
    assert len(out) <= (1 << 17) + (1 << 16)
