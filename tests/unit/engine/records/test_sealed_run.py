"""A sealed segment as part of a topic: numbers that are right without a look at its records."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.records.sealed_run import NEAR_RECORDS, SealedRun
from topicsd.segment.entry import SegmentEntry, SegmentName
from topicsd.segment.index_file import SegmentIndex

NEVER_MS = 1 << 40


def sealed() -> tuple[OneShard, SealedRun]:
    """Records 1 to 4 in a segment, a second apart; one of them is dead."""
    one = OneShard(checkpoint_interval_ms=NEVER_MS, segment_max_events=4)
    for number in range(6):
        one.append("t", record(number, tag=f"tag{number % 2}"))
        one.clock.advance(1000)
    one.delete("t", tag="tag1", before_seq=3)
    one.checkpoint()
    run = one.topic("t").runs[0]
    assert isinstance(run, SealedRun)
    return one, run


def test_its_counts_are_those_of_what_is_alive() -> None:
    _, run = sealed()
    size = run.lengths[0]
    assert (run.live_count, run.live_bytes, run.dead_count) == (3, 3 * size, 1)
    assert not run.is_changed


def test_a_record_that_dies_is_a_change() -> None:
    _, run = sealed()
    _, size = run.mark_all_dead([3], 1)
    assert (run.live_count, run.live_bytes, run.dead_count) == (2, 2 * size, 2)
    assert run.is_changed


def test_the_front_that_goes_is_counted_and_so_is_all_of_it() -> None:
    _, run = sealed()
    size = run.lengths[0]
    assert run.take_front(1, 2) == (1, size)
    assert run.take_front(3, 4) == (2, 2 * size)
    assert (run.live_count, run.live_bytes) == (0, 0)


def test_age_ends_where_the_stamps_say_and_finds_nothing_more_until_the_next_record_is_too_old() -> None:
    one, run = sealed()
    first_ts = one.read("t").records[0].ts
    seqs = [run.seq_at_or_after(first_ts + ms) for ms in (-1, 0, 1, 1001, 2500, 3001)]
    assert seqs == [1, 1, 2, 3, 4, 5]
    assert run.seq_at_or_after(first_ts + 3000) == 1


def test_tags_are_found_below_a_seq_and_not_in_a_segment_without_them() -> None:
    one, run = sealed()
    assert run.find_tag(b"tag1", False, 9) == [2, 4]
    assert run.find_tag(b"tag", True, 4) == [1, 2, 3]
    assert run.find_tag(b"tag1", False, 2) == []
    one.append("plain", *range(4))
    one.checkpoint()
    plain = one.topic("plain").runs[0]
    assert plain.find_tag(b"tag", True, 9) == []


@pytest.mark.parametrize("by", ["cap_records", "cap_bytes", "ttl_ms"])
def test_a_front_that_moves_record_by_record_seldom_reads_an_index_that_is_not_kept(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneShard(checkpoint_interval_ms=NEVER_MS, segment_max_events=300)
    one.append("t", 10)
    size = one.state("t").bytes
    one.put("t", **{by: {"cap_records": 600, "cap_bytes": 600 * size, "ttl_ms": 599}[by]})
    for _ in range(599):
        one.clock.advance(1)
        one.append("t", 10)
    one.checkpoint()
    reader, loaded = one.shard.state.segments, []
    load = reader.load_index

    def load_index(name: SegmentName, entry: SegmentEntry, *, is_local: bool) -> SegmentIndex:
        loaded.append(name)
        return load(name, entry, is_local=is_local)

    monkeypatch.setattr(reader, "cached_index", lambda name: None)
    monkeypatch.setattr(reader, "load_index", load_index)
    for number in range(450):
        one.clock.advance(1)
        one.append("t", 10)
        assert (one.state("t").count, one.state("t").bytes) == (600, 600 * size)
        assert one.state("t").earliest_seq == number + 2
    assert 1 < len(loaded) <= 2 * (450 // NEAR_RECORDS + 2)


@pytest.mark.parametrize("by", ["cap_records", "ttl_ms"])
def test_the_index_of_the_next_segment_is_read_before_the_front_comes_there(by: str) -> None:
    one = OneShard(checkpoint_interval_ms=NEVER_MS, segment_max_events=2000)
    one.put("t", **{by: {"cap_records": 5000, "ttl_ms": 50}[by]})
    for _ in range(50):
        one.append("t", *[1] * 100)
        one.clock.advance(1)
    one.checkpoint()
    reader = one.shard.state.segments
    first, second = one.topic("t").runs[:2]
    assert isinstance(first, SealedRun)
    assert isinstance(second, SealedRun)
    reader.forget(first.name)
    for number in range(20):
        assert (reader.cached_index(second.name) is not None) == (first.next_seq - 1024 <= 100 * number + 1)
        one.append("t", *[1] * 100)
        one.clock.advance(1)
        one.state("t")
        one.settle()
    assert reader.cached_index(second.name) is not None
