"""A delete that comes while a checkpoint seals a segment: its frame finds in a replay what it found then."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, record


def write(shard: OneShard, count: int) -> None:
    for number in range(count):
        shard.append("orders", record(number, tag=f"t{number % 3}"))


@pytest.mark.parametrize("turns", range(12))
def test_what_was_deleted_by_its_tag_stays_deleted(turns: int) -> None:
    shard = OneShard(segment_max_events=10)
    write(shard, 6)
    shard.checkpoint()
    write(shard, 6)
    shard.shard.start_checkpoint()
    for _ in range(turns):
        shard.turn()
    shard.send_delete("orders", tag="t1")
    shard.settle()
    before = shard.seqs("orders")
    assert len(before) == 8
    shard.kill()
    assert shard.seqs("orders") == before


@pytest.mark.parametrize("turns", range(12))
def test_many_records_found_on_a_thread_stay_deleted(turns: int) -> None:
    shard = OneShard(segment_max_events=400)
    # A sealed segment, so that a thread searches, and an active one that the checkpoint continues.
    write(shard, 500)
    shard.checkpoint()
    write(shard, 250)
    shard.shard.start_checkpoint()
    for _ in range(turns):
        shard.turn()
    shard.send_delete("orders", tag="t1")
    write(shard, 30)
    shard.settle()
    before = shard.seqs("orders")
    assert before == [seq for seq in range(1, 781) if tag_number(seq) != 1 or seq > 750]
    shard.kill()
    assert shard.seqs("orders") == before


def tag_number(seq: int) -> int:
    """Return the number of the tag that `write` gave the record, by its calls above."""
    first = 1 if seq <= 500 else 501 if seq <= 750 else 751
    return (seq - first) % 3
