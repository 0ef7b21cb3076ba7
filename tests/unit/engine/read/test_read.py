from __future__ import annotations

import pytest

from shared.contract.errors import POSITION_PAST_HEAD
from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.read.page import PAGE_RECORDS
from topicsd.engine.read.read import PAGES_MAX
from topicsd.engine.requests import Tombstone


def filled(count: int = 10, **config: object) -> OneShard:
    one = OneShard()
    one.put("t", **config)
    for number in range(1, count + 1):
        one.append("t", record(number, tag=f"tag-{number % 3}", node=f"node-{number % 2}"))
    return one


def test_a_read_delivers_what_is_behind_the_cursor() -> None:
    one = filled(5)
    answer = one.read("t", 2)
    assert [record.seq for record in answer.records] == [3, 4, 5]
    assert (answer.topic, answer.next_from_seq, answer.head_seq, answer.earliest_seq) == ("t", 5, 5, 1)
    assert (answer.caught_up, answer.lag, answer.tombstone) == (True, 0, None)
    assert answer.epoch == one.state("t").epoch


def test_a_record_has_everything_it_was_given() -> None:
    one = filled(3)
    (record,) = one.read("t", 2).records
    assert (record.seq, record.ts, record.data, record.tag, record.node, record.meta) == (
        3,
        one.clock.now_ms(),
        b"3",
        b"tag-0",
        b"node-1",
        None,
    )


def test_a_cursor_at_the_head_gets_nothing_and_is_caught_up() -> None:
    answer = filled(5).read("t", 5)
    assert (answer.records, answer.next_from_seq, answer.caught_up, answer.lag) == ([], 5, True, 0)


def test_an_empty_topic_is_caught_up_from_the_start() -> None:
    one = OneShard()
    one.put("t")
    answer = one.read("t")
    assert (answer.records, answer.next_from_seq, answer.head_seq, answer.earliest_seq) == ([], 0, 0, 1)
    assert (answer.caught_up, answer.tombstone) == (True, None)


def test_a_topic_that_is_not_there_is_not_found() -> None:
    one = OneShard()
    assert one.refused_read("t").code == "topic_not_found"
    one.send_put("t")
    assert one.refused_read("t").code == "topic_not_found", "it is not on the disk yet"


def test_a_cursor_below_zero_is_refused() -> None:
    refusal = filled(1).refused_read("t", -1)
    assert (refusal.code, refusal.detail) == ("invalid_request", {"field": "from_seq"})


def test_the_limit_bounds_the_records_and_the_next_read_continues() -> None:
    one = filled(10)
    cursor, seen = 0, []
    while not (answer := one.read("t", cursor, limit=3)).caught_up:
        assert len(answer.records) <= 3
        assert answer.lag == 10 - answer.next_from_seq
        seen += [record.seq for record in answer.records]
        cursor = answer.next_from_seq
    seen += [record.seq for record in answer.records]
    assert seen == list(range(1, 11))


def test_the_bytes_bound_the_answer_and_there_is_always_at_least_one_record() -> None:
    one = OneShard()
    one.append("t", *[record(b'"' + b"x" * 1000 + b'"') for _ in range(5)])
    (size,) = (len(part) for part in one.read("t", limit=1).parts)
    assert one.seqs("t", bytes_max=1) == [1]
    assert one.seqs("t", bytes_max=size) == [1]
    assert one.seqs("t", bytes_max=2 * size - 1) == [1]
    assert one.seqs("t", bytes_max=2 * size) == [1, 2]
    assert one.seqs("t", 2, bytes_max=2 * size + 1) == [3, 4]


def test_a_large_record_behind_small_ones_comes_with_the_next_answer() -> None:
    one = OneShard()
    one.append("t", 1, 2, record(b'"' + b"x" * 100_000 + b'"'), 4)
    first = one.read("t", bytes_max=1000)
    assert ([record.seq for record in first.records], first.next_from_seq) == ([1, 2], 2)
    second = one.read("t", 2, bytes_max=1000)
    assert ([record.seq for record in second.records], second.next_from_seq) == ([3], 3)


def test_what_was_deleted_is_skipped_in_silence_and_moves_the_cursor() -> None:
    one = filled(10)
    one.delete("t", tag="tag-1")
    answer = one.read("t")
    assert [record.seq for record in answer.records] == [2, 3, 5, 6, 8, 9]
    assert (answer.next_from_seq, answer.tombstone, answer.earliest_seq) == (10, None, 2)
    at_the_edge = one.read("t", 9)
    assert (at_the_edge.records, at_the_edge.next_from_seq) == ([], 10)
    limited = one.read("t", 3, limit=2)
    assert ([record.seq for record in limited.records], limited.next_from_seq) == ([5, 6], 6)


def test_a_topic_of_which_all_was_deleted_is_caught_up_in_silence() -> None:
    one = filled(10)
    one.delete("t", before_seq=100)
    answer = one.read("t")
    assert (answer.records, answer.next_from_seq, answer.tombstone, answer.earliest_seq) == ([], 10, None, 11)


def test_the_reader_does_not_see_what_it_wrote_itself() -> None:
    one = filled(6)
    answer = one.read("t", nodes=frozenset({"node-0"}))
    assert [record.seq for record in answer.records] == [1, 3, 5]
    assert (answer.next_from_seq, answer.caught_up, answer.tombstone) == (6, True, None)
    assert one.seqs("t", nodes=frozenset({"node-0", "node-1"})) == []
    assert one.seqs("t", nodes=frozenset({"other"})) == [1, 2, 3, 4, 5, 6]


def test_a_record_without_a_node_belongs_to_no_node() -> None:
    one = OneShard()
    one.append("t", record(1), record(2, node="n"))
    assert one.seqs("t", nodes=frozenset({"n"})) == [1]
    assert one.seqs("t", nodes=frozenset({""})) == [1, 2]


def test_a_topic_may_turn_the_own_node_filter_off() -> None:
    assert filled(4, dedupe_node=False).seqs("t", nodes=frozenset({"node-0", "node-1"})) == [1, 2, 3, 4]


def test_the_limit_counts_what_is_delivered_and_not_what_is_skipped() -> None:
    one = filled(10)
    answer = one.read("t", nodes=frozenset({"node-0"}), limit=3)
    assert [record.seq for record in answer.records] == [1, 3, 5]
    assert answer.next_from_seq == 5


def test_an_answer_of_nothing_but_own_records_moves_the_cursor() -> None:
    count = PAGES_MAX * PAGE_RECORDS + 10
    one = OneShard(wal_file_bytes=8 << 20)
    for _ in range(0, count, 1000):
        one.append("t", *[record(number, node="node-0") for number in range(1000)])
    cursor, answers = 0, 0
    while cursor < one.state("t").head_seq:
        answer = one.read("t", cursor, nodes=frozenset({"node-0", "node-1"}))
        assert answer.records == []
        assert answer.next_from_seq > cursor
        cursor, answers = answer.next_from_seq, answers + 1
    assert answers > 1


# -- what was lost ------------------------------------------------------------------------------------------


def test_a_cursor_below_the_floor_gets_one_tombstone() -> None:
    one = filled(10, cap_records=4)
    answer = one.read("t", 2)
    assert answer.tombstone == Tombstone(3, 6, "cap", 4, 7, 10)
    assert [record.seq for record in answer.records] == [7, 8, 9, 10]
    assert one.read("t", answer.next_from_seq).tombstone is None


@pytest.mark.parametrize(
    ("from_seq", "has_tombstone"), [(0, True), (5, True), (6, False), (7, False), (10, False)]
)
def test_a_cursor_that_missed_nothing_gets_no_tombstone(from_seq: int, has_tombstone: bool) -> None:
    answer = filled(10, cap_records=4).read("t", from_seq)
    assert (answer.tombstone is not None) is has_tombstone
    assert [record.seq for record in answer.records] == list(range(max(from_seq, 6) + 1, 11))


def test_the_reason_is_that_of_what_is_missing_behind_the_cursor() -> None:
    one = OneShard()
    one.put("t", cap_records=8, ttl_ms=1000)
    for number in range(10):
        one.append("t", number)
    one.clock.advance(900)
    one.append("t", "young")
    assert one.read("t").tombstone == Tombstone(1, 3, "cap", 3, 4, 11)
    one.clock.advance(200)
    assert one.read("t").tombstone == Tombstone(1, 10, "mixed", 10, 11, 11)
    assert one.read("t", 3).tombstone == Tombstone(4, 10, "ttl", 7, 11, 11)
    one.restart()
    assert one.read("t").tombstone == Tombstone(1, 10, "mixed", 10, 11, 11)
    assert one.read("t", 3).tombstone == Tombstone(4, 10, "ttl", 7, 11, 11)


def test_what_was_deleted_in_front_of_the_floor_is_part_of_the_gap() -> None:
    one = filled(6)
    one.delete("t", before_seq=4)
    assert one.read("t").tombstone is None
    one.put("t", cap_records=2)
    answer = one.read("t")
    assert answer.tombstone == Tombstone(1, 4, "cap", 4, 5, 6)


def test_a_delete_right_behind_the_floor_moves_the_earliest_seq_only() -> None:
    one = filled(6, cap_records=4)
    one.delete("t", before_seq=5)
    answer = one.read("t")
    assert answer.tombstone == Tombstone(1, 2, "cap", 2, 5, 6)
    assert [record.seq for record in answer.records] == [5, 6]


def test_a_reader_that_is_ahead_of_the_head_learns_that_the_topic_was_created_again() -> None:
    one = filled(10)
    one.delete_topic("t")
    one.append("t", "a", "b", "c")
    answer = one.read("t", 10)
    assert answer.tombstone == Tombstone(1, 3, "recreated", 3, 1, 3)
    assert [record.data for record in answer.records] == [b'"a"', b'"b"', b'"c"']
    assert answer.next_from_seq == 3


def test_a_reader_ahead_of_an_empty_topic_is_set_back_to_its_start() -> None:
    one = filled(10)
    one.delete_topic("t")
    one.put("t")
    answer = one.read("t", 10)
    assert answer.tombstone == Tombstone(1, 0, "recreated", 0, 1, 0)
    assert (answer.records, answer.next_from_seq) == ([], 0)


def test_a_reader_of_another_epoch_learns_it_though_the_head_is_past_its_cursor() -> None:
    one = filled(3)
    before = one.read("t", 2)
    one.delete_topic("t")
    for number in range(8):
        one.append("t", number)
    assert one.read("t", 2).tombstone is None
    answer = one.read("t", 2, epoch=before.epoch)
    assert answer.tombstone == Tombstone(1, 8, "recreated", 8, 1, 8)
    assert [record.seq for record in answer.records] == list(range(1, 9))
    assert answer.epoch != before.epoch
    assert one.read("t", 2, epoch=answer.epoch).tombstone is None


def test_a_topic_created_again_that_lost_its_front_is_read_from_its_floor() -> None:
    one = filled(10)
    one.delete_topic("t")
    one.put("t", cap_records=2)
    for number in range(5):
        one.append("t", number)
    answer = one.read("t", 10)
    assert answer.tombstone == Tombstone(1, 5, "recreated", 5, 4, 5)
    assert [record.seq for record in answer.records] == [4, 5]


def test_a_read_of_an_ephemeral_topic_is_served_from_memory() -> None:
    one = OneShard()
    one.put("t", durability="ephemeral", cap_records=3)
    before = one.disk.read_file(one.wal_files()[0])
    one.append("t", record("a", tag="x", node="n", meta={"k": 1}), "b")
    one.append("t", "c", "d")
    one.delete("t", tag="x")
    answer = one.read("t")
    assert [(record.seq, record.data) for record in answer.records] == [(2, b'"b"'), (3, b'"c"'), (4, b'"d"')]
    assert one.disk.read_file(one.wal_files()[0]) == before
    one.kill()
    answer = one.read("t")
    assert answer.records == []
    assert answer.tombstone is not None
    assert (answer.tombstone.reason, answer.tombstone.gap_from) == ("crash", 1)
    assert answer.tombstone.gap_to >= 4


# -- over files and in parts --------------------------------------------------------------------------------


def test_records_over_many_files_are_read_as_one_log() -> None:
    one = OneShard(wal_file_bytes=2048)
    for number in range(100):
        one.append("t", f"payload {number} " + "x" * (number % 37))
        if not number % 7:
            one.append("other", number)
    assert len(one.wal_files()) > 5
    for limit in (1, 7, 1000):
        cursor, seen = 0, []
        while cursor < 100:
            answer = one.read("t", cursor, limit=limit)
            seen += [record.data for record in answer.records]
            cursor = answer.next_from_seq
        assert seen == [f'"payload {number} {"x" * (number % 37)}"'.encode() for number in range(100)]


def test_records_that_stand_close_together_are_read_in_one_call() -> None:
    one = OneShard()
    one.append("t", *range(50))
    reads = one.disk.fail("pread", nth=10**9)
    one.read("t")
    assert reads.seen == 1


def test_records_that_stand_far_apart_are_not_read_with_what_is_between() -> None:
    one = OneShard()
    one.append("t", 1)
    one.append("other", record(b'"' + b"x" * 50_000 + b'"'))
    one.append("t", 2)
    sizes = []
    whole = one.disk.pread

    def watched(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return whole(fd, size, offset)

    one.disk.pread = watched  # type: ignore[method-assign]
    assert one.seqs("t") == [1, 2]
    assert len(sizes) == 2
    assert max(sizes) < 1000


def test_a_position_past_the_head_in_the_same_epoch_is_refused_with_the_head() -> None:
    one = filled(3)
    epoch = one.state("t").epoch
    refusal = one.refused_read("t", 4, epoch=epoch)
    assert (refusal.code, refusal.detail) == (
        POSITION_PAST_HEAD,
        {"topic": "t", "head_seq": 3, "epoch": epoch},
    )
    assert one.read("t", 3, epoch=epoch).caught_up
