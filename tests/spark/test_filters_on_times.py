"""What a filter on a time leaves out, and what it must not, without Spark around it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.datasource import Filter, LessThan

from spark.batch_reader import FilteredReader
from spark.columns import KAFKA, arrow_schema
from spark.read_options import parse_options
from tests.harness.one_shard import record
from tests.harness.real_shard import RealShard
from tests.spark.test_damage_and_drops import rows_of
from tests.spark.test_drops_under_readers import FAST

RECORDS, STEP_MS = 350, 10


class Times:
    """Three sealed segments and a tail, a record every ten milliseconds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data"
        shard = RealShard(self.path, **FAST)
        self.begin_ms = shard.clock.now_ms()
        shard.put("orders")
        for seq in range(1, RECORDS + 1):
            shard.append("orders", record({"n": seq}))
            shard.pass_time(STEP_MS)
            if seq == RECORDS - 20:
                shard.checkpoint()
        shard.pass_time(1000)
        shard.shard.close()

    def at(self, seq: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.ms(seq))

    def ms(self, seq: int) -> int:
        return self.begin_ms + (seq - 1) * STEP_MS

    def seqs(self, *filters: Filter, **options: str) -> list[int]:
        given = {"path": str(self.path), "subscribe": "orders", "narrowed": "true", **options}
        reader = FilteredReader(parse_options(given, is_stream=False), arrow_schema(list(KAFKA), KAFKA))
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return [seq for seq, _ in rows_of(reader)]


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Times:
    return Times(tmp_path_factory.mktemp("times"))


def test_a_filter_that_ends_before_the_option_ends_loses_nothing(times: Times) -> None:
    found = times.seqs(LessThan(("timestamp",), times.at(150)), endingTimestamp=str(times.ms(180)))
    assert found == list(range(1, 150))
