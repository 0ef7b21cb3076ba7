from __future__ import annotations

import pyarrow as pa
import pytest

from spark.task.record_batch import JOINED_RECORDS, join_batches

HALF = JOINED_RECORDS // 2


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([], []),
        ([1], [1]),
        ([HALF, HALF, HALF], [2 * HALF, HALF]),
        ([1, JOINED_RECORDS, 1, 1], [1 + JOINED_RECORDS, 2]),
        ([3 * JOINED_RECORDS], [3 * JOINED_RECORDS]),
    ],
)
def test_small_batches_come_together_with_the_same_rows(given: list[int], taken: list[int]) -> None:
    numbers = iter(range(sum(given)))
    batches = [pa.RecordBatch.from_pydict({"n": [next(numbers) for _ in range(size)]}) for size in given]
    joined = list(join_batches(batches))
    assert [batch.num_rows for batch in joined] == taken
    assert [n for batch in joined for n in batch["n"].to_pylist()] == list(range(sum(given)))


def test_few_that_are_large_do_not_wait_for_more() -> None:
    batches = [pa.RecordBatch.from_pydict({"data": ["x" * (1 << 19)]}) for _ in range(5)]
    assert [batch.num_rows for batch in join_batches(batches)] == [2, 2, 1]
