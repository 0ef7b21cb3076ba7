"""A whole cluster: started with its partitions, ended with nothing left."""

from __future__ import annotations

import sys

from loadtest.bench.subjects import environ as clean_environ
from loadtest.cluster.precreate import precreate
from loadtest.cluster.run_folder import RunFolder, write_json
from loadtest.cluster.scenario import Scenario
from loadtest.cluster.stack.cluster_stack import Stack, ended_on_error, start_stack, stop_stack
from loadtest.cluster.stack.prometheus import NOT_INSTALLED, clear_targets, start_prometheus
from loadtest.cluster.stack.tracked import RUN_VARIABLE, Tracked


def start_cluster(scenario: Scenario, folder: RunFolder, with_prometheus: bool = False) -> Stack:
    """Start everything of a run and create its partitions; end it again when a part does not start."""
    with ended_on_error(folder):
        stack = start_stack(scenario, folder)
        if with_prometheus:
            _add_prometheus(scenario, folder, stack)
        precreate(folder)
    return stack


def _add_prometheus(scenario: Scenario, folder: RunFolder, stack: Stack) -> None:
    environ = {**clean_environ(), RUN_VARIABLE: str(folder.path)}

    def on_start(tracked: Tracked) -> None:
        stack.processes.append(tracked)
        write_json(folder.stack, stack)

    if not start_prometheus(scenario, folder, stack, environ, on_start):
        print(NOT_INSTALLED, file=sys.stderr)


def end_cluster(folder: RunFolder) -> dict[str, str]:
    """End the processes of a run; return what happened to each, by name."""
    clear_targets(folder)
    return stop_stack(folder)
