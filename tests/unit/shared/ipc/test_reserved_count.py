"""The count of topics while workers request, create, delete, die and restart."""

from __future__ import annotations

from random import Random

import pytest

from shared.ipc.board import WorkerState
from shared.ipc.exact_counts import TOPICS, ReservedCount
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.stage.small_board import SmallBoard


@pytest.fixture
def small() -> SmallBoard:
    return SmallBoard(2, ManualClock())


def _make(small: SmallBoard, shard: int, makes: bool = True) -> None:
    """The worker receives its grant, and creates the topic or not."""
    slot = small.board.slot(shard)
    slot.topics += makes
    slot.topic_grants_total += 1


def test_grants_over_all_shards_stop_at_the_cap(small: SmallBoard) -> None:
    count = ReservedCount(small.board, 5, TOPICS)
    assert [count.reserve(shard) for shard in (0, 1, 0, 1, 1, 0, 1)] == [True] * 5 + [False] * 2
    for shard in (0, 1, 0, 1, 1):
        _make(small, shard)
    assert count.reserve(0) is False


def test_an_unused_grant_is_returned(small: SmallBoard) -> None:
    count = ReservedCount(small.board, 1, TOPICS)
    assert count.reserve(0)
    assert count.reserve(1) is False
    _make(small, 0, makes=False)
    assert count.reserve(1)


def test_a_deleted_topic_can_be_replaced_at_once(small: SmallBoard) -> None:
    small.begin(0, pid=1, topics=3)
    count = ReservedCount(small.board, 3, TOPICS)
    assert count.reserve(1) is False
    small.board.slot(0).topics -= 1
    assert count.reserve(1)
    assert count.reserve(1) is False


def test_a_shard_that_is_down_keeps_its_count(small: SmallBoard) -> None:
    small.begin(1, pid=7, topics=4)
    count = ReservedCount(small.board, 6, TOPICS)
    count.read_board()
    small.end(1)
    assert [count.reserve(0) for _ in range(3)] == [True, True, False]
    small.board.slot(1).state = WorkerState.REPLAYING
    assert count.reserve(0) is False
    for _ in range(2):
        _make(small, 0)
    small.begin(1, pid=8, topics=3)
    assert [count.reserve(0) for _ in range(2)] == [True, False]


def test_the_grants_of_a_dead_worker_are_returned_when_it_is_ready_again(
    small: SmallBoard,
) -> None:
    count = ReservedCount(small.board, 2, TOPICS)
    assert count.reserve(1)
    assert count.reserve(1)
    small.end(1)
    assert count.reserve(0) is False
    small.begin(1, pid=9, topics=1)
    assert [count.reserve(0) for _ in range(2)] == [True, False]


def test_nothing_is_granted_before_every_count_is_known(small: SmallBoard) -> None:
    small.end(1)
    count = ReservedCount(small.board, 10, TOPICS)
    assert count.reserve(0) is None
    small.board.slot(1).state = WorkerState.REFUSED
    assert count.reserve(0) is True


def test_without_a_cap_everything_is_granted(small: SmallBoard) -> None:
    small.end(1)
    assert ReservedCount(small.board, 0, TOPICS).reserve(0) is True


def test_the_cap_holds_in_any_order_of_events() -> None:
    bound = 6
    for seed in range(200):
        rng = Random(seed)
        small = SmallBoard(3, ManualClock())
        count = ReservedCount(small.board, bound, TOPICS)
        topics, under_way = [0, 0, 0], [0, 0, 0]
        for _ in range(60):
            shard = rng.randrange(3)
            slot = small.board.slot(shard)
            what = rng.choice(["ask", "ask", "hear", "delete", "die", "look"])
            if slot.state is not WorkerState.READY:
                small.begin(shard, pid=rng.randrange(1, 1 << 30), topics=topics[shard])
            elif what == "ask" and count.reserve(shard):
                under_way[shard] += 1
            elif what == "hear" and under_way[shard]:
                under_way[shard] -= 1
                topics[shard] += rng.random() < 0.8
                slot.topics = topics[shard]
                slot.topic_grants_total += 1
            elif what == "delete" and topics[shard]:
                topics[shard] -= 1
                slot.topics = topics[shard]
            elif what == "look":
                count.read_board()
            elif what == "die":
                count.read_board()
                small.end(shard)
                under_way[shard] = 0
            assert sum(topics) <= bound, seed
