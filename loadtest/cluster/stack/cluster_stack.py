"""The cluster of a run: start it, look at it, end it.

`stack.json` is written after every start, so that a later command, or this one after Ctrl-C, finds each
process.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from loadtest.bench.subjects import environ as clean_environ
from loadtest.cluster.run_folder import RunFolder, read_lines, write_json
from loadtest.cluster.scenario import Scenario
from loadtest.cluster.stack.engines import remove_outside, start_catalog, start_store, wait_until
from loadtest.cluster.stack.programs import CREDENTIALS, free_port
from loadtest.cluster.stack.tracked import RUN_VARIABLE, Tracked, end_leftovers, leftovers, start, stop

ANSWER_SECONDS: Final = 10.0
PROGRAMS: Final = {
    "topicsd": ("topicsd", "serve", "--shards", "0"),
    "bare": ("loadtest.cluster.figures.bare_broker",),
}


class Stack(msgspec.Struct, kw_only=True):
    """What runs for a run. `stack.json` has it."""

    run: str
    store_url: str = ""
    catalog_url: str = ""
    processes: list[Tracked] = []
    """In the order of their starts."""

    @property
    def nodes(self) -> list[Tracked]:
        return [one for one in self.processes if one.name.startswith("node-")]


def read_stack(folder: RunFolder) -> Stack:
    if not folder.stack.exists():
        return Stack(run=str(folder.path))
    return msgspec.json.decode(folder.stack.read_bytes(), type=Stack)


def start_stack(scenario: Scenario, folder: RunFolder) -> Stack:
    """Start store, catalog and nodes, and wait until every node is healthy."""
    stack = Stack(run=str(folder.path), processes=[])
    write_json(folder.stack, stack)
    environ = {**clean_environ(), **CREDENTIALS, RUN_VARIABLE: str(folder.path)}

    def on_start(tracked: Tracked) -> None:
        stack.processes.append(tracked)
        write_json(folder.stack, stack)

    stack.store_url = start_store(scenario, folder, environ, on_start)
    stack.catalog_url = start_catalog(scenario, folder, environ, on_start)
    for name in scenario.node_names:
        on_start(start_node(name, scenario, folder, stack, environ))
    for node in stack.nodes:
        wait_until(node, lambda url=node.url: health(url) is not None)  # type: ignore[misc]
    write_json(folder.layout, broker_layout(stack))
    return stack


def start_node(
    name: str, scenario: Scenario, folder: RunFolder, stack: Stack, environ: dict[str, str]
) -> Tracked:
    """Start a node without shards, with a broker and a data directory of its own."""
    port = free_port()
    home = folder.data / name
    home.mkdir(exist_ok=True)
    settings = {
        "TOPICS_HOST": "127.0.0.1",
        "TOPICS_PORT": str(port),
        "TOPICS_DATA_DIR": str(home),
        "TOPICS_STORE_URL": stack.store_url,
        "TOPICS_CATALOG_URL": stack.catalog_url,
        "TOPICS_BATCH_MAX_BYTES": str(scenario.batch_max_bytes),
        "TOPICS_BATCH_MAX_DELAY_MS": str(scenario.linger_ms),
        "TOPICS_BATCH_MAX_DELAY_LOW_MS": str(scenario.linger_ms),
        **scenario.settings,
    }
    command = [sys.executable, "-m", *PROGRAMS[scenario.program]]
    url = f"http://127.0.0.1:{port}"
    log = folder.logs / f"{name}.log"
    return start(name, command, log, {**environ, **settings}, port=port, url=url)


def get_json(url: str, path: str) -> Any:
    """Return the document at a path of a node; None when it does not answer with one."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        return msgspec.json.decode(body) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()


def health(url: str) -> dict[str, Any] | None:
    """Return the answer of a healthy node."""
    answer = get_json(url, "/health")
    return answer if isinstance(answer, dict) and answer.get("status") == "ok" else None


def broker_layout(stack: Stack) -> list[dict[str, Any]]:
    return [
        {"node": node.name, "url": node.url, "port": node.port, "pid": node.pid, "health": health(node.url)}
        for node in stack.nodes
    ]


def stop_stack(folder: RunFolder) -> dict[str, str]:
    """End the processes of a run, the last one first; return what happened to each, by name."""
    stack = read_stack(folder)
    outcomes = {}
    for tracked in reversed(stack.processes):
        # SIGINT is the fast shutdown of PostgreSQL; SIGTERM would wait for its clients.
        is_database = tracked.url.startswith("postgresql:")
        outcomes[tracked.name] = stop(tracked, signal.SIGINT if is_database else signal.SIGTERM)
    for pid in end_leftovers(folder.path):
        outcomes[f"leftover {pid}"] = "killed"
    remove_outside(folder)
    stack.processes = []
    write_json(folder.stack, stack)
    return outcomes


@contextlib.contextmanager
def ended_on_error(folder: RunFolder) -> Iterator[None]:
    """End the processes of a run when the block fails or Ctrl-C interrupts it."""
    try:
        yield
    except BaseException:
        stop_stack(folder)
        raise


def status(folder: RunFolder) -> dict[str, Any]:
    """Describe what lives of a run, its health, and the last sample."""
    stack = read_stack(folder)
    tracked = {one.pid for one in stack.processes}
    return {
        "run": str(folder.path),
        "processes": {one.name: _process_status(one) for one in stack.processes},
        "untracked": sorted(set(leftovers(folder.path)) - tracked) if not stack.processes else [],
        "last_sample": next(reversed(read_lines(folder.metrics)), None),
        "has_summary": folder.summary.exists(),
    }


def _process_status(tracked: Tracked) -> dict[str, Any]:
    if not tracked.is_alive:
        return {"pid": tracked.pid, "state": "dead", "log": tracked.log}
    described: dict[str, Any] = {"pid": tracked.pid, "state": "alive", "url": tracked.url}
    if tracked.name.startswith("node-"):
        answer = health(tracked.url)
        described["state"] = "healthy" if answer is not None else "not healthy"
    return described
