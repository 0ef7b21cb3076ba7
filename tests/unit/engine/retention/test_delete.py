from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.records.tag_index import RANGE_RECORDS
from topicsd.engine.requests import DeleteAnswer

TAGS = ["a", "ab", "b", None, "a", "abc", "b", "ä", None, "a"]


def tagged(**config: object) -> OneShard:
    """Seqs 1 to 10 with the tags above."""
    one = OneShard()
    one.put("t", **config)
    one.append("t", *[record(number, tag=tag) for number, tag in enumerate(TAGS, 1)])
    return one


def size_of(one: OneShard, *seqs: int) -> int:
    run = one.topic("t").run
    return sum(run.lengths[seq - run.first_seq] for seq in seqs)


def test_everything_before_a_seq_is_deleted_and_nothing_at_or_behind_it() -> None:
    one = tagged()
    rest = size_of(one, *range(4, 11))
    assert one.delete("t", before_seq=4) == DeleteAnswer("t", 3, 4, 10, 7, rest)
    assert one.seqs("t") == [4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("before_seq", [0, 1])
def test_before_the_first_seq_there_is_nothing_to_delete(before_seq: int) -> None:
    one = tagged()
    assert one.delete("t", before_seq=before_seq).deleted == 0
    assert one.delete("t", before_seq=before_seq, tag="a").deleted == 0
    assert one.state("t").count == 10


@pytest.mark.parametrize("before_seq", [11, 12, 1 << 40, (1 << 63) - 1, 1 << 64, 1 << 100])
def test_a_bound_beyond_the_head_deletes_all_that_is_there_and_nothing_that_comes(before_seq: int) -> None:
    one = tagged()
    assert one.delete("t", before_seq=before_seq) == DeleteAnswer("t", 10, 11, 10, 0, 0)
    one.append("t", "after")
    one.kill()
    assert one.seqs("t") == [11]


def test_an_exact_tag_deletes_what_carries_it() -> None:
    one = tagged()
    rest = size_of(one, 2, 3, 4, 6, 7, 8, 9)
    assert one.delete("t", tag="a") == DeleteAnswer("t", 3, 2, 10, 7, rest)
    assert one.seqs("t") == [2, 3, 4, 6, 7, 8, 9]
    assert one.delete("t", tag="ä").deleted == 1


def test_a_prefix_deletes_what_begins_with_it() -> None:
    one = tagged()
    assert one.delete("t", tag="a", is_prefix=True).deleted == 5
    assert one.seqs("t") == [3, 4, 7, 8, 9]
    assert one.delete("t", tag="", is_prefix=True).deleted == 3
    assert one.seqs("t") == [4, 9]


def test_both_must_hold_when_both_are_given() -> None:
    one = tagged()
    assert one.delete("t", before_seq=6, tag="a").deleted == 2
    assert one.seqs("t") == [2, 3, 4, 6, 7, 8, 9, 10]
    assert one.delete("t", before_seq=7, tag="a", is_prefix=True).deleted == 2
    assert one.seqs("t") == [3, 4, 7, 8, 9, 10]
    assert one.delete("t", tag="a").deleted == 1


def test_a_tag_that_nothing_carries_deletes_nothing() -> None:
    one = tagged()
    for request in ({"tag": "c"}, {"tag": "abcd", "is_prefix": True}, {"tag": "", "is_prefix": False}):
        assert one.delete("t", **request).deleted == 0
    assert one.state("t").count == 10


def test_what_was_deleted_is_not_deleted_again() -> None:
    one = tagged()
    one.delete("t", before_seq=4)
    assert one.delete("t", before_seq=4).deleted == 0
    assert one.delete("t", tag="a").deleted == 2
    assert one.delete("t", before_seq=11).deleted == 5
    assert (one.state("t").count, one.state("t").bytes) == (0, 0)


def test_a_delete_that_says_nothing_is_refused() -> None:
    one = tagged()
    reply = one.send_delete("t")
    assert reply.code == "invalid_request"
    assert "before_seq" in reply.answer.message
    assert "match" in reply.answer.message
    reply = one.send_delete("t", before_seq=-1)
    assert (reply.code, reply.answer.detail) == ("invalid_request", {"field": "before_seq"})


def test_a_topic_that_is_not_there_is_not_found() -> None:
    one = OneShard()
    assert one.send_delete("t", before_seq=1).code == "topic_not_found"
    one.put("t")
    assert one.delete("t", before_seq=5) == DeleteAnswer("t", 0, 1, 0, 0, 0)


def test_only_what_exists_at_the_call_is_deleted() -> None:
    """Bound by the head at the call, though the records on their way are published before the delete."""
    one = tagged(durability="fsync")
    on_its_way = one.send_append("t", record("late", tag="a"))
    reply = one.send_delete("t", tag="a")
    one.settle()
    assert on_its_way.answer.first_seq == 11
    assert (reply.answer.deleted, reply.answer.head_seq) == (3, 11)
    assert one.seqs("t", 10) == [11]
    one.kill()
    assert one.seqs("t", 10) == [11]
    assert one.state("t").count == 8


def test_a_tag_of_a_record_on_its_way_is_found_by_the_next_delete() -> None:
    one = tagged(durability="fsync")
    one.send_append("t", record("late", tag="a"))
    one.send_delete("t", tag="a")
    one.settle()
    assert one.delete("t", tag="a").deleted == 1


@pytest.mark.parametrize(("durability", "at_once"), [("disk", True), ("fsync", False)])
def test_a_delete_has_the_class_of_its_topic(durability: str, at_once: bool) -> None:
    one = tagged(durability=durability)
    reply = one.send_delete("t", before_seq=5)
    one.loop.run_until_idle()
    assert reply.has_answer is at_once
    assert one.state("t").count == (6 if at_once else 10)
    one.settle()
    assert one.state("t").count == 6


def test_a_delete_does_not_overtake_what_waits_for_the_disk() -> None:
    one = OneShard()
    one.append("t", 1)
    one.pass_time(3000)
    append = one.send_append("t", "above the ceiling")
    reply = one.send_delete("t", before_seq=5)
    one.loop.run_until_idle()
    assert (append.has_answer, reply.has_answer) == (False, False)
    one.settle()
    assert (append.answer.first_seq, reply.answer.deleted, one.seqs("t")) == (2, 1, [2])


def test_a_delete_waits_for_a_disk_that_does_not_keep_up() -> None:
    one = OneShard(max_waiting_bytes=2000)
    one.append("t", 1)
    one.pass_time(100)
    one.append("t", "x" * 1500)
    assert one.shard.log.is_lagging
    reply = one.send_delete("t", before_seq=2)
    one.loop.run_until_idle()
    assert not reply.has_answer
    one.settle()
    assert reply.answer.deleted == 1


def test_a_delete_is_silent_and_leaves_the_floor_where_it_is() -> None:
    one = tagged(cap_records=8)
    assert one.state("t").evict_floor == 3
    one.delete("t", before_seq=9)
    state = one.state("t")
    assert (state.evict_floor, state.earliest_seq) == (3, 9)
    assert one.read("t", 2).tombstone is None
    assert one.read("t", 0).tombstone is not None


def test_the_earliest_seq_moves_over_what_was_deleted_behind_it() -> None:
    one = tagged()
    one.delete("t", tag="ab")
    one.delete("t", tag="b")
    assert one.state("t").earliest_seq == 1
    one.delete("t", before_seq=2)
    assert one.state("t").earliest_seq == 4
    one.delete("t", before_seq=11)
    assert one.state("t").earliest_seq == 11


@pytest.mark.parametrize("end", ["restart", "kill", "reboot"])
def test_what_was_deleted_stays_deleted(end: str) -> None:
    one = tagged(durability="fsync")
    one.delete("t", before_seq=3)
    one.delete("t", tag="a", is_prefix=True)
    one.append("t", record("new", tag="a"))
    before = (one.seqs("t"), one.state("t"))
    assert before[0] == [3, 4, 7, 8, 9, 11]
    for _ in range(2):
        getattr(one, end)()
        assert (one.seqs("t"), one.state("t")) == before
    assert one.delete("t", tag="a").deleted == 1


def test_a_refused_delete_takes_nothing_out() -> None:
    one = tagged(durability="fsync")
    one.disk.fail("sync_data")
    reply = one.send_delete("t", before_seq=5)
    one.settle()
    assert reply.code == "storage_failed"
    assert one.state("t").count == 10


def test_a_delete_costs_what_it_matches_and_not_the_length_of_the_log() -> None:
    one = OneShard(wal_file_bytes=8 << 20)
    one.append("t", *[record(number, tag=f"tag-{number}") for number in range(10_000)])
    reads = one.disk.fail("pread", nth=10**9)
    assert one.delete("t", tag="tag-5000").deleted == 1
    assert reads.seen == 0


def test_a_delete_of_an_ephemeral_topic_is_done_in_memory() -> None:
    one = tagged(durability="ephemeral")
    before = one.disk.calls
    assert one.delete("t", tag="a").deleted == 3
    assert one.disk.calls == before
    assert one.seqs("t") == [2, 3, 4, 6, 7, 8, 9]


def test_many_tags_are_sorted_on_the_thread_and_those_that_come_meanwhile_are_left() -> None:
    one = OneShard(wal_file_bytes=1 << 24)
    for first in range(0, 3 * RANGE_RECORDS, 512):
        one.append("t", *[record(1, tag=f"tag-{first + at}") for at in range(512)])
    reply = one.send_delete("t", tag="tag-1", is_prefix=True)
    one.loop.run_until_idle()
    assert not reply.has_answer
    late = one.send_append("t", record(1, tag="tag-1x"))
    one.settle()
    assert reply.answer.deleted == sum(str(at).startswith("1") for at in range(3 * RANGE_RECORDS))
    assert one.seqs("t", late.answer.first_seq - 1) == [late.answer.first_seq]
