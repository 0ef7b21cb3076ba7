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
