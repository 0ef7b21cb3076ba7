"""What routes copied is read from the log like all else, though it stands there under another topic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shared.contract.route_rule import RouteRule
from spark.errors import DamagedRecord
from spark.source.batch_reader import BatchQueryReader
from spark.source.columns import all_columns, arrow_schema
from spark.source.read_options import parse_options
from tests.harness.shard.data_dirs import flip
from tests.harness.shard.one_shard import RealShard, record
from tests.harness.stage.route_shards import start_routes

NATIVE = ("seq", "ts", "tag", "node", "meta", "data")


def reader_of(path: Path, topic: str, **options: str) -> BatchQueryReader:
    columns = all_columns(is_native=True, include_headers=False)
    given = {"path": str(path), "subscribe": topic, "columns": "native", **options}
    schema = arrow_schema([name for name in columns if name in NATIVE], columns)
    return BatchQueryReader(parse_options(given, is_stream=False), schema)


def rows_of(reader: BatchQueryReader, partitions: Any = None) -> list[Any]:
    rows = []
    for partition in reader.partitions() if partitions is None else partitions:
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            rows += [(row["seq"], row["tag"], row["data"]) for row in batch.to_pylist()]
    return rows


def rows_by_server(shard: RealShard, topic: str) -> list[Any]:
    records = shard.read(topic, limit=10_000).records
    return [(one.seq, bytes(one.tag or b"").decode() or None, one.data.decode()) for one in records]


def written(path: Path) -> RealShard:
    """Copies of all and of some, among records of their own, in segments and in the log, deleted and not."""
    shard = RealShard(path, segment_max_events=10, wal_file_bytes=1 << 16)
    for name in ("a", "all", "some", "chained"):
        shard.put(name)
    start_routes(
        shard,
        RouteRule("all", "a", "all"),
        RouteRule("some", "a", "some", ["tag", "Eq", "odd"]),
        RouteRule("chained", "all", "chained"),
    )
    for number in range(30):
        tags = ("odd" if n % 2 else None for n in range(number % 7 + 1))
        shard.append("a", *[record(f"{number}.{n}", tag) for n, tag in enumerate(tags)])
        shard.append("all", record("its own", "odd"))
        shard.pass_time(3)
        if number == 12:
            shard.checkpoint()
    shard.delete("all", before_seq=4)
    shard.delete("some", seqs=[20, 40])
    shard.pass_time(500)
    return shard


@pytest.mark.parametrize("topic", ["a", "all", "some", "chained"])
def test_by_path_there_are_the_rows_that_a_reader_of_the_server_gets(tmp_path: Path, topic: str) -> None:
    shard = written(tmp_path)
    rows = rows_by_server(shard, topic)
    assert len(rows) > 30
    assert rows_of(reader_of(tmp_path, topic)) == rows
    assert rows_of(reader_of(tmp_path, topic, minPartitions="7")) == rows
    shard.close()
    assert rows_of(reader_of(tmp_path, topic)) == rows


def test_an_original_that_is_damaged_when_it_is_read_is_named_for_its_copy(tmp_path: Path) -> None:
    shard = written(tmp_path)
    rows, last = rows_by_server(shard, "all"), shard.topic("a").head
    readers = reader_of(tmp_path, "all"), reader_of(tmp_path, "all", mode="PERMISSIVE")
    plans = [reader.partitions() for reader in readers]
    file, at = shard.topic("a").run.place_of(last, shard.shard.state.files)
    copy = max(seq for seq, _, data in rows if data.startswith('"29'))
    flip(Path(shard.paths.wal) / file, at + 45)
    with pytest.raises(DamagedRecord, match=f'{file}, offset {at}, seq {copy} of topic "all" is damaged'):
        rows_of(readers[0], plans[0])
    assert rows_of(readers[1], plans[1]) == [row for row in rows if row[0] != copy]


def mixed(path: Path) -> RealShard:
    """Copies, some of them of the same records, stand behind what came later; all in one file of the log."""
    shard = RealShard(path)
    for name in ("a", "b", "d"):
        shard.put(name)
    start_routes(shard, RouteRule("a", "a", "d"), RouteRule("again", "a", "d"), RouteRule("b", "b", "d"))
    for number in range(20):
        for topic in "bad":
            shard.send_append(topic, record(f"{topic}{number}", "t" * (number % 3)))
        shard.pass_time(3)
    shard.pass_time(500)
    return shard


def test_copies_in_any_order_among_own_records_are_one_range_of_the_log(tmp_path: Path) -> None:
    shard = mixed(tmp_path)
    shard.delete("d", seqs=[3, 50, 51])
    shard.pass_time(500)
    reader, rows = reader_of(tmp_path, "d"), rows_by_server(shard, "d")
    assert len(rows) == 77
    assert rows_of(reader) == rows
    assert [len(one.ranges) for one in reader.partitions()] == [1]
    assert rows_of(reader_of(tmp_path, "d", minPartitions="9")) == rows
    shard.close()


def test_a_file_that_ends_early_damages_what_it_lacks_and_no_more(tmp_path: Path) -> None:
    shard = mixed(tmp_path)
    rows = rows_by_server(shard, "d")
    own = next(seq for seq, _, data in rows if data == '"d19"')
    assert own < len(rows)
    reader = reader_of(tmp_path, "d", mode="PERMISSIVE")
    plan = reader.partitions()
    file, at = shard.topic("d").run.place_of(own, shard.shard.state.files)
    os.truncate(Path(shard.paths.wal) / file, at + 10)
    assert rows_of(reader, plan) == [row for row in rows if row[0] != own]
