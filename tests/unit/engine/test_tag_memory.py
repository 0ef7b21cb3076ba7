"""What a delete at the front takes out of a topic leaves its tag index too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.records.tag_index import RANGE_RECORDS
from topicsd.engine.records.tail_run import TailRun

COUNT = 60_000
BATCH = 10_000


def filled(**config: Any) -> OneShard:
    one = OneShard(wal_file_bytes=16 << 20, segment_max_events=1 << 20, segment_max_bytes=64 << 20)
    one.put("t", **config)
    for at in range(0, COUNT, BATCH):
        one.append("t", *[record(1, f"a-rather-long-tag-that-is-its-own-{at + n}") for n in range(BATCH)])
    return one


@pytest.mark.parametrize("is_copied", [False, True], ids=["tail", "active segment"])
def test_the_tags_of_deleted_records_give_their_memory_back(is_copied: bool) -> None:
    one = filled()
    if is_copied:
        one.checkpoint()
    one.append("t", record(1, "kept"))
    one.pass_time(1000)
    run = one.topic("t").runs[0]
    assert isinstance(run, TailRun)
    assert (run.source is not None) is is_copied
    before = len(run.tags)
    one.delete("t", before_seq=COUNT + 1)
    one.pass_time(5000)
    left = sum(len(run.tags) for run in one.topic("t").runs if hasattr(run, "tags"))
    assert before >= COUNT
    assert left < 2 * RANGE_RECORDS
    assert one.shard.state.totals.tags_to_free == []
    assert one.delete("t", tag="kept").deleted == 1


def test_a_delete_of_a_part_frees_that_part() -> None:
    one = filled()
    index = one.topic("t").run.tags
    one.delete("t", before_seq=COUNT * 2 // 3)
    one.pass_time(5000)
    assert COUNT // 3 <= len(index) < COUNT // 3 + 2 * RANGE_RECORDS
    assert one.shard.state.totals.tags_to_free == []


def test_what_a_cap_evicts_gives_its_memory_back() -> None:
    one = filled(cap_records=1000)
    one.pass_time(5000)
    assert (
        sum(len(run.tags) for run in one.topic("t").runs if hasattr(run, "tags"))
        < 1000 + 2 * RANGE_RECORDS + BATCH
    )
    assert one.shard.state.totals.tags_to_free == []
