"""What the control plane itself costs, and how fast it is back: three real sshd nodes in network namespaces.

Root on Linux only, like the fleet of the tests. Prints its figures; `gateway` writes the report.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai

from tests.fleet.machines import Fleet, Machine
from tests.fleet.plane import SMOLLM2, Plane, sim
from tests.fleet.test_aborts import CLIENTS, leave_early, stats

IDLE = 30.0
LLAMACPP = "pypi:xllamacpp==2026.10.11549"


def section(idle: float = IDLE) -> str:
    """The report's section; says so where it cannot be measured."""
    if os.geteuid() != 0:
        return "## The control plane\n\nNot measured: the fleet of real nodes needs root.\n"
    with _stage() as (plane, machines, fleet, folder):
        plane.start()
        hosts = [f"root@{machine.address}" for machine in machines]
        add = _took(lambda: plane.llmgw("node", "add", *hosts, "-i", str(fleet.key)))
        plane.add_model(folder, {**SMOLLM2, "scaling": {"min": 3}})
        plane.add_model(folder, sim("echo", replicas=2))
        key = plane.key()
        time.sleep(2)
        memory, share = _memory(plane), _idle(plane, idle)
        back = sorted(_restart(plane, key) for _ in range(3))[1]
        elsewhere = _engine_death(plane, machines, key)
        aborts = [_abort(plane, machines, folder, key, stream=stream) for stream in (True, False)]
        first = _first_token(plane, machines, fleet, key)
        rows = [
            ("resident memory with three nodes and five replicas", f"{memory / 1024:.0f} MB"),
            (f"of a core while idle, over {idle:.0f} s", f"{share:.2f} %"),
            ("`node add` of three nodes at once, engines in the mirror or fetched, to ready", f"{add:.1f} s"),
            (
                "kill -9 to the next answered request, the start included (median of 3)",
                f"{back:.2f} s",
            ),
            ("an engine killed with -9: requests that failed, of 50 sent one after the other", f"{elsewhere}"),
            (
                f"{CLIENTS} streaming and {CLIENTS} other clients leave at once: the last abort the engine sees, after",
                " and ".join(f"{seconds * 1e3:.0f} ms" for seconds in aborts),
            ),
            ("`model add` to the first answered request, weights and engine on the node", f"{first:.1f} s"),
        ]
    lines = "\n".join(f"| {what} | {figure} |" for what, figure in rows)
    return (
        "## The control plane\n\nThree real sshd nodes on this machine, the real llama.cpp engine on each.\n\n"
        f"| what | figure |\n|---|---|\n{lines}\n"
    )


@contextmanager
def _stage() -> Iterator[tuple[Plane, list[Machine], Fleet, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fleet").mkdir()
        fleet = Fleet(folder / "fleet")
        mirror = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmgw" / "mirror"
        engines = {"llamacpp": [LLAMACPP], "sim": ["builtin"]}
        plane = Plane(folder / "home", engines=engines, mirror=mirror, user_home=folder)
        try:
            yield plane, [fleet.add(node) for node in ("alpha", "beta", "gamma")], fleet, folder
        finally:
            plane.close()
            fleet.destroy()


def _took(work) -> float:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _memory(plane: Plane) -> int:
    """Resident KiB."""
    status = Path(f"/proc/{plane.process.pid}/status").read_text()  # type: ignore[union-attr]
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def _cpu(plane: Plane) -> float:
    """CPU seconds so far."""
    words = Path(f"/proc/{plane.process.pid}/stat").read_text().rpartition(")")[2].split()  # type: ignore[union-attr]
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _idle(plane: Plane, seconds: float) -> float:
    before = _cpu(plane)
    time.sleep(seconds)
    return (_cpu(plane) - before) / seconds * 100


def _ask(plane: Plane, key: str, model: str) -> bool:
    client = openai.OpenAI(base_url=plane.url, api_key=key, max_retries=0, timeout=30)
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=1)
    except openai.OpenAIError:
        return False
    return True


def _restart(plane: Plane, key: str) -> float:
    plane.kill()
    began = time.monotonic()
    plane.start(wait=False)
    while not _ask(plane, key, "smollm2"):
        time.sleep(0.02)
    took = time.monotonic() - began
    plane.until(lambda: len(plane.ready(SMOLLM2["name"])) == 3, "all are adopted")
    return took


def _engine_death(plane: Plane, machines: list[Machine], key: str) -> int:
    plane.until(lambda: len(plane.ready("echo")) == 2, "both are ready")
    shard = plane.ready("echo")[0]["shards"][0]
    machine = next(one for one in machines if one.name == shard["node"])
    machine.shell(f"kill -9 {shard['process']['pid']}")
    return sum(not _ask(plane, key, "echo") for _ in range(50))


def _abort(plane: Plane, machines: list[Machine], folder: Path, key: str, *, stream: bool) -> float:
    """Seconds from the first client's leaving to the last abort that the simulated engine has noted."""
    name = f"slow-{'stream' if stream else 'whole'}"
    plane.add_model(folder, sim(name, "--tokens-per-second", "5"))
    shard = plane.ready(name)[0]["shards"][0]
    machine = next(one for one in machines if one.name == shard["node"])

    def aborted() -> list[dict[str, float]]:
        return stats(machine, shard["port"], plane.ready(name)[0]["id"])["aborted"]

    left = asyncio.run(_all_leave(plane, key, name, stream=stream))
    plane.until(lambda: len(aborted()) == CLIENTS, "every abort has arrived", limit=30)
    return max(abort["at"] for abort in aborted()) - left


async def _all_leave(plane: Plane, key: str, model: str, *, stream: bool) -> float:
    """Unix time at which the first of them left."""

    async def one() -> float:
        await leave_early(plane, key, model, stream=stream, wait=0.5)
        return time.time()

    return min(await asyncio.gather(*(one() for _ in range(CLIENTS))))


def _first_token(plane: Plane, machines: list[Machine], fleet: Fleet, key: str) -> float:
    folder = plane.home.parent
    plane.llmgw("model", "remove", SMOLLM2["name"], "--yes")
    plane.until(lambda: not plane.replicas(SMOLLM2["name"]), "its replicas are gone")
    began = time.monotonic()
    plane.add_model(folder, SMOLLM2, wait=False)
    while not _ask(plane, key, "smollm2"):
        time.sleep(0.02)
    return time.monotonic() - began
