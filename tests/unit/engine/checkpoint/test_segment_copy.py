"""What is copied into segments is what the log had, sealed where it has to be."""

from __future__ import annotations

from array import array

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.checkpoint.segment_copy import live_totals
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TRIM_RECORDS

NEVER_MS = 1 << 40


def shard(**settings: int) -> OneShard:
    return OneShard(**{"checkpoint_interval_ms": NEVER_MS, **settings})


def bounds(one: OneShard) -> list[tuple[int, int, bool]]:
    """First seq, next seq, whether sealed, of each run but the running one."""
    return [(run.first_seq, run.next_seq, isinstance(run, SealedRun)) for run in one.topic("t").runs[:-1]]


def test_a_full_segment_is_sealed_and_the_next_one_continues_after_it() -> None:
    one = shard(segment_max_events=4)
    one.append("t", *range(6))
    one.checkpoint()
    assert bounds(one) == [(1, 5, True), (5, 7, False)]
    one.append("t", *range(3))
    one.checkpoint()
    assert bounds(one) == [(1, 5, True), (5, 9, True), (9, 10, False)]


def test_a_segment_is_sealed_when_it_has_its_bytes() -> None:
    one = shard(segment_max_bytes=400)
    one.append("t", *[b'"%s"' % (b"x" * 100)] * 5)
    one.checkpoint()
    assert [sealed for _, _, sealed in bounds(one)] == [True, True, False]


def test_a_segment_is_sealed_when_it_is_old_also_when_nothing_comes() -> None:
    one = shard(segment_max_age_ms=1000)
    one.append("t", 1)
    one.checkpoint()
    assert bounds(one) == [(1, 2, False)]
    one.pass_time(1500)
    one.checkpoint()
    assert bounds(one) == [(1, 2, True)]


def test_an_age_of_0_never_seals() -> None:
    one = shard(segment_max_age_ms=0)
    one.append("t", 1)
    one.checkpoint()
    one.pass_time(400 * 86_400_000)
    one.append("t", 2)
    one.checkpoint()
    assert bounds(one) == [(1, 3, False)]


def test_a_segment_is_sealed_in_front_of_seqs_that_were_lost() -> None:
    one = shard()
    one.append("t", 1, 2)
    one.checkpoint()
    one.reboot()
    first = one.append("t", 3).first_seq
    assert first > 3
    one.checkpoint()
    assert bounds(one) == [(1, 3, True), (first, first + 1, False)]
    one.restart()
    assert one.seqs("t", 0) == [1, 2]
    assert one.seqs("t", first - 1) == [first]


def test_more_records_than_one_step_takes_are_copied_in_order() -> None:
    one = shard(wal_file_bytes=1 << 22)
    for _ in range(4):
        one.append("t", *range(400))
    one.checkpoint()
    before = [record.data for record in one.read("t", limit=10_000).records]
    one.kill()
    assert [record.data for record in one.read("t", limit=10_000).records] == before
    assert len(before) == 1600


def test_an_active_segment_of_which_the_front_is_gone_grows_at_its_end() -> None:
    one = shard(wal_file_bytes=1 << 22)
    count = TRIM_RECORDS + 100
    for _ in range(2):
        one.append("t", *[1] * (count // 2))
    one.checkpoint()
    one.delete("t", before_seq=count - 1)
    one.append("t", "new")
    one.checkpoint()
    for end in ("kill", "restart"):
        assert one.seqs("t") == [count - 1, count, count + 1]
        assert one.read("t").records[-1].data == b'"new"'
        getattr(one, end)()


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_tags_are_found_in_what_was_copied(end: str) -> None:
    one = shard(segment_max_events=3)
    one.append("t", *[record(n, tag=f"tag{n % 2}") for n in range(8)])
    one.checkpoint()
    getattr(one, end)()
    assert one.delete("t", tag="tag1").deleted == 4
    assert one.delete("t", tag="tag", is_prefix=True).deleted == 4


def test_totals_leave_out_what_is_skipped_and_what_is_marked() -> None:
    lengths = array("I", (10, 20, 30, 40))
    assert live_totals(lengths, None, 0) == (4, 100)
    assert live_totals(lengths, None, 1) == (3, 90)
    assert live_totals(lengths, b"\0\1\0\1", 1) == (1, 30)
    assert live_totals(lengths, b"\0\1\0\1", -5) == (2, 40)
