"""`python -m tests.bench`: all measurements, or those named; see `--help`. Writes docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

from tests.bench import fleet, gateway, plane, relay, thousand

REPORT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measures llmgw beside others.")
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all without one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 100, 500])
    parser.add_argument("--only", nargs="*", default=[""], help="proxies with this in their name: llmgw, nginx, vllm")
    parser.add_argument("--no-report", action="store_true", help="do not write docs/benchmarks.md")
    asked = parser.parse_args()
    if unknown := set(asked.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}")
    text = "\n".join(SECTIONS[name](asked) for name in asked.sections or SECTIONS)
    print(text)
    if not asked.no_report and not asked.sections:
        REPORT.write_text(report(text))
    return 0


def _gateway(asked: argparse.Namespace) -> str:
    plan = gateway.Plan(rounds=asked.rounds, seconds=asked.seconds, streams=tuple(asked.streams))
    return gateway.run(plan, only=asked.only)


SECTIONS: dict[str, Callable[[argparse.Namespace], str]] = {
    "gateway": _gateway,
    "relay": lambda asked: relay.section(rounds=asked.rounds),
    "plane": lambda asked: plane.section(),
    "fleet": lambda asked: fleet.section(rounds=asked.rounds),
    "many": lambda asked: thousand.section(),
}
"""What is measured, in the order of the report."""


def report(sections: str) -> str:
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"""# Benchmarks

Written by `make bench`. Absolute figures depend on the machine and its mood; the ratios, taken in one run, are what
counts.

{sections}
{date.today().isoformat()}, {where}.
"""


if __name__ == "__main__":
    sys.exit(main())
