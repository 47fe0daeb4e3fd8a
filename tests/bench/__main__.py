"""`python -m tests.bench`: all measurements, or those named; see `--help`. Writes docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from datetime import date
from pathlib import Path

from tests.bench import gateway, plane, relay

REPORT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measures llmgw beside others.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 100, 500])
    parser.add_argument("--only", nargs="*", default=[""], help="proxies with this in their name: llmgw, nginx, vllm")
    parser.add_argument("--no-plane", action="store_true", help="leave the control plane's own cost out")
    parser.add_argument("--no-relay", action="store_true", help="leave the relay out")
    parser.add_argument("--no-report", action="store_true", help="do not write docs/benchmarks.md")
    asked = parser.parse_args()
    plan = gateway.Plan(rounds=asked.rounds, seconds=asked.seconds, streams=tuple(asked.streams))
    sections = [gateway.run(plan, only=asked.only)]
    if not asked.no_plane:
        sections.append(plane.section())
    if not asked.no_relay:
        sections.append(relay.section(rounds=asked.rounds))
    text = "\n".join(sections)
    print(text)
    if not asked.no_report:
        REPORT.write_text(report(text))
    return 0


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
