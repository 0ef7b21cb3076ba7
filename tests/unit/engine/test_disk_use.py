"""A store that is written for a long time under a cap stays small: what is dead gives its space back."""

from __future__ import annotations

import os

import pytest

from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import DATA_DIR
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS

WAL_FILE_BYTES = 64 << 10
SEGMENT_BYTES = 32 << 10
CAP_BYTES = 256 << 10


def used_bytes(one: OneShard, path: str = DATA_DIR) -> int:
    total = 0
    for name in one.disk.list_dir(path):
        inner = os.path.join(path, name)
        try:
            total += used_bytes(one, inner)
        except NotADirectoryError:
            total += one.disk.stat(inner).size
    return total


def bound(topics: int, trash: int) -> int:
    return CAP_BYTES * 3 // 2 + 4 * WAL_FILE_BYTES + topics * SEGMENT_BYTES + trash


def written_for_long(topics: int, grace_ms: int) -> OneShard:
    """Sixteen times its cap, with a little time between the writes."""
    one = OneShard(
        wal_file_bytes=WAL_FILE_BYTES,
        segment_max_bytes=SEGMENT_BYTES,
        reader_grace_ms=grace_ms,
        checkpoint_interval_ms=1000,
    )
    for number in range(topics):
        one.put(f"t{number}", cap_bytes=CAP_BYTES // topics)
    written = 0
    while written < 16 * CAP_BYTES:
        for number in range(topics):
            one.append(f"t{number}", *[record("x" * 1000, tag="t") for _ in range(4)])
            written += 4000
        one.pass_time(60)
    return one


@pytest.mark.slow
@pytest.mark.parametrize("topics", [1, 4])
def test_a_capped_store_stays_within_its_cap_and_a_few_files(topics: int) -> None:
    one = written_for_long(topics, grace_ms=0)
    assert used_bytes(one) < bound(topics, trash=0)
    one.restart()
    assert used_bytes(one) < bound(topics, trash=0)
    for number in range(topics):
        assert one.state(f"t{number}").bytes <= CAP_BYTES // topics


def test_what_was_dropped_stays_for_readers_and_then_goes() -> None:
    one = written_for_long(1, grace_ms=30_000)
    trash = used_bytes(one, f"{DATA_DIR}/shards/00/trash")
    assert trash > 0
    assert used_bytes(one) < bound(1, trash)
    one.pass_time(31_000)
    one.append("t0", "once more")
    one.pass_time(2000)
    assert used_bytes(one, f"{DATA_DIR}/shards/00/trash") < trash


@pytest.mark.slow
def test_half_dead_segments_give_their_space_back() -> None:
    one = OneShard(
        wal_file_bytes=WAL_FILE_BYTES,
        segment_max_bytes=SEGMENT_BYTES,
        reader_grace_ms=0,
        checkpoint_interval_ms=1000,
    )
    for number in range(1000):
        one.append("t", record("x" * 1000, tag="keep" if number % 4 == 0 else "drop"))
        if number % 20 == 0:
            one.pass_time(60)
    one.pass_time(5000)
    before = used_bytes(one, f"{DATA_DIR}/shards/00/topics")
    assert one.delete("t", tag="drop").deleted == 750
    for _ in range(3):
        one.pass_time(ROUND_SECONDS * 1000 + 1)
        one.append("t", record("y"))
        one.pass_time(5000)
    after = used_bytes(one, f"{DATA_DIR}/shards/00/topics")
    assert after < before * 0.4
    assert one.state("t").count == 253


def test_what_stays_for_readers_gives_way_to_writes_when_space_runs_short() -> None:
    one = written_for_long(1, grace_ms=86_400_000)
    trash = f"{DATA_DIR}/shards/00/trash"
    assert used_bytes(one, trash) > 2 * WAL_FILE_BYTES
    one.disk.space_bytes = one.disk.used_bytes + 1000
    replies = []
    for _ in range(600):
        replies.append(one.send_append("t0", "x" * 1000))
        one.pass_time(100)
    # More than the trash held, and none of it was refused for longer than it takes to find that out.
    assert sum(one.code is None for one in replies) > 550
    assert not one.append("t0", "there is room").deduped
