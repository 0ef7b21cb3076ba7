"""`python -m loadtest`: benchmarks, as ratios to a ceiling measured in the same run."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys

from loadtest.bench import chart as bench_chart
from loadtest.bench import history as results
from loadtest.bench import server as server_bench
from loadtest.bench.lines import LINES
from loadtest.bench.result import table
from loadtest.bench.subjects import SERVER_COMMAND
from loadtest.clients import generator_bench
from loadtest.clients.generator import GeneratorMissing
from loadtest.cluster import commands as cluster_commands
from loadtest.engine import engine_bench
from loadtest.store.lines import LINES as STORE_LINES
from loadtest.store.lines import lines_with

STORE_NAMES = list(STORE_LINES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    engine = commands.add_parser("engine", help="measure the log of one shard, without HTTP")
    add_options(engine, "PART", list(engine_bench.PARTS), 1.0, 3)
    bench = commands.add_parser("bench", help="measure the server, over HTTP")
    add_options(bench, "MEASUREMENT", list(LINES), 2.0, 5)
    bench.add_argument(
        "--server-command",
        default=shlex.join(SERVER_COMMAND),
        help="the server to measure; receives TOPICS_PORT_FILE, TOPICS_DATA_DIR, TOPICS_SHARDS (%(default)s)",
    )
    bench.add_argument("--plot", metavar="FILE", help="draw the results as a PNG")
    store = commands.add_parser("store", help="measure stores, catalogs, backups, changes of shards")
    add_options(store, "MEASUREMENT", STORE_NAMES, 2.0, 5)
    store.add_argument(
        "--s3-url", default="", help="a bucket for the lines of S3; credentials are in the environment"
    )
    generator = commands.add_parser("generator", help="compare the load generator with wrk")
    generator.add_argument(
        "--rounds", type=count, default=5, help="number of rounds; the median counts (%(default)s)"
    )
    add_seconds(generator, 2.0)
    spark = commands.add_parser(
        "spark", help="compare Spark over a data directory with Parquet and JSON lines"
    )
    spark.add_argument(
        "--records", type=count, default=5_000_000, help="number of records of 100 bytes (%(default)s)"
    )
    spark.add_argument(
        "--rounds", type=count, default=3, help="number of rounds; the median counts (%(default)s)"
    )
    spark.add_argument(
        "--dir", type=directory, help="directory to write to (default: the temporary directory)"
    )
    spark.add_argument("--save", action="store_true", help="add the result to loadtest/results/")
    cluster_commands.add_parser(
        commands.add_parser("cluster", help="put a load on a cluster of nodes, and check what they did")
    )
    given = parser.parse_args()
    runs = {
        "engine": run_engine,
        "bench": run_bench,
        "store": run_store,
        "generator": run_generator,
        "spark": run_spark,
        "cluster": cluster_commands.main,
    }
    try:
        return runs[given.command](given)
    except GeneratorMissing as missing:
        print(missing, file=sys.stderr)
        return 2


def add_options(
    parser: argparse.ArgumentParser, metavar: str, names: list[str], seconds: float, rounds: int
) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        default=names,
        metavar=metavar,
        help=f"a measurement; one of {', '.join(names)} (default: all)",
    )
    parser.set_defaults(known=names)
    parser.add_argument(
        "--rounds", type=count, default=rounds, help="number of rounds; the median counts (%(default)s)"
    )
    add_seconds(parser, seconds)
    parser.add_argument(
        "--dir",
        type=directory,
        help="directory on the disk to measure (default: the temporary directory)",
    )
    parser.add_argument("--save", action="store_true", help="add the result to loadtest/results/")


def add_seconds(parser: argparse.ArgumentParser, seconds: float) -> None:
    parser.add_argument(
        "--seconds", type=duration, default=seconds, help="length of each measurement (%(default)s)"
    )


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return seconds


def directory(text: str) -> str:
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"must be an existing directory, got {text!r}")
    return text


def check_names(given: argparse.Namespace) -> None:
    unknown = [name for name in given.names if name not in given.known]
    if unknown:
        print(f"unknown name {unknown[0]}; must be one of {', '.join(given.known)}", file=sys.stderr)
        raise SystemExit(2)


def run_engine(given: argparse.Namespace) -> int:
    check_names(given)
    lines = engine_bench.run(given.names, given.rounds, given.seconds, given.dir)
    if given.save:
        results.save("engine", lines)
    return 0


def run_bench(given: argparse.Namespace) -> int:
    """Run the benchmark of the server; return 1 when a line could not be measured.

    A missed goal does not change the exit code: it is for a person to judge.
    """
    check_names(given)
    command = shlex.split(given.server_command)
    lines = server_bench.run(given.names, given.seconds, given.rounds, given.dir, command)
    print("\n" + table(lines))
    plots = [given.plot] if given.plot else []
    if given.save:
        results.save("bench", lines, generator="loadtest/native/load.c", seconds=given.seconds)
        plots.append(os.path.join(results.RESULTS, "bench.png"))
    for plot in plots:
        with open(plot, "wb") as file:
            file.write(bench_chart.chart(lines, "topicsd: share of the ceiling, the mark is the goal"))
    return int(any(line.verdict == "failed" for line in lines))


def run_store(given: argparse.Namespace) -> int:
    lines = lines_with(given.s3_url)
    given.known = list(lines)
    given.names = list(lines) if given.names is STORE_NAMES else given.names
    check_names(given)
    measured = server_bench.run(given.names, given.seconds, given.rounds, given.dir, SERVER_COMMAND, lines)
    print("\n" + table(measured))
    if given.save:
        results.save("store", measured, seconds=given.seconds, rounds=given.rounds)
    return int(any(line.verdict == "failed" for line in measured))


def run_generator(given: argparse.Namespace) -> int:
    generator_bench.run(given.rounds, given.seconds)
    return 0


def run_spark(given: argparse.Namespace) -> int:
    # Imported here, because the other benchmarks do not need PySpark.
    from loadtest import sink_bench, spark_bench

    lines = spark_bench.run(given.records, given.rounds, given.dir)
    lines += sink_bench.run(given.records // 10, given.rounds, given.dir)
    if given.save:
        results.save("spark", lines, records=given.records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
