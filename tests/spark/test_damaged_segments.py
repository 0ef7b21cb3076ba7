"""Damage that is met while a query is planned, without Spark around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo

from spark.errors import DamagedRecord
from spark.source.batch_reader import FilteredQueryReader
from spark.source.columns import KAFKA, arrow_schema
from spark.source.read_options import parse_options
from tests.spark.test_damage_and_drops import reader_of, rows_of
from tests.spark.test_drops_under_readers import EVERYTHING, filled


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def tagged(path: Path, mode: str) -> FilteredQueryReader:
    options = {"path": str(path), "subscribe": "orders", "narrowed": "true", "mode": mode}
    reader = FilteredQueryReader(parse_options(options, is_stream=False), arrow_schema(list(KAFKA), KAFKA))
    has_tag = EqualTo(("key",), b"kept")
    assert list(reader.pushFilters([has_tag])) == [has_tag]
    return reader


def test_a_segment_with_unknown_tags_is_read(tmp_path: Path) -> None:
    filled(tmp_path).shard.close()
    path = tmp_path / "data"
    segment = next(path.rglob("seg-0000000000000201.data"))
    flip(segment)
    flip(segment.with_suffix(".tags"))
    with pytest.raises(DamagedRecord, match=r'seq 250 of topic "orders" is damaged: .*set mode=PERMISSIVE'):
        list(rows_of(tagged(path, "FAILFAST")))
    seqs = [seq for seq, _ in rows_of(tagged(path, "PERMISSIVE"))]
    assert seqs == [seq for seq in EVERYTHING if seq != 250]


def test_a_position_by_time_in_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    young = shard.clock.now_ms()
    for _ in range(2):
        shard.append("orders", *range(50))
        shard.pass_time(1000)
    shard.checkpoint()
    shard.shard.close()
    path = tmp_path / "data"
    for file in list(path.rglob("seg-0000000000000501.*")):
        file.unlink()
    message = (
        rf"^{path}: .*seg-0000000000000501.data, seqs 501 to 600: its .data is missing; if the object store"
    )
    with pytest.raises(DamagedRecord, match=message):
        reader_of(path, startingTimestamp=str(young + 1)).partitions()
