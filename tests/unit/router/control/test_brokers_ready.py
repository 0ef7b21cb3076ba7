"""Readiness and metrics of a server with brokers, over a real board."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from router.control.control import ControlEndpoints
from router.control.watch_home import WatchHome
from shared.contract.errors import Refusal, not_ready
from shared.ipc.board import Board, WorkerState
from shared.ipc.exact_counts import WATCH_SESSIONS, ReservedCount
from shared.ipc.shared_placement import SharedPlacement
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.output.prometheus_text import parse
from tests.harness.server.supervisor_parts import no_backup_points
from tests.unit.router.control.test_control import FakeServer, Workers


class Brokers:
    def __init__(self) -> None:
        self.were_ready = False

    def was_ready(self, number: int) -> bool:
        return self.were_ready

    def restart_count(self, number: int) -> int:
        return 5


class Node:
    """A node with one broker, and so many shards."""

    def __init__(self, board: Board) -> None:
        self.workers, self.brokers = Workers(board), Brokers()
        self.board = board
        self.slot = board.brokers[0]
        clock = ManualClock()
        lists = FakeServer(board)
        self.control = ControlEndpoints(
            self.workers,
            clock,
            "1.2.3",
            lists.list_shard,
            lists,
            no_backup_points(clock),
            brokers=self.brokers,
        )

    def ask(self, operation: str, query: str = "", accept: str = "application/json") -> tuple[int, Any]:
        status, content, _ = asyncio.run(self.control.answer(operation, "", query, accept))
        return status, content


def made(shards: int) -> Iterator[Node]:
    board = Board.create(shards, broker_count=1)
    yield Node(board)
    board.close()
    os.close(board.fd)


@pytest.fixture
def node() -> Iterator[Node]:
    for one in made(1):
        one.workers.become(WorkerState.READY)
        yield one


@pytest.fixture
def stateless() -> Iterator[Node]:
    yield from made(0)


def test_the_first_start_of_a_broker_is_waited_for(node: Node) -> None:
    node.slot.state = WorkerState.STARTING
    for query in ("", "allow_degraded=true"):
        status, answer = node.ask("ready", query)
        assert (status, answer["error"]["message"]) == (503, "broker 0 is starting: shared topics wait")
    node.slot.state = WorkerState.READY
    status, answer = node.ask("ready")
    assert (status, answer["status"], "degraded" in answer) == (200, "ready", False)


def test_a_broker_that_waits_for_its_store_is_degraded(node: Node) -> None:
    node.slot.state = WorkerState.STARTING
    node.slot.reason = "waits for the store and the catalog: /srv/objects: no such folder"
    status, answer = node.ask("ready")
    assert (status, answer["status"]) == (200, "ready")
    assert answer["degraded"] == (
        "broker 0 is starting (waits for the store and the catalog): shared topics wait"
    )


@pytest.mark.parametrize("state", [WorkerState.GONE, WorkerState.STARTING, WorkerState.REFUSED])
def test_a_broker_that_is_down_leaves_the_shards_ready(node: Node, state: WorkerState) -> None:
    node.brokers.were_ready = True
    node.slot.state = state
    status, answer = node.ask("ready")
    assert (status, answer["status"], answer["brokers"][0]["serving"]) == (200, "ready", False)
    assert answer["degraded"].endswith(": shared topics wait")


def test_a_shard_that_is_down_is_not_ready_whatever_the_broker_is(node: Node) -> None:
    node.slot.state = WorkerState.READY
    node.workers.become(WorkerState.GONE)
    status, answer = node.ask("ready")
    assert (status, answer["error"]["message"]) == (503, "shard 0 is restarting")


def test_a_node_without_shards_is_ready_while_a_broker_serves(stateless: Node) -> None:
    assert stateless.ask("ready")[0] == 503
    stateless.slot.state = WorkerState.READY
    status, answer = stateless.ask("ready")
    assert (status, answer["status"], answer["shards"]) == (200, "ready", [])
    stateless.slot.state = WorkerState.GONE
    assert stateless.ask("ready")[0] == 503


def test_brokers_have_rows_in_the_metrics(node: Node) -> None:
    node.slot.state = WorkerState.READY
    node.slot.broker_records_in_total = 7
    answer = node.ask("metrics")[1]
    assert answer["topics_broker_records_in_total"] == 7
    assert answer["brokers"][0]["topics_broker_restarts_total"] == 5
    families = parse(node.ask("metrics", accept="")[1])
    assert 'topics_broker_records_in_total{broker="0"} 7' in node.ask("metrics", accept="")[1]
    assert "topics_broker_ready" in families


def test_a_node_without_shards_has_metrics(stateless: Node) -> None:
    stateless.slot.state = WorkerState.READY
    for accept in ("", "application/json"):
        assert stateless.ask("metrics", accept=accept)[0] == 200
    assert stateless.ask("store")[0] == 200
    assert stateless.ask("list_topics")[1]["topics"] == []


class Channels:
    def __init__(self, broker: int | None) -> None:
        self.broker = broker

    def __len__(self) -> int:
        return 0

    def refusal(self, owner: int) -> Refusal | None:
        return None

    def any_broker(self) -> int | None:
        return self.broker

    def none_ready(self, is_broker: bool) -> Refusal:
        return not_ready("no broker is ready")


def test_watch_sessions_of_a_node_without_shards_are_at_a_broker(stateless: Node) -> None:
    board = stateless.board
    placement = SharedPlacement(board.head, "")
    number = board.broker_number(0)
    sessions = ReservedCount(board, 1, WATCH_SESSIONS)
    assert WatchHome(Channels(number), placement, sessions).reserve(["orders"]) == number
    full = WatchHome(Channels(number), placement, sessions).reserve(["orders"])
    assert isinstance(full, Refusal)
    assert full.code == "throttled"
    none = WatchHome(Channels(None), placement, sessions).reserve(["orders"])
    assert isinstance(none, Refusal)
    assert none.message == "no broker is ready"
