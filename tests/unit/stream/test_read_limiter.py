"""A few readings of a connection are on their way, the others wait; none is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.live_stage import Collector, wanted
from tests.harness.manual_clock import ManualClock
from tests.harness.manual_loop import ManualLoop
from topicsd.engine.wakeups.wake_queue import Waiter
from topicsd.stream.chunks import Piece
from topicsd.stream.feed import OnChunk
from topicsd.stream.read_limiter import CONCURRENT_READS_MAX, RESUMES_PER_TURN_MAX, Pace
from topicsd.stream.subscription import Subscription

TOPICS = 10


class SlowFeed:
    """Answers when the test says so."""

    def __init__(self, number: int, answers_at_once: bool = False) -> None:
        self.wanted = wanted(f"t{number}")
        self.asked: list[tuple[int, OnChunk]] = []
        self.count = 0
        self._answers_at_once = answers_at_once

    def read(self, seq: int, epoch: int | None, found: OnChunk) -> None:
        if self._answers_at_once:
            found(_piece(self, seq))
        else:
            self.asked.append((seq, found))

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None: ...

    def schedule(self, waiter: Waiter) -> None: ...

    def cancel(self, waiter: Waiter) -> None: ...

    def add_follower(self) -> None:
        self.count += 1

    def remove_follower(self) -> None:
        self.count -= 1

    def answer(self) -> None:
        seq, found = self.asked.pop(0)
        found(_piece(self, seq))


def _piece(feed: SlowFeed, seq: int) -> Piece:
    return Piece(feed.wanted.topic, 1, seq, seq + 1, seq + 1, 1, 1, b"{}", None)


class Stage:
    def __init__(self, answers_at_once: bool = False) -> None:
        self.is_clogged = False
        self.loop = ManualLoop(ManualClock())
        self.failures = 0
        self.pace = Pace(self.loop, lambda: self.is_clogged, self._failed)
        self.feeds = [SlowFeed(number, answers_at_once) for number in range(TOPICS)]
        self.paced = [self.pace.feed(feed) for feed in self.feeds]
        self.found: list[str] = []

    def _failed(self) -> None:
        self.failures += 1

    def read_all(self) -> None:
        for paced in self.paced:
            paced.read(0, None, lambda piece: self.found.append(piece.topic))  # type: ignore[union-attr]

    @property
    def under_way(self) -> list[int]:
        return [number for number, feed in enumerate(self.feeds) if feed.asked]


def test_few_are_on_their_way_and_the_next_begins_when_one_is_over() -> None:
    stage = Stage()
    stage.read_all()
    assert stage.under_way == list(range(CONCURRENT_READS_MAX))
    stage.feeds[2].answer()
    assert stage.under_way == [0, 1, 3, 4]
    while stage.under_way:
        stage.feeds[stage.under_way[0]].answer()
        assert len(stage.under_way) <= CONCURRENT_READS_MAX
    assert sorted(stage.found) == [f"t{number}" for number in range(TOPICS)]


def test_none_begins_while_the_connection_is_clogged() -> None:
    stage = Stage()
    stage.read_all()
    stage.is_clogged = True
    for number in range(CONCURRENT_READS_MAX):
        stage.feeds[number].answer()
    assert (len(stage.found), stage.under_way) == (CONCURRENT_READS_MAX, [])
    stage.is_clogged = False
    stage.pace.go_on()
    assert stage.under_way == list(range(CONCURRENT_READS_MAX, 2 * CONCURRENT_READS_MAX))


def test_what_is_found_at_once_waits_for_nothing() -> None:
    stage = Stage(answers_at_once=True)
    stage.read_all()
    assert stage.found == [f"t{number}" for number in range(TOPICS)]


def test_what_waits_for_one_that_left_is_not_begun() -> None:
    stage = Stage()
    stage.read_all()
    for paced in stage.paced:
        paced.add_follower()
    stage.paced[4].remove_follower()
    assert stage.feeds[4].count == 0
    while stage.under_way:
        stage.feeds[stage.under_way[0]].answer()
    assert "t4" not in stage.found
    assert len(stage.found) == TOPICS - 1


def test_many_that_wait_are_not_begun_within_each_other() -> None:
    stage = Stage()
    count = 5000
    quick = [stage.pace.feed(SlowFeed(99, answers_at_once=True)) for _ in range(count)]
    for paced in [*stage.paced[:CONCURRENT_READS_MAX], *quick]:
        paced.read(0, None, lambda piece: stage.found.append("found"))
    assert stage.found == []
    stage.feeds[0].answer()
    assert len(stage.found) == count + 1


def test_of_many_that_may_go_on_some_do_in_a_turn_of_the_loop() -> None:
    stage = Stage()
    sinks: list[Any] = [Collector(SlowFeed(number)) for number in range(2 * RESUMES_PER_TURN_MAX + 1)]
    feeds = [sink.subscription.feed for sink in sinks]
    for feed in feeds:
        feed.answer()
    stage.pace.go_on_with([sink.subscription for sink in sinks])
    for begun in (RESUMES_PER_TURN_MAX, 2 * RESUMES_PER_TURN_MAX, len(sinks), len(sinks)):
        assert sum(bool(feed.asked) for feed in feeds) == begun
        stage.loop.run_turn()


def test_a_mistake_in_one_of_them_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Collector):
        def deliver(self, subscription: Subscription, piece: Piece) -> None:
            raise ZeroDivisionError

    stage, sink = Stage(), Broken(SlowFeed(0))
    subscription = Subscription(SlowFeed(1, answers_at_once=True), 0, None, sink)
    stage.pace.go_on_with([subscription])
    assert stage.failures == 1
    assert "subscriptions not resumed" in caplog.text
