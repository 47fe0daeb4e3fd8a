"""A node that floods, lies, hangs or cuts its replies: an error that names it, memory flat, other nodes undisturbed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.machines import Machine
from tests.fleet.plane import Plane, sim
from tests.fleet.test_aborts import memory
from tests.fleet.test_links import ask

# What answers in the place of python3 on the hostile node, once it has been added. It only misbehaves while the file
# /root/.hostile is there, so that the node can be good again.
SHIM = """\
#!/bin/sh
case "$*" in *version_info*) exit 0;; esac
[ -e /root/.hostile ] || exec /usr/bin/python3.11 "$@"
{evil}
"""

FLOOD = "head -c 300000000 /dev/zero | tr '\\0' x"
HANG = "exec sleep 1000"
TRUNCATED = """exec /usr/bin/python3.11 -c '
import os, subprocess, sys
done = subprocess.run(["/usr/bin/python3.11"] + sys.argv[1:], stdin=0, stdout=subprocess.PIPE)
os.write(1, done.stdout[:len(done.stdout) // 2])
' "$@"
"""
WRONG_DIGEST = """exec /usr/bin/python3.11 -c '
import os, re, subprocess, sys
done = subprocess.run(["/usr/bin/python3.11"] + sys.argv[1:], stdin=0, stdout=subprocess.PIPE)
os.write(1, re.sub(rb"(#[0-9a-f]{32} [0-9]+ )[0-9a-f]{4}", rb"\\g<1>0000", done.stdout))
' "$@"
"""


@pytest.fixture
def hostile(machines: list[Machine]) -> Iterator[Machine]:
    alpha = machines[0]
    yield alpha
    alpha.shell("rm -f /root/.hostile /usr/local/bin/python3.14")


def turn(machine: Machine, evil: str) -> None:
    script = SHIM.format(evil=textwrap.dedent(evil))
    machine.shell(f"cat > /usr/local/bin/python3.14 <<'SHIM'\n{script}\nSHIM\nchmod +x /usr/local/bin/python3.14")
    machine.shell("touch /root/.hostile")


@pytest.mark.parametrize(
    ("evil", "words"),
    [
        (FLOOD, "larger than 8 MiB"),
        (TRUNCATED, "cut off"),
        (WRONG_DIGEST, "does not match its digest"),
    ],
    ids=["flood", "truncated", "wrong digest"],
)
def test_a_hostile_reply_is_named_and_disturbs_nobody(
    plane: Plane, machines, hostile: Machine, add, tmp_path: Path, evil: str, words: str
):
    beta = machines[1]
    plane.start()
    add(plane, hostile, beta)
    plane.add_model(tmp_path, sim("echo", replicas=2))
    key = plane.key()
    before = memory(plane)
    turn(hostile, evil)
    done = plane.llmgw("node", "probe", hostile.name, check=False, limit=120)
    assert done.returncode == 1
    assert hostile.name in done.stderr
    assert words in done.stderr
    for _ in range(10):
        assert ask(plane, key)
    assert memory(plane) < before + 30_000
    # Nothing was concluded from nonsense: its replica still serves.
    assert len(plane.ready("echo")) == 2
    hostile.shell("rm -f /root/.hostile")
    plane.until(lambda: plane.llmgw("node", "probe", hostile.name, check=False).returncode == 0, "it is good again")


def test_a_hanging_script_costs_its_own_deadline_only(plane: Plane, machines, hostile: Machine, add, tmp_path: Path):
    beta = machines[1]
    plane.start()
    add(plane, hostile, beta)
    plane.add_model(tmp_path, sim("echo", replicas=2))
    key = plane.key()
    turn(hostile, HANG)
    plane.llmgw("node", "probe", beta.name)
    for _ in range(10):
        assert ask(plane, key)
    done = plane.llmgw("node", "probe", hostile.name, check=False, limit=120)
    assert done.returncode == 6
    assert f"{hostile.name} could not be probed" in done.stderr
    assert "deadline" in done.stderr
    assert len(plane.ready("echo")) == 2
