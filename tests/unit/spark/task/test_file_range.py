from __future__ import annotations

import random

import pytest

from spark.task.file_range import FileRange, partitions_of


def file_range(shard: int, first_seq: int, records: int = 10_000, record_bytes: int = 100) -> FileRange:
    place = ("orders", 1, 1, shard)
    return FileRange(*place, first_seq, first_seq + records - 1, b"", records * record_bytes, None, None)


def sizes(ranges: list[FileRange], records_max: int = 1_000_000, bytes_max: int | None = None) -> list[int]:
    partitions = partitions_of(ranges, records_max, bytes_max)
    together = [one for part in partitions for one in part.ranges]
    assert together == sorted(ranges, key=lambda one: one.shard)
    assert all(one.shard == part.shard for part in partitions for one in part.ranges)
    return [len(part.ranges) for part in partitions]


@pytest.mark.parametrize(
    ("count", "parts"), [(0, []), (1, [1]), (100, [100]), (101, [51, 50]), (200, [100, 100]), (450, [90] * 5)]
)
def test_partitions_of_a_shard_are_as_few_as_the_bounds_allow_and_equal(count: int, parts: list[int]) -> None:
    assert sizes([file_range(0, 1 + 10_000 * at) for at in range(count)]) == parts


def test_no_partition_is_of_two_shards() -> None:
    assert sizes([file_range(shard, 1) for shard in (1, 0, 2, 1)]) == [1, 2, 1]


def test_neither_bound_is_passed() -> None:
    mixed = [
        file_range(0, 1, 1),
        file_range(0, 2, 999_999),
        file_range(0, 1_000_001, 1),
        file_range(0, 1_000_002, 500),
    ]
    for records_max, bytes_max in ((1_000_000, None), (1_000_000, 50_000), (1, 1), (999_999, 100_000_000)):
        for part in partitions_of(mixed, records_max, bytes_max):
            records = sum(one.record_count for one in part.ranges)
            size = sum(one.size_bytes for one in part.ranges)
            fits = records <= records_max and (bytes_max is None or size <= bytes_max)
            assert fits or len(part.ranges) == 1


def test_there_are_no_more_for_being_equal() -> None:
    chance = random.Random(3)
    for _ in range(300):
        lengths = [chance.choice((1, 10, 60, 100, 150)) for _ in range(chance.randrange(1, 12))]
        starts = [1 + sum(lengths[:at]) for at in range(len(lengths))]
        mixed = [file_range(0, first, length) for first, length in zip(starts, lengths, strict=True)]
        assert len(sizes(mixed, records_max=200)) == fewest(lengths, 200), lengths


def fewest(lengths: list[int], most: int) -> int:
    count, room = 0, 0
    for length in lengths:
        count, room = (count, room - length) if length <= room else (count + 1, most - length)
    return count
