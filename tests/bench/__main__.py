"""`python -m tests.bench`: all measurements, or those named; see `--help`."""

from __future__ import annotations

import argparse
import sys

from tests.bench import gateway


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measures llmgw beside others.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 100, 500])
    parser.add_argument("--only", nargs="*", default=[""], help="proxies with this in their name: llmgw, nginx, vllm")
    parser.add_argument("--no-report", action="store_true", help="do not write docs/benchmarks.md")
    asked = parser.parse_args()
    plan = gateway.Plan(rounds=asked.rounds, seconds=asked.seconds, streams=tuple(asked.streams))
    return gateway.run(plan, only=asked.only, write=not asked.no_report)


if __name__ == "__main__":
    sys.exit(main())
