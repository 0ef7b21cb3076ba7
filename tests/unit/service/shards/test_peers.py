"""The other shards as the board shows them."""

from __future__ import annotations

import pytest

from shared.contract.errors import NOT_READY, STORAGE_FAILED
from shared.http.head import Fields
from shared.ipc.board import WorkerState
from shared.ipc.link import Done, LinkCall, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import Placement
from shared.runtime.body_memory import SharedBody
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop
from tests.harness.stage.shared_stage import RecordedCall
from tests.harness.stage.small_board import SmallBoard
from topicsd.service.shards.peers import FRESH_MS, Peers
from topicsd.service.shards.remote_call import RETRY_SECONDS, RemoteCaller


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


class RecordedLinks(LinkPool):
    """Links that keep the names of the processes asked, and what takes their answers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.dones: list[Done] = []

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> LinkCall:
        self.names.append(name)
        self.dones.append(done)
        return LinkCall(done)


def test_another_broker_is_asked_while_the_present_one_does_not_serve(clock: ManualClock) -> None:
    """This includes the retry of a request with a key, whose broker has ended."""
    small = SmallBoard(1, clock, brokers=3)
    first, second, third = small.board.broker_numbers
    peers, links, loop = Peers(small.board, clock, 0), RecordedLinks(), ManualLoop(clock)
    caller = RemoteCaller(links, peers, Placement(1), loop, clock.monotonic, lambda: False, second)
    fields = Fields(content_type="application/json", idempotency_key="k")

    def ask() -> None:
        caller.start("append", second, RecordedCall("t", "", fields, b"{}", clock.monotonic()), None)

    ask()
    small.end(second)
    ask()
    small.end(third)
    ask()
    links.dones[1](None)
    loop.advance(RETRY_SECONDS * 1000 + 1)
    assert links.names == [str(number) for number in (second, third, first, first)]
    small.end(first)
    assert peers.ready_broker(second) == second
    assert peers.ready_broker(0) == 0


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
