"""The other shards as the board shows them."""

from __future__ import annotations

import pytest

from shared.contract.errors import NOT_READY, STORAGE_FAILED
from shared.ipc.board import WorkerState
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.stage.small_board import SmallBoard
from topicsd.service.shards.peers import FRESH_MS, Peers


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def small(clock: ManualClock) -> SmallBoard:
    return SmallBoard(3, clock)


@pytest.mark.parametrize("state", list(WorkerState))
def test_a_shard_receives_requests_while_it_serves(
    small: SmallBoard, clock: ManualClock, state: WorkerState
) -> None:
    small.board.slot(1).state = state
    refusal = Peers(small.board, clock, 0).refusal(1)
    if state in (WorkerState.READY, WorkerState.DRAINING):
        assert refusal is None
        return
    assert refusal is not None
    is_failed = state in (WorkerState.REFUSED, WorkerState.FAILED)
    assert refusal.code == (STORAGE_FAILED if is_failed else NOT_READY)
    assert refusal.detail == {"shard": 1}
    # A shard that does not start is not started again.
    assert refusal.retry_after_ms == (None if state is WorkerState.REFUSED else 1000)


def test_a_silent_shard_is_unavailable_until_its_next_heartbeat(
    small: SmallBoard, clock: ManualClock
) -> None:
    peers = Peers(small.board, clock, 0)
    clock.advance(FRESH_MS)
    assert peers.refusal(1) is None
    clock.advance(1)
    refusal = peers.refusal(1)
    assert refusal is not None
    assert refusal.message == "shard 1 does not answer"
    small.board.slot(1).beat_ms = int(clock.monotonic() * 1000)
    assert peers.refusal(1) is None


def test_totals_of_the_other_shards_exclude_this_shard(small: SmallBoard, clock: ManualClock) -> None:
    for shard, slot in enumerate(small.board):
        slot.topics, slot.bytes_live, slot.connections = 10**shard, 100 * 10**shard, 1
    peers = Peers(small.board, clock, 1)
    assert (peers.topics_elsewhere(), peers.bytes_elsewhere()) == (101, 10_100)
    assert not peers.has_draining_peer()
    small.board.slot(1).state = WorkerState.DRAINING
    assert not peers.has_draining_peer()
    small.board.slot(2).state = WorkerState.DRAINING
    assert peers.has_draining_peer()


def test_a_ready_peer_may_still_send_requests(small: SmallBoard, clock: ManualClock) -> None:
    peers = Peers(small.board, clock, 1)
    small.board.slot(1).state = WorkerState.DRAINING
    assert peers.has_ready_peer()
    for shard in (0, 2):
        small.board.slot(shard).state = WorkerState.DRAINING
    assert not peers.has_ready_peer()
