from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.records.tail_run import TRIM_RECORDS


def filled(count: int = 10, **config: object) -> OneShard:
    one = OneShard()
    one.put("t", **config)
    for number in range(1, count + 1):
        one.append("t", record(number, tag=f"tag-{number % 3}"))
    return one


def floors(one: OneShard) -> tuple[int, int, int]:
    state = one.state("t")
    return state.evict_floor, state.earliest_seq, state.count


def a_record(one: OneShard) -> int:
    """The bytes of one of the small records."""
    return one.topic("t").run.lengths[-1]


# -- caps ---------------------------------------------------------------------------------------------------


def test_a_cap_keeps_the_newest_records_exactly() -> None:
    one = filled(10, cap_records=4)
    assert floors(one) == (7, 7, 4)
    assert one.seqs("t", 6) == [7, 8, 9, 10]
    assert one.state("t").bytes == sum(one.topic("t").run.lengths[-4:])


def test_a_cap_of_bytes_counts_payload_and_framing() -> None:
    one = filled(1)
    size = a_record(one)
    for cap, kept in ((3 * size, 3), (3 * size + size - 1, 3), (4 * size, 4), (size, 1)):
        one = filled(9, cap_bytes=cap)
        assert floors(one) == (10 - kept, 10 - kept, kept)
        assert one.state("t").bytes == kept * size


def test_with_two_caps_the_stricter_wins() -> None:
    size = a_record(filled(1))
    assert floors(filled(9, cap_records=5, cap_bytes=3 * size)) == (7, 7, 3)
    assert floors(filled(9, cap_records=3, cap_bytes=5 * size)) == (7, 7, 3)


def test_a_write_larger_than_the_cap_evicts_from_its_own_front() -> None:
    one = OneShard()
    one.put("t", cap_records=3)
    answer = one.append("t", *range(10))
    assert (answer.first_seq, answer.last_seq) == (1, 10)
    assert floors(one) == (8, 8, 3)
    one.put("bytes", cap_bytes=10)
    one.append("bytes", 1, 2)
    assert (one.state("bytes").count, one.state("bytes").earliest_seq) == (0, 3)


def test_deleted_records_make_room_under_a_cap() -> None:
    one = filled(6, cap_records=6)
    one.delete("t", tag="tag-1")
    assert one.seqs("t") == [2, 3, 5, 6]
    one.append("t", "a", "b")
    assert floors(one) == (1, 2, 6)
    one.append("t", "c")
    assert floors(one) == (3, 3, 6)
    assert one.seqs("t", 2) == [3, 5, 6, 7, 8, 9]


def test_an_eviction_steps_over_what_was_deleted() -> None:
    one = filled(9)
    one.delete("t", tag="tag-1")
    one.put("t", cap_records=3)
    assert floors(one) == (6, 6, 3)
    assert one.seqs("t", 5) == [6, 8, 9]
    one.put("t", cap_records=2)
    assert floors(one) == (7, 8, 2)


def test_a_cap_that_is_lowered_takes_effect_at_once_and_one_that_is_raised_brings_nothing_back() -> None:
    one = filled(10)
    one.put("t", cap_records=3)
    assert floors(one) == (8, 8, 3)
    one.put("t", cap_records=8)
    assert floors(one) == (8, 8, 3)
    one.put("t", cap_records=0)
    one.append("t", *range(100))
    assert floors(one) == (8, 8, 103)


def test_caps_are_found_again_by_a_restart() -> None:
    one = filled(20, cap_records=7)
    one.delete("t", tag="tag-2")
    one.append("t", *range(5))
    one.put("t", cap_records=4)
    before = (floors(one), one.seqs("t", 20), one.state("t"))
    for end in ("kill", "restart"):
        getattr(one, end)()
        assert (floors(one), one.seqs("t", 20), one.state("t")) == before


def test_the_index_of_evicted_records_is_freed() -> None:
    one = OneShard(wal_file_bytes=8 << 20)
    one.put("t", cap_records=100)
    for _ in range(30):
        one.append("t", *[record(number, tag="x") for number in range(1000)])
    run = one.topic("t").run
    assert len(run.lengths) < 2 * TRIM_RECORDS + 1000
    assert run.next_seq == 30_001
    assert floors(one) == (29_901, 29_901, 100)
    assert one.delete("t", tag="x").deleted == 100
    assert len(one.topic("t").run.tags) == 0


# -- discard: reject ----------------------------------------------------------------------------------------


def test_a_topic_that_rejects_refuses_what_it_has_no_room_for_with_the_numbers() -> None:
    one = filled(3, cap_records=4, discard="reject")
    one.delete("t", before_seq=2)
    refusal = one.refused_append("t", 1, 2, 3)
    assert refusal.code == "topic_full"
    assert refusal.detail == {"cap_records": 4, "cap_bytes": 0, "head_seq": 3, "earliest_seq": 2}
    assert floors(one) == (1, 2, 2)
    assert one.append("t", 1, 2).last_seq == 5
    assert one.refused_append("t", 1).code == "topic_full"


def test_a_topic_that_rejects_counts_what_is_on_its_way() -> None:
    one = OneShard()
    one.put("t", cap_records=3, discard="reject", durability="fsync")
    replies = [one.send_append("t", number) for number in range(5)]
    one.settle()
    assert [answer.code for answer in replies] == [None, None, None, "topic_full", "topic_full"]
    assert floors(one) == (1, 1, 3)


def test_a_cap_of_bytes_rejects_by_bytes() -> None:
    size = a_record(filled(1))
    one = filled(2, cap_bytes=3 * size, discard="reject")
    refusal = one.refused_append("t", record(1, tag="tag-0"), record(2, tag="tag-0"))
    assert refusal.code == "topic_full"
    assert one.append("t", record(1, tag="tag-0")).last_seq == 3


def test_a_write_that_can_never_fit_is_refused_for_good() -> None:
    one = OneShard()
    one.put("t", cap_records=2, discard="reject")
    refusal = one.refused_append("t", 1, 2, 3)
    assert (refusal.code, refusal.detail) == ("record_too_large", {"field": "records", "max": 2})
    one.put("u", cap_bytes=50, discard="reject")
    assert one.refused_append("u", "x" * 100).code == "record_too_large"


def test_room_that_age_makes_counts_for_a_topic_that_rejects() -> None:
    one = OneShard()
    one.put("t", cap_records=2, ttl_ms=1000, discard="reject")
    one.append("t", 1, 2)
    assert one.refused_append("t", 3).code == "topic_full"
    one.clock.advance(1001)
    assert one.append("t", 3).first_seq == 3


def test_a_topic_that_rejects_evicts_nothing_over_a_restart() -> None:
    one = filled(4, cap_records=4, discard="reject")
    one.kill()
    assert floors(one) == (1, 1, 4)
    assert one.refused_append("t", 1).code == "topic_full"


# -- age ----------------------------------------------------------------------------------------------------


def test_a_record_expires_when_it_is_older_than_the_ttl_and_not_before() -> None:
    one = OneShard()
    one.put("t", ttl_ms=1000)
    one.append("t", 1)
    one.clock.advance(1)
    one.append("t", 2)
    one.clock.advance(999)
    assert one.seqs("t") == [1, 2]
    one.clock.advance(1)
    assert one.seqs("t") == [2]
    assert floors(one) == (2, 2, 1)
    one.clock.advance(1)
    assert floors(one) == (3, 3, 0)
    assert one.state("t").bytes == 0


def test_age_needs_no_write_to_take_effect() -> None:
    one = filled(5, ttl_ms=1000)
    one.clock.advance(10_000)
    answer = one.read("t")
    assert answer.records == []
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to, answer.tombstone.reason) == (1, 5, "ttl")
    assert answer.caught_up


def test_a_deleted_record_that_grows_old_is_no_loss() -> None:
    one = filled(5, ttl_ms=1000)
    one.delete("t", before_seq=4)
    one.delete("t", tag="tag-2")
    one.clock.advance(1001)
    assert floors(one) == (5, 6, 0)


def test_a_ttl_of_zero_keeps_everything_and_one_that_is_set_later_counts_from_the_write() -> None:
    one = filled(3)
    one.clock.advance(10**9)
    assert floors(one) == (1, 1, 3)
    one.put("t", ttl_ms=1000)
    assert floors(one) == (4, 4, 0)


@pytest.mark.parametrize("report", ["read", "state", "delete"])
def test_a_floor_that_was_reported_holds_when_the_clock_steps_back(report: str) -> None:
    one = filled(5, ttl_ms=1000)
    one.clock.advance(1001)
    if report == "read":
        one.read("t")
    elif report == "state":
        one.state("t")
    else:
        one.delete("t", before_seq=1)
    one.clock.step_wall(-5000)
    assert floors(one) == (6, 6, 0)
    one.pass_time(60)
    for end in ("kill", "restart", "reboot"):
        getattr(one, end)()
        assert floors(one)[0] == 6
        assert one.state("t").count == 0


def test_an_unreported_floor_may_move_back_with_the_clock() -> None:
    one = filled(5, ttl_ms=1000)
    one.clock.advance(1001)
    one.clock.step_wall(-5000)
    assert floors(one) == (1, 1, 5)


def test_a_reported_floor_is_logged_once() -> None:
    one = filled(5, ttl_ms=1000)
    one.clock.advance(1001)
    one.read("t")
    one.pass_time(200)
    before = one.shard.log.counters.frames
    for _ in range(5):
        one.read("t")
        one.state("t")
    one.settle()
    assert one.shard.log.counters.frames == before


def test_age_and_caps_work_together() -> None:
    one = filled(5, ttl_ms=1000, cap_records=4)
    one.clock.advance(1001)
    one.append("t", "a", "b", "c", "d")
    assert floors(one) == (6, 6, 4)
    assert one.topic("t").evicted_to == {"cap": 1, "ttl": 5}
    before = one.topic("t").evicted_to
    one.kill()
    assert (floors(one), one.topic("t").evicted_to) == ((6, 6, 4), before)


def test_young_records_stay_when_old_ones_go() -> None:
    one = OneShard()
    one.put("t", ttl_ms=1000)
    for _ in range(10):
        one.append("t", 1, 2)
        one.clock.advance(100)
    one.clock.advance(500)
    assert one.state("t").earliest_seq == 11
    assert one.seqs("t") == list(range(11, 21))
