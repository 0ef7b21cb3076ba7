"""The read limiter bounds the concurrent reads of a connection and starts every waiting read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop
from tests.harness.stage.feed_shards import Collector, feed_spec
from topicsd.engine.wakeups.wake_queue import Waiter
from topicsd.stream.chunks import Chunk
from topicsd.stream.feed import OnChunk
from topicsd.stream.read_limiter import CONCURRENT_READS_MAX, RESUMES_PER_TURN_MAX, ReadLimiter
from topicsd.stream.subscription import Subscription

TOPICS = 10


class SlowFeed:
    """A feed that answers when the test says so."""

    def __init__(self, number: int, answers_at_once: bool = False) -> None:
        self.spec = feed_spec(f"t{number}")
        self.reads: list[tuple[int, OnChunk]] = []
        self.count = 0
        self._answers_at_once = answers_at_once

    def read(self, seq: int, epoch: int | None, on_chunk: OnChunk) -> None:
        if self._answers_at_once:
            on_chunk(_chunk(self, seq))
        else:
            self.reads.append((seq, on_chunk))

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None: ...

    def schedule(self, waiter: Waiter) -> None: ...

    def cancel(self, waiter: Waiter) -> None: ...

    def add_follower(self) -> None:
        self.count += 1

    def remove_follower(self) -> None:
        self.count -= 1

    def answer(self) -> None:
        seq, on_chunk = self.reads.pop(0)
        on_chunk(_chunk(self, seq))


def _chunk(feed: SlowFeed, seq: int) -> Chunk:
    return Chunk(feed.spec.topic, 1, seq, seq + 1, seq + 1, 1, 1, b"{}", None)


class LimitedReads:
    def __init__(self, answers_at_once: bool = False) -> None:
        self.is_paused = False
        self.loop = ManualLoop(ManualClock())
        self.failures = 0
        self.limiter = ReadLimiter(self.loop, lambda: self.is_paused, self._on_failure)
        self.feeds = [SlowFeed(number, answers_at_once) for number in range(TOPICS)]
        self.limited = [self.limiter.feed(feed) for feed in self.feeds]
        self.read_topics: list[str] = []

    def _on_failure(self) -> None:
        self.failures += 1

    def read_all(self) -> None:
        for limited in self.limited:
            limited.read(0, None, lambda chunk: self.read_topics.append(chunk.topic))  # type: ignore[union-attr]

    @property
    def reading(self) -> list[int]:
        return [number for number, feed in enumerate(self.feeds) if feed.reads]


def test_a_waiting_read_starts_when_another_one_ends() -> None:
    limits = LimitedReads()
    limits.read_all()
    assert limits.reading == list(range(CONCURRENT_READS_MAX))
    limits.feeds[2].answer()
    assert limits.reading == [0, 1, 3, 4]
    while limits.reading:
        limits.feeds[limits.reading[0]].answer()
        assert len(limits.reading) <= CONCURRENT_READS_MAX
    assert sorted(limits.read_topics) == [f"t{number}" for number in range(TOPICS)]


def test_no_read_starts_while_the_connection_is_paused() -> None:
    limits = LimitedReads()
    limits.read_all()
    limits.is_paused = True
    for number in range(CONCURRENT_READS_MAX):
        limits.feeds[number].answer()
    assert (len(limits.read_topics), limits.reading) == (CONCURRENT_READS_MAX, [])
    limits.is_paused = False
    limits.limiter.resume()
    assert limits.reading == list(range(CONCURRENT_READS_MAX, 2 * CONCURRENT_READS_MAX))


def test_reads_that_are_answered_at_once_do_not_wait() -> None:
    limits = LimitedReads(answers_at_once=True)
    limits.read_all()
    assert limits.read_topics == [f"t{number}" for number in range(TOPICS)]


def test_the_waiting_read_of_a_removed_follower_never_starts() -> None:
    limits = LimitedReads()
    limits.read_all()
    for limited in limits.limited:
        limited.add_follower()
    limits.limited[4].remove_follower()
    assert limits.feeds[4].count == 0
    while limits.reading:
        limits.feeds[limits.reading[0]].answer()
    assert "t4" not in limits.read_topics
    assert len(limits.read_topics) == TOPICS - 1


def test_many_waiting_reads_do_not_nest() -> None:
    limits = LimitedReads()
    count = 5000
    quick = [limits.limiter.feed(SlowFeed(99, answers_at_once=True)) for _ in range(count)]
    for limited in [*limits.limited[:CONCURRENT_READS_MAX], *quick]:
        limited.read(0, None, lambda chunk: limits.read_topics.append("quick"))
    assert limits.read_topics == []
    limits.feeds[0].answer()
    assert len(limits.read_topics) == count + 1


def test_a_bounded_number_of_subscriptions_resumes_in_each_turn() -> None:
    limits = LimitedReads()
    sinks: list[Any] = [Collector(SlowFeed(number)) for number in range(2 * RESUMES_PER_TURN_MAX + 1)]
    feeds = [sink.subscription.feed for sink in sinks]
    for feed in feeds:
        feed.answer()
    limits.limiter.resume_all([sink.subscription for sink in sinks])
    for started_count in (RESUMES_PER_TURN_MAX, 2 * RESUMES_PER_TURN_MAX, len(sinks), len(sinks)):
        assert sum(bool(feed.reads) for feed in feeds) == started_count
        limits.loop.run_turn()


def test_an_exception_in_a_subscription_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Collector):
        def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
            raise ZeroDivisionError

    limits, sink = LimitedReads(), Broken(SlowFeed(0))
    subscription = Subscription(SlowFeed(1, answers_at_once=True), 0, None, sink)
    limits.limiter.resume_all([subscription])
    assert limits.failures == 1
    assert "subscriptions not resumed" in caplog.text
