"""The scheduler of upkeep on virtual time: what it visits, what an idle hour costs, errors, and its end."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import pytest

from shared.runtime.disk_thread import DiskThread
from tests.harness.brokers.one_broker import OneBroker
from tests.harness.machine.manual_loop import StepThread
from topicsd.broker.broker import ReadLimits
from topicsd.broker.catalog_of_store import adopt_store
from topicsd.broker.shared_config import SharedTopicConfig, encode_shared_config
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.scheduler import UpkeepLimits, UpkeepScheduler
from topicsd.broker.upkeep.store_clock import SKEW_MS, ClockDiffers, StoreClock
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, SharedTopic

T = TypeVar("T")
MINUTE, HOUR = 60_000, 3_600_000
NO_VACUUM = UpkeepLimits(vacuum_seconds=0, compactor=CompactorLimits())


def make_broker() -> OneBroker:
    """Return a broker without polls, which would be counted."""
    return OneBroker(read_limits=ReadLimits(tail_cache_bytes=0, block_cache_bytes=0, poll_seconds=1e9))


def start_thread(one: OneBroker, name: str) -> DiskThread:
    thread = StepThread(one.loop)
    one.threads.append(thread)
    return thread


def make_scheduler(one: OneBroker, name: str = "u", limits: UpkeepLimits = NO_VACUUM) -> UpkeepScheduler:
    thread, rng = partial(start_thread, one), random.Random(name)
    return UpkeepScheduler(
        one.clock, one.loop, one.store, one.catalog, one.retries, limits, name, thread, rng
    )


class SlowThread(StepThread):
    """A thread whose jobs take half a second each."""

    def __init__(self, one: OneBroker) -> None:
        super().__init__(one.loop)
        self._one = one

    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], object]) -> None:
        self._one.loop.call_later(0.5, super().submit, job, done)


def with_blobs(one: OneBroker, topics: int, blobs: int, config: SharedTopicConfig | None = None) -> list[str]:
    """Write some blobs with a record of each topic, and let them get old."""
    adopt_store(one.store, one.topics, one.retries)
    names = [f"t{number:02d}" for number in range(topics)]
    for number, name in enumerate(names):
        one.topics.create(name, number + 1, b"{}" if config is None else encode_shared_config(config))
    for number in range(blobs):
        for name in names:
            one.append(name, b"%d" % number)
        one.advance(1_000)
    one.clock.advance(REPEATED_MS)
    return names


def topic_of(one: OneBroker, name: str) -> SharedTopic:
    (topic,) = one.topics.topics([name])
    assert topic is not None
    return topic


def extents(one: OneBroker, name: str) -> int:
    return len(one.topics.extents_from(name, 1, 100))


def test_all_topics_are_found_and_compacted() -> None:
    one = make_broker()
    names = with_blobs(one, 12, 5)
    scheduler = make_scheduler(one)
    scheduler.start()
    one.advance(5 * MINUTE, 1_000)
    counts = scheduler.counts
    assert (counts.topics, counts.merged, counts.merged_extents) == (12, 12, 60)
    assert (counts.pending_topics, counts.pending_records, counts.failed) == (0, 0, 0)
    for name in names:
        assert extents(one, name) == 1
        assert one.values(name) == [(seq, b"%d" % (seq - 1)) for seq in range(1, 6)]


def test_an_idle_hour_costs_a_listing_a_minute_and_nothing_of_the_store() -> None:
    one = make_broker()
    with_blobs(one, 30, 3)
    scheduler = make_scheduler(one)
    scheduler.start()
    one.advance(10 * MINUTE, 1_000)
    one.catalog.calls.clear()
    requests = len(one.store.requests)
    one.advance(HOUR, 1_000)
    # Each listing is one page with topics, and one that is empty.
    assert dict(one.catalog.calls) == {"list": 120}
    assert len(one.store.requests) == requests


def test_a_record_that_waits_alone_costs_a_visit_an_hour_at_last() -> None:
    one = make_broker()
    with_blobs(one, 1, 1)
    scheduler = make_scheduler(one)
    scheduler.start()
    one.advance(3 * HOUR, 10_000)
    before = scheduler.counts.runs
    one.advance(10 * HOUR, 10_000)
    assert 9 <= scheduler.counts.runs - before <= 11
    assert (scheduler.counts.pending_topics, scheduler.counts.pending_records) == (1, 1)
    one.append("t00", b"second")
    one.advance(HOUR, 10_000)
    assert scheduler.counts.merged == 1


def test_slices_wait_for_others_so_that_a_slow_topic_gets_few_objects() -> None:
    one = make_broker()
    with_blobs(one, 1, 1)
    limits = UpkeepLimits(vacuum_seconds=0, compactor=CompactorLimits(wait_ms=45 * MINUTE))
    scheduler = make_scheduler(one, limits=limits)
    scheduler.start()
    for _ in range(48):
        one.append("t00", b"x")
        one.advance(5 * MINUTE, 5_000)
    assert 3 <= scheduler.counts.merged <= 5
    assert [seq for seq, _ in one.values("t00")] == list(range(1, 50))


def test_two_schedulers_compact_the_same_topics_once() -> None:
    one = make_broker()
    names = with_blobs(one, 20, 4)
    both = [make_scheduler(one, "u"), make_scheduler(one, "v")]
    for scheduler in both:
        scheduler.start()
    one.loop.run_until_idle()
    # In any order of the threads, and not those of the first scheduler before the others.
    rng = random.Random(7)
    while any(thread.pending for thread in one.threads):
        rng.choice(one.threads).run_one()
        one.loop.run_until_idle()
    one.advance(30 * MINUTE, 1_000)
    assert sum(scheduler.counts.merged for scheduler in both) == 20
    assert all(scheduler.counts.merged for scheduler in both)
    for name in names:
        assert one.values(name) == [(seq, b"%d" % (seq - 1)) for seq in range(1, 5)]


def test_new_and_deleted_topics_are_noticed() -> None:
    one = make_broker()
    with_blobs(one, 2, 2)
    scheduler = make_scheduler(one)
    scheduler.start()
    one.advance(2 * MINUTE, 1_000)
    one.topics.forget("t00", 1)
    one.create("later", 9)
    one.advance(2 * MINUTE, 1_000)
    assert scheduler.counts.topics == 2
    for _ in range(2):
        one.append("later", b"x")
        one.advance(1_000)
    one.advance(40 * MINUTE, 1_000)
    assert extents(one, "later") == 1


def test_what_fails_is_repeated_later_and_a_listing_resumes() -> None:
    one = make_broker()
    with_blobs(one, 3, 3)
    for verb in ("list", "claim", "begin_compaction"):
        one.catalog.faults[verb] = deque(["lost request", None, "lost answer"])
    scheduler = make_scheduler(one)
    scheduler.start()
    one.advance(20 * MINUTE, 1_000)
    assert scheduler.counts.failed > 3
    for name in ("t00", "t01", "t02"):
        assert extents(one, name) == 1
        assert [seq for seq, _ in one.values(name)] == [1, 2, 3]


def test_a_seed_topic_is_visited_although_the_listing_fails() -> None:
    one = make_broker()
    with_blobs(one, 1, 2)
    one.catalog.faults["list"] = deque(["lost request"] * 100)
    scheduler = make_scheduler(one, limits=NO_VACUUM._replace(seed_topics=("t00", "absent")))
    scheduler.start()
    one.advance(2 * MINUTE, 1_000)
    assert extents(one, "t00") == 1


def test_a_stop_between_any_two_calls_releases_the_claim_and_loses_nothing() -> None:
    calls = 0
    while True:
        one = make_broker()
        with_blobs(one, 1, 3)
        stopped: list[bool] = []
        scheduler = make_scheduler(one)
        scheduler.start()
        one.loop.run_until_idle()
        for _ in range(calls):
            any(thread.run_one() for thread in one.threads)
            one.loop.run_until_idle()
        was_merged = extents(one, "t00") == 1
        scheduler.stop(lambda stopped=stopped: stopped.append(True))
        for _ in range(10):
            one.settle()
        assert stopped == [True]
        assert one.topics.claim("t00", "other", 1_000) is not None
        assert [seq for seq, _ in one.values("t00")] == [1, 2, 3]
        if was_merged:
            return
        calls += 1


def test_the_ttl_removes_whole_extents_and_nothing_younger() -> None:
    one = make_broker()
    with_blobs(one, 1, 1, SharedTopicConfig(ttl_ms=2 * HOUR))
    scheduler = make_scheduler(one)
    scheduler.start()
    begun_ms = one.clock.now_ms()
    for _ in range(60):
        one.append("t00", b"%d" % one.clock.now_ms())
        one.advance(6 * MINUTE, 5_000)
        oldest = next(
            int(value) for _, value in one.values("t00", topic_of(one, "t00").first_seq) if value != b"0"
        )
        assert one.clock.now_ms() - oldest < 2 * HOUR + 30 * MINUTE
        first = topic_of(one, "t00").first_seq
        # Records were written 6 minutes apart: none that is younger than the TTL is gone.
        expired = (one.clock.now_ms() - begun_ms - 2 * HOUR) // (6 * MINUTE) + 2
        assert first - 1 <= max(1, expired)
    assert scheduler.counts.trims > 3
    one.advance(3 * HOUR, 10_000)
    assert topic_of(one, "t00").first_seq == 62
    assert scheduler.counts.trimmed_records == 61


@pytest.mark.parametrize("topics", [30, 120])
def test_topics_with_a_short_ttl_leave_time_for_the_listing_and_for_others(topics: int) -> None:
    one = make_broker()
    names = with_blobs(one, topics, 1, SharedTopicConfig(ttl_ms=3_000))

    def start(name: str) -> DiskThread:
        thread = SlowThread(one)
        one.threads.append(thread)
        return thread

    scheduler = UpkeepScheduler(
        one.clock, one.loop, one.store, one.catalog, one.retries, NO_VACUUM, "u", start, random.Random(1)
    )
    scheduler.start()
    one.advance(2 * MINUTE, 500)
    one.create("later", 999)
    for number in range(3):
        one.append("later", b"%d" % number)
        one.advance(1_000, 500)
    minutes = 0
    while extents(one, "later") > 1:
        for name in names:
            one.append(name, b"x")
        one.advance(3_000, 500)
        minutes += 1 / 20
        assert minutes < 30
    # A pass is a minute of visits at most, and perhaps a pause of a minute.
    assert scheduler.counts.passes >= minutes / 2.5
    assert scheduler.counts.topics == topics + 1
    assert one.values("later") == [(1, b"0"), (2, b"1"), (3, b"2")]
    # All others were visited as well, again and again.
    assert all(topic_of(one, name).first_seq > 20 for name in names)


def test_caps_keep_the_newest_records() -> None:
    one = make_broker()
    with_blobs(one, 1, 20, SharedTopicConfig(cap_records=7))
    scheduler = make_scheduler(one)
    scheduler.start()
    one.advance(2 * MINUTE, 1_000)
    topic = topic_of(one, "t00")
    assert (topic.first_seq, topic.evicted_to, topic.deleted_to) == (14, 13, 0)
    assert [seq for seq, _ in one.values("t00", 14)] == list(range(14, 21))


def test_a_cap_of_bytes_keeps_at_least_its_bytes_and_at_most_an_extent_more() -> None:
    one = make_broker()
    with_blobs(one, 1, 1, SharedTopicConfig(cap_bytes=20_000))
    scheduler = make_scheduler(one, limits=NO_VACUUM._replace(compactor=CompactorLimits(object_bytes=3_000)))
    scheduler.start()
    for number in range(120):
        one.append("t00", b"%d" % number + b"x" * 400)
        one.advance(2 * MINUTE, 5_000)
    one.advance(20 * MINUTE, 5_000)
    topic = topic_of(one, "t00")
    kept, seq = 0, topic.first_seq
    while seq <= topic.head:
        values = one.values("t00", seq)
        kept += sum(len(value) + 46 for _, value in values)
        seq = values[-1][0] + 1
    assert topic.evicted_to > 0
    assert 20_000 <= kept <= 20_000 + 3_000 + 500


def test_one_of_two_schedulers_vacuums_in_an_interval() -> None:
    one = make_broker()
    with_blobs(one, 1, 4)
    one.store.create("llog/wal-shared/orphan", [b"x"], "id")
    limits = UpkeepLimits(vacuum_seconds=3600, grace_ms=HOUR, compactor=CompactorLimits())
    both = [make_scheduler(one, "u", limits), make_scheduler(one, "v", limits)]
    for scheduler in both:
        scheduler.start()
    for _ in range(6 * 60):
        one.store.now_ms = one.clock.now_ms()
        one.advance(MINUTE, 5_000)
    counts = [scheduler.counts for scheduler in both]
    assert 5 <= sum(one.vacuums for one in counts) <= 7
    # Four blobs whose records were merged, and the orphan.
    assert sum(one.vacuumed_objects for one in counts) == 5
    markers = [key for key in one.store.objects if key.startswith("llog/vacuum/")]
    assert len(markers) <= 2
    assert [seq for seq, _ in one.values("t00")] == [1, 2, 3, 4]


@pytest.mark.parametrize(("at", "merged"), [(0, 0), (1, 1), (3, 3)])
@pytest.mark.parametrize("what", ["missing", "encoding"])
def test_a_slice_that_cannot_be_merged_is_logged_and_counted_once(
    what: str, at: int, merged: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = make_broker()
    with_blobs(one, 2, 5)
    extent = one.topics.extents_from("t01", 1, 100)[at]
    if what == "missing":
        # Both topics have a slice in it.
        del one.store.objects[extent.key]
    else:
        one.topics.replace_extents("t01", msgspec.structs.replace(extent, encoding="bytes-batch-v1"))
    scheduler = make_scheduler(one)
    scheduler.start()
    one.advance(5 * HOUR, 10_000)
    is_missing = what == "missing"
    assert scheduler.counts.blocked_extents == 1 + is_missing
    (text,) = [text for record in caplog.records if "t01" in (text := record.getMessage())]
    assert extent.key in text
    assert f"seqs {at + 1}..{at + 1}" in text
    assert scheduler.counts.merged_extents == (2 * merged if is_missing else 5 + merged)
    assert scheduler.counts.runs < 60


@pytest.mark.parametrize("ahead_ms", [7_200_000, -7_200_000])
def test_over_a_catalog_without_a_clock_nothing_is_done_while_the_own_clock_is_wrong(ahead_ms: int) -> None:
    one = make_broker()
    with_blobs(one, 3, 4, SharedTopicConfig(ttl_ms=60_000))
    limits = UpkeepLimits(has_catalog_clock=False, vacuum_seconds=60.0)
    scheduler = make_scheduler(one, limits=limits)
    scheduler.start()
    one.store.now_ms = one.clock.now_ms() - ahead_ms
    one.advance(300_000, 10_000)
    counts = scheduler.counts
    assert (counts.runs, counts.trims, counts.merged, counts.vacuums) == (0, 0, 0, 0)
    assert counts.failed >= 4
    assert extents(one, "t00") == 4
    # The clock is corrected.
    one.store.now_ms = one.clock.now_ms()
    one.advance(90_000, 10_000)
    assert counts.trims == 3
    assert counts.vacuums > 0


def test_the_store_is_asked_for_its_time_once_an_hour() -> None:
    one = make_broker()
    clock = StoreClock(one.clock, one.store, one.retries)
    with pytest.raises(ClockDiffers, match="ahead of that of the store fake://store"):
        clock.check()
    one.store.now_ms = one.clock.now_ms() - SKEW_MS
    clock.check()
    # As if the store had gone: an hour later it is asked again.
    one.store.now_ms = 0
    one.clock.advance(3_599_000)
    clock.check()
    one.clock.advance(1_000)
    with pytest.raises(ClockDiffers):
        clock.check()
