"""What a disk that is full or half dead still gives: answers, and reads of what can be read."""

from __future__ import annotations

import errno

import pytest

from tests.harness.shard.one_shard import OneShard


def _fill(one: OneShard) -> None:
    """No byte of room is left but what the files have."""
    one.disk.space_bytes = one.disk.used_bytes


def test_a_record_that_the_disk_cannot_read_is_reported_and_its_neighbours_are_read() -> None:
    one = OneShard()
    one.append("t", *[b'"%s"' % (b"x" * 9000)] * 3)

    def the_second_is_unreadable() -> None:
        one.disk.clear_faults()
        # They are read together, then each by itself.
        one.disk.fail("pread", 1)
        one.disk.fail("pread", 3)

    the_second_is_unreadable()
    assert one.seqs("t") == [1]
    the_second_is_unreadable()
    refusal = one.refused_read("t", 1)
    assert refusal.code == "corrupt_segment"
    assert refusal.detail is not None
    assert (refusal.detail["first_seq"], refusal.detail["last_seq"]) == (2, 2)
    the_second_is_unreadable()
    assert one.seqs("t", 2) == [3]
    one.disk.clear_faults()
    assert one.seqs("t") == [1, 2, 3]


def test_what_is_good_in_front_of_an_unreadable_record_is_answered_first() -> None:
    one = OneShard()
    one.append("t", *[b'"%s"' % (b"x" * 9000)] * 3)
    one.append("other", b'"%s"' % (b"x" * 5000))
    one.append("t", 4)
    one.disk.fail("pread", 2, forever=True)
    assert one.seqs("t") == [1, 2, 3]
    assert one.refused_read("t", 3).code == "corrupt_segment"


def test_one_failed_read_of_several_records_is_tried_again_record_by_record() -> None:
    one = OneShard()
    one.append("t", 1, 2, 3)
    one.disk.fail("pread", 1)
    assert one.seqs("t") == [1, 2, 3]


@pytest.mark.parametrize("call", ["allocate", "create"])
def test_a_write_without_room_is_answered_also_when_the_room_cannot_be_measured(call: str) -> None:
    one = OneShard()
    one.disk.fail(call, error=errno.ENOSPC, forever=True)
    one.disk.fail("free_bytes", forever=True)
    for _ in range(3):
        assert one.refused_append("t", 1).code == "storage_full"
    one.disk.clear_faults()
    one.pass_time(5001)
    assert one.append("t", 1).first_seq == 1
    assert not one.failures


def test_a_full_disk_refuses_writes_and_still_serves_reads_and_deletes() -> None:
    one = OneShard(wal_file_bytes=16384)
    one.append("t", 1)
    one.pass_time(60)
    _fill(one)
    record = b'"%s"' % (b"x" * 900)
    acked = 1
    while (reply := one.send_append("t", record)) and not (one.settle() or reply.code):
        acked += 1
    assert reply.code == "storage_full"
    assert reply.answer.detail["required_bytes"] >= 900
    assert reply.answer.retry_after_ms == 5000
    assert 10 <= acked <= 17
    assert one.seqs("t") == list(range(1, acked + 1))
    assert one.delete("t", before_seq=3).deleted == 2
    assert one.put("t", cap_records=1000).config.cap_records == 1000
    assert one.refused_append("t", record, idempotency_key="k").code == "storage_full"
    one.disk.space_bytes = None
    one.pass_time(5001)
    assert one.append("t", record, idempotency_key="k").first_seq == acked + 1
    one.kill()
    assert one.seqs("t") == list(range(3, acked + 2))


def test_a_shard_takes_writes_again_by_itself_each_time_there_is_space() -> None:
    one = OneShard(wal_file_bytes=8192)
    record = b'"%s"' % (b"x" * 900)
    acked = 0
    for _ in range(5):
        one.disk.space_bytes = one.disk.used_bytes + 2 * 8192
        while (reply := one.send_append("t", record)) and not (one.settle() or reply.code):
            acked += 1
        assert reply.code == "storage_full"
        one.pass_time(20_000)
        assert one.refused_append("t", record).code == "storage_full"
        one.disk.space_bytes = None
        one.pass_time(5001)
    one.append("t", record)
    one.kill()
    assert one.seqs("t") == list(range(1, acked + 2))
    assert not one.failures


def test_a_floor_reported_while_the_disk_was_full_is_logged_once_there_is_space() -> None:
    one = OneShard()
    one.put("t", ttl_ms=1000)
    one.append("t", 1, 2)
    one.pass_time(60)
    one.clock.advance(2000)
    one.disk.fail("pwrite", error=errno.ENOSPC, forever=True)
    assert one.state("t").evict_floor == 3
    one.settle()
    one.disk.clear_faults()
    one.put("t", ttl_ms=0)
    one.pass_time(6000)
    one.kill()
    assert one.state("t").evict_floor == 3
    assert one.seqs("t") == []
