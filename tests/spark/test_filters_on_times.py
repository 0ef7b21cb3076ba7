"""What a filter on a time leaves out, and what it must not, without Spark around it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.datasource import Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from spark.errors import DamagedRecord
from spark.source.batch_reader import FilteredQueryReader
from spark.source.columns import KAFKA, arrow_schema
from spark.source.read_options import parse_options
from tests.harness.shard.one_shard import RealShard, record
from tests.spark.test_damage_and_drops import rows_of
from tests.spark.test_damaged_segments import flip
from tests.spark.test_drops_under_readers import FAST
from topicsd.segment.entry import SegmentEntry, SegmentName
from topicsd.segment.index_file import SegmentIndex
from topicsd.segment.reader import SegmentReader

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
        reader = FilteredQueryReader(parse_options(given, is_stream=False), arrow_schema(list(KAFKA), KAFKA))
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return [seq for seq, _ in rows_of(reader)]


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Times:
    return Times(tmp_path_factory.mktemp("times"))


def test_a_filter_that_ends_before_the_option_ends_loses_nothing(times: Times) -> None:
    seqs = times.seqs(LessThan(("timestamp",), times.at(150)), endingTimestamp=str(times.ms(180)))
    assert seqs == list(range(1, 150))


EDGES = (1, 2, 100, 101, 102, 200, 250, 299, 301, 329, 330, 331, 349, 350, 351)


def test_a_span_of_time_has_all_of_its_records_and_no_others(times: Times) -> None:
    for first in EDGES:
        for last in EDGES:
            between = [
                GreaterThanOrEqual(("timestamp",), times.at(first)),
                LessThan(("timestamp",), times.at(last)),
            ]
            assert times.seqs(*between) == list(range(first, min(last, RECORDS + 1))), (first, last)
    around = [GreaterThan(("timestamp",), times.at(98)), LessThanOrEqual(("timestamp",), times.at(102))]
    assert times.seqs(*around) == [99, 100, 101, 102]


def test_a_span_within_other_bounds_is_what_both_allow(times: Times) -> None:
    span = [GreaterThanOrEqual(("timestamp",), times.at(120)), LessThan(("timestamp",), times.at(340))]
    assert times.seqs(*span, startingOffsets='{"orders":130}') == list(range(130, 340))
    assert times.seqs(*span, endingOffsets='{"orders":205}') == list(range(120, 205))
    assert times.seqs(*span, startingTimestamp=str(times.ms(333))) == list(range(333, 340))
    assert times.seqs(*span, LessThan(("offset",), 122)) == [120, 121]


def test_segments_of_other_times_are_not_opened(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    load_index = SegmentReader.load_index

    def noted(
        reader: SegmentReader, name: SegmentName, entry: SegmentEntry, is_local: bool = False
    ) -> SegmentIndex:
        opened.append(name.first_seq if entry.is_sealed else 0)
        return load_index(reader, name, entry, is_local=is_local)

    monkeypatch.setattr(SegmentReader, "load_index", noted)
    span = [GreaterThanOrEqual(("timestamp",), times.at(120)), LessThan(("timestamp",), times.at(130))]
    assert times.seqs(*span) == list(range(120, 130))
    assert [seq for seq in opened if seq] == [101], "once, by the task"


def test_damaged_records_with_unknown_times_are_reported(tmp_path: Path) -> None:
    times = Times(tmp_path)
    segment = next(times.path.rglob("seg-0000000000000101.data"))
    flip(segment)
    flip(segment.with_suffix(".idx"))
    span = [GreaterThanOrEqual(("timestamp",), times.at(102)), LessThan(("timestamp",), times.at(198))]
    with pytest.raises(DamagedRecord, match=r"seqs 150 to 150: its .data is damaged; set mode=PERMISSIVE"):
        times.seqs(*span)
    left = [seq for seq in range(101, 201) if seq != 150]
    assert times.seqs(*span, mode="PERMISSIVE") == left, "Spark applies the filter"
    # Whose index is whole says so: nothing of the time that was asked for is damaged.
    assert times.seqs(LessThan(("timestamp",), times.at(101))) == list(range(1, 101))
