"""`python -m loadtest cluster up|precreate|run|status|down|figures`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from loadtest.cluster.bring_up import end_cluster, start_cluster
from loadtest.cluster.figures.figure_lines import FIGURES, figure_names, run_figures
from loadtest.cluster.load_run import ClientFailed, run_load
from loadtest.cluster.precreate import NotCreated, precreate
from loadtest.cluster.run_folder import RUNS, NoRun, new_run, open_run
from loadtest.cluster.scenario import Scenario, ScenarioError, load_scenario, scenario_names
from loadtest.cluster.stack.cluster_stack import read_stack, status
from loadtest.cluster.stack.engines import NotAvailable

NOT_FLAGS = ("name", "settings", "keep")


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the commands of the harness to the parser of `cluster`."""
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="of all runs (default: loadtest/runs)"
    )
    commands = parser.add_subparsers(dest="cluster_command", required=True)
    up = commands.add_parser("up", help="start store, catalog and nodes, and create the partitions")
    _add_scenario_options(up)
    run = commands.add_parser(
        "run", help="put the load on a cluster; starts and ends one unless --run names it"
    )
    _add_scenario_options(run)
    run.add_argument("--run", default="", help="the run whose cluster `up` started")
    run.add_argument("--keep", action="store_true", help="leave the cluster up after the load")
    for name, text in (
        ("precreate", "create the partitions of a run"),
        ("status", "show what lives of a run, its health, and its last sample"),
        ("down", "end the processes of a run"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "run", nargs="?", default="", help="a run, by folder or name (default: the last)"
        )
    _add_figures_options(commands.add_parser("figures", help="measure brokers beside a bare program"))


def _add_figures_options(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(FIGURES)
    parser.add_argument("names", nargs="*", metavar="FIGURE", help=f"one of {known} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load (default: %(default)s)")
    hints = get_type_hints(Scenario)
    for name in ("catalog", "store"):
        kinds = get_args(hints[name])
        parser.add_argument(f"--{name}", choices=kinds, default=kinds[0], help="(default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="add the result to loadtest/results/")


def _add_scenario_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each field of a scenario, so that none is declared twice."""
    known = ", ".join(scenario_names())
    parser.add_argument("scenario", nargs="?", default="default", help=f"a file, or one of {known}")
    parser.add_argument("--prometheus", action="store_true", help="start Prometheus over the brokers")
    parser.add_argument(
        "--set", action="append", default=[], metavar="TOPICS_NAME=VALUE", help="a setting of the nodes"
    )
    hints = get_type_hints(Scenario)
    for field in msgspec.structs.fields(Scenario):
        if field.name in NOT_FLAGS:
            continue
        kind = hints[field.name]
        choices = [one for one in get_args(kind) if isinstance(one, str)]
        shown = f"(default: {field.default})"
        flag = f"--{field.name.replace('_', '-')}"
        if choices:
            parser.add_argument(flag, choices=choices, help=shown)
        else:
            parser.add_argument(flag, type=type(field.default), metavar="N", help=shown)


def scenario_of(given: argparse.Namespace) -> Scenario:
    """Return the scenario that the flags describe."""
    changes: dict[str, Any] = {
        field.name: value
        for field in msgspec.structs.fields(Scenario)
        if field.name not in NOT_FLAGS and (value := getattr(given, field.name)) is not None
    }
    scenario = load_scenario(given.scenario, changes)
    wrong = [text for text in given.set if not text.startswith("TOPICS_") or "=" not in text]
    if wrong:
        raise ScenarioError(f"--set: must be TOPICS_NAME=VALUE, got {wrong[0]!r}")
    settings = {**scenario.settings, **dict(text.split("=", 1) for text in given.set)}
    keep = scenario.keep or getattr(given, "keep", False)
    return msgspec.structs.replace(scenario, settings=settings, keep=keep)


def main(given: argparse.Namespace) -> int:
    """Run a command of the harness; return the exit code."""
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "up": _up,
        "precreate": _precreate,
        "run": _run,
        "status": _status,
        "down": _down,
        "figures": _figures,
    }
    # SIGTERM ends the cluster as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return commands[given.cluster_command](given)
    except (ScenarioError, NoRun, NotAvailable, NotCreated, ClientFailed) as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the cluster is down", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _up(given: argparse.Namespace) -> int:
    scenario = scenario_of(given)
    folder = new_run(scenario, given.runs)
    print(f"run: {folder.path}", flush=True)
    stack = start_cluster(scenario, folder, given.prometheus)
    for tracked in stack.processes:
        print(f"{tracked.name}: {tracked.url} pid={tracked.pid}")
    return 0


def _precreate(given: argparse.Namespace) -> int:
    folder = open_run(given.run, given.runs)
    print(f"{precreate(folder)} partitions")
    return 0


def _run(given: argparse.Namespace) -> int:
    if given.run:
        folder = open_run(given.run, given.runs)
        if not read_stack(folder).processes:
            raise NoRun(f"{folder.path}: its cluster is down; start one with `python -m loadtest cluster up`")
        keep = True
    else:
        scenario = scenario_of(given)
        keep = scenario.keep
        folder = new_run(scenario, given.runs)
        print(f"run: {folder.path}", flush=True)
        start_cluster(scenario, folder, given.prometheus)
    try:
        summary = run_load(folder)
    except BaseException:
        end_cluster(folder)
        raise
    if not keep:
        end_cluster(folder)
    print(summary_text(summary))
    return 0 if summary["reconciliation"]["is_ok"] else 1


def _figures(given: argparse.Namespace) -> int:
    names = figure_names(given.names)
    changes = {"catalog": given.catalog, "store": given.store, "seconds": given.seconds}
    return run_figures(names, changes, given.rounds, given.save, given.runs)


def summary_text(summary: dict[str, Any]) -> str:
    """Return the lines that a person wants to see of a summary."""
    lines = []
    for kind in ("produce", "consume"):
        counted = summary["client"][kind]
        latency = counted["latency"]
        rate = f"{counted['records_per_second']:,.0f} records/s, {counted['mb_per_second']:.1f} MB/s"
        times = f"p50 {latency.get('p50_ms', 0)} ms, p99 {latency.get('p99_ms', 0)} ms"
        lines.append(f"{kind}: {counted['records']:,} records, {rate}, {times}")
    end_to_end = summary["client"]["end_to_end"]
    if end_to_end["count"]:
        lines.append(f"end to end: p50 {end_to_end['p50_ms']} ms, p99 {end_to_end['p99_ms']} ms")
    checked = summary["client"]["verification"]
    lines.append(
        f"verified: {checked['acked']:,} acknowledged, {checked['read']:,} read, "
        f"{checked['violation_count']} violations"
    )
    lines += [f"{one.level}: {one.text}" for one in summary["reconciliation"]["problems"]]
    return "\n".join(lines)


def _status(given: argparse.Namespace) -> int:
    described = status(open_run(given.run, given.runs))
    print(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())
    return 0 if all(one["state"] != "dead" for one in described["processes"].values()) else 1


def _down(given: argparse.Namespace) -> int:
    folder = open_run(given.run, given.runs)
    for name, outcome in end_cluster(folder).items():
        print(f"{name}: {outcome}")
    return 0
