"""`python -m loadtest`: the benchmarks, as ratios against a ceiling that is measured in the same run."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time

import msgspec

from loadtest import engine_bench

RESULTS = os.path.join(os.path.dirname(__file__), "results")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    engine = commands.add_parser("engine", help="the log of one shard, with no HTTP in front of it")
    engine.add_argument(
        "parts",
        nargs="*",
        default=list(engine_bench.PARTS),
        metavar="PART",
        help=f"what to measure: {', '.join(engine_bench.PARTS)} (default: all)",
    )
    engine.add_argument(
        "--rounds", type=int, default=3, help="how often each line is measured; the median counts"
    )
    engine.add_argument("--seconds", type=float, default=1.0, help="how long each measurement lasts")
    engine.add_argument(
        "--dir", help="where to write, on the disk that is to be measured (default: the system's)"
    )
    engine.add_argument("--save", action="store_true", help="add the result to loadtest/results/engine.jsonl")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in engine_bench.PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(engine_bench.PARTS)}")
    lines = engine_bench.run(arguments.parts, arguments.rounds, arguments.seconds, arguments.dir)
    if arguments.save:
        save("engine", lines)
    return 0


def save(name: str, lines: list[engine_bench.Line]) -> None:
    """One JSON line a run, with the machine and the commit."""
    result = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        "lines": lines,
    }
    os.makedirs(RESULTS, exist_ok=True)
    with open(os.path.join(RESULTS, f"{name}.jsonl"), "ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def _commit() -> str:
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
