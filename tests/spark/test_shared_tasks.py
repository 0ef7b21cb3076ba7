"""Plans and tasks of shared topics in one process: what happens between the plan and the task is chosen."""

from __future__ import annotations

import logging
import pickle
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, InputPartition

from spark.errors import DamagedRecord, DataLoss, SourceError
from spark.source.batch_reader import BatchQueryReader, FilteredQueryReader
from spark.source.columns import KNOWN_COLUMNS, arrow_schema
from spark.source.read_options import parse_options
from spark.task.shared_ranges import SharedPartition
from spark.task.slice_bytes import SliceBytes
from tests.spark.shared_store import SharedStore
from topicsd.broker.frames_v1 import NewFrame
from topicsd.catalog.open_catalog import catalog_directory, open_catalog
from topicsd.catalog.shared.shared_catalog import Part, SharedExtent, Slice
from topicsd.log.frame import HEADER_BYTES, LEN_BYTES

KAFKA = ("topic", "offset", "timestamp", "key", "value", "headers", "data", "data_bytes")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedStore]:
    with SharedStore(tmp_path) as shared:
        shared.create("a", "b")
        yield shared


def reader(
    shared: SharedStore, topics: str = "a", columns: tuple[str, ...] = KAFKA, **options: str
) -> BatchQueryReader:
    raw = {"topics": topics, **shared.options, **options}
    schema = arrow_schema(list(columns), KNOWN_COLUMNS)
    return FilteredQueryReader(parse_options(raw, is_stream=False), schema)


def planned(query: BatchQueryReader) -> list[InputPartition]:
    """Plan a query, and send its partitions as Spark does."""
    return [pickle.loads(pickle.dumps(one)) for one in query.partitions()]


def run(query: BatchQueryReader, partitions: list[InputPartition] | None = None) -> pa.Table:
    parts = planned(query) if partitions is None else partitions
    batches = [batch for part in parts for batch in query.read(part)]
    return pa.Table.from_batches(batches, query._schema) if batches else query._schema.empty_table()


def seqs(table: pa.Table) -> list[int]:
    values: list[int] = table.column("offset").to_pylist()
    return values


def values(table: pa.Table, topic: str = "a") -> list[tuple[int, bytes]]:
    rows = table.select(["topic", "offset", "value"]).to_pylist()
    return [(row["offset"], row["value"]) for row in rows if row["topic"] == topic]


def answered(shared: SharedStore, topic: str = "a") -> list[tuple[int, bytes]]:
    return [(one.seq, one.data) for one in shared.read(topic)]


def test_a_compaction_between_plan_and_task_changes_no_row(shared: SharedStore) -> None:
    shared.fill("a", 6)
    query = reader(shared)
    plan = planned(query)
    expected = answered(shared)
    shared.fill("a", 2)
    shared.compact("a", object_bytes=900)
    assert shared.vacuum().orphans == 5
    assert values(run(query, plan)) == expected
    # The same task again, after the rest was compacted, too.
    while shared.compact("a", object_bytes=900).outcome == "merged":
        pass
    shared.vacuum()
    assert values(run(query, plan)) == expected
    assert values(run(reader(shared))) == answered(shared)


def test_a_compacted_object_that_vanishes_is_looked_up_again(shared: SharedStore) -> None:
    shared.fill("a", 3)
    shared.compact("a")
    plan = planned(query := reader(shared))
    path, _ = shared.path_of("a", 1)
    path.unlink()
    with pytest.raises(SourceError, match="is missing, although the catalog names it"):
        run(query, plan)


def test_records_that_are_trimmed_after_the_plan(shared: SharedStore) -> None:
    shared.fill("a", 6)
    plan = planned(query := reader(shared))
    shared.trim("a", 7)
    shared.vacuum()
    # Deleted by a client: no data loss. The object of seq 7 is still there for seq 8.
    assert seqs(run(query, plan))[-11:] == list(range(8, 19))
    shared.trim("a", 12, "evicted")
    shared.vacuum()
    with pytest.raises(DataLoss, match=r'topic "a": read from seq 1, earliest is 13: seqs 8 to 12 are gone'):
        run(query, plan)
    lenient = reader(shared, failOnDataLoss="false")
    assert seqs(run(lenient, plan)) == list(range(13, 19))
    shared.delete("a")
    shared.vacuum()
    assert seqs(run(query, plan)) == []


def test_a_topic_that_is_created_again_is_another_one(shared: SharedStore) -> None:
    shared.fill("a", 2)
    plan = planned(query := reader(shared))
    shared.delete("a")
    shared.vacuum()
    shared.create("a")
    shared.fill("a", 3)
    assert seqs(run(query, plan)) == []
    assert seqs(run(reader(shared))) == list(range(1, 10))


def test_evicted_records_are_data_loss_unless_the_read_begins_after_them(shared: SharedStore) -> None:
    shared.fill("a", 4)
    shared.trim("a", 5, "evicted")
    assert seqs(run(reader(shared))) == list(range(6, 13))
    from_one = {"startingOffsets": '{"a":1}'}
    with pytest.raises(DataLoss, match=r"seqs 1 to 5 are gone \(evicted\)"):
        run(reader(shared, **from_one))
    assert seqs(run(reader(shared, failOnDataLoss="false", **from_one))) == list(range(6, 13))
    shared.trim("a", 8)
    assert seqs(run(reader(shared, **from_one))) == list(range(9, 13))


def test_bounds_by_seq_and_by_time(shared: SharedStore) -> None:
    shared.fill("a", 6)
    shared.compact("a", object_bytes=900)
    times = [one.ts for one in shared.read("a")]
    bounds = {"startingOffsets": '{"a":5}', "endingOffsets": '{"a":14}'}
    assert seqs(run(reader(shared, **bounds))) == list(range(5, 14))
    for ts in {*times, times[0] - 1, times[9] + 1}:
        first = 1 + sum(one < ts for one in times)
        assert seqs(run(reader(shared, startingTimestamp=str(ts)))) == list(range(first, 19))
        assert seqs(run(reader(shared, endingTimestamp=str(ts)))) == list(range(1, first))
    with pytest.raises(SourceError, match="has no record at or after"):
        run(reader(shared, startingTimestamp=str(times[-1] + 1)))


def test_times_that_fall_lose_no_record_to_a_filter(shared: SharedStore) -> None:
    for step_ms in (5_000, -9_000, 2_000, 700):
        shared.fill("a", 2)
        shared.clock.step_wall(step_ms)
    shared.compact("a")
    middle = sorted(one.ts for one in shared.read("a"))[10]
    since = pa.scalar(middle * 1000, pa.timestamp("us", tz="UTC")).as_py()
    query = reader(shared)
    assert isinstance(query, FilteredQueryReader)
    query.pushFilters([GreaterThanOrEqual(("timestamp",), since)])
    expected = {one.seq for one in shared.read("a") if one.ts >= middle}
    assert expected <= set(seqs(run(query)))
    assert expected != set(range(min(expected), max(expected) + 1))


def test_counts_need_no_object(shared: SharedStore) -> None:
    shared.fill("a", 5)
    shared.fill("b", 1)
    shared.trim("a", 4)
    for path in (shared.folder / "llog").rglob("*"):
        if path.is_file():
            path.unlink()
    table = run(reader(shared, "a,b", ("topic", "records")))
    assert {row["topic"]: row["records"] for row in table.to_pylist()} == {"a": 11, "b": 3}
    assert seqs(run(reader(shared, "a", ("offset",)))) == list(range(5, 16))


def test_partitions_keep_their_bounds_and_the_ranges_of_an_object_together(shared: SharedStore) -> None:
    for number in range(10):
        shared.append(a=[b"%d" % number] * 4, b=[b"%d" % number])
    one_task = reader(shared, "a,b").partitions()
    assert len(one_task) == 1
    query = reader(shared, "a,b", minPartitions="5")
    parts = query.partitions()
    assert len(parts) >= 5
    keys_of = [{one.extent.key for one in part.ranges} for part in parts if isinstance(part, SharedPartition)]
    assert sum(map(len, keys_of)) == len(set.union(*keys_of)) == 10
    for topic in ("a", "b"):
        assert values(run(query), topic) == answered(shared, topic)
    small = reader(shared, "a,b", maxRecordsPerPartition="3")
    counts = [sum(len(batch) for batch in small.read(part)) for part in planned(small)]
    assert max(counts) == 3
    assert sum(counts) == 50
    shared.compact("a")
    assert sorted(seqs(run(reader(shared, maxRecordsPerPartition="7")))) == list(range(1, 41))


def test_an_object_is_fetched_once_and_ahead() -> None:
    blob = bytes(range(256)) * 40_000
    reads: list[tuple[str, int, int]] = []

    def read(key: str, offset: int, size: int) -> bytes:
        reads.append((key, offset, size))
        return blob[offset : offset + size]

    def extent(key: str, offset: int, size: int) -> SharedExtent:
        return SharedExtent(1, 1, "WAL", key, "frames-v1", offset, size, 0)

    near = [extent("one", 100, 50), extent("one", 900, 70), extent("two", 10, 30), extent("one", 5, 40)]
    far = extent("one", 9_000_000, 10)
    with ExitStack() as stack:
        slices = SliceBytes(stack, read, [*near, far])
        for one in [*near, far]:
            at, size = one.byte_offset, one.byte_length
            assert slices.get(one).body == blob[at : at + size]
    assert sorted(reads) == [("one", 5, 965), ("one", 9_000_000, 10), ("two", 10, 30)]


DAMAGES: dict[str, tuple[int, bytes]] = {
    "payload": (HEADER_BYTES, b"\xff"),
    "length": (0, struct.pack("<I", 7)),
    "length past the end": (0, b"\xff\xff\xff\x7f"),
    "number": (LEN_BYTES + 10, b"\x09"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_a_blob_is_reported_with_its_seqs(
    shared: SharedStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    rich = NewFrame(b'{"n":0}', tag="red", node="n1", meta=b'{"k":1}')
    # As long as the other frames.
    plain_bytes = NewFrame(b"{\xff\0}" + b"0123456789abcd", tag="red", node="n1", is_bytes=True)
    for _ in range(3):
        shared.append(a=[rich, rich, plain_bytes])
    whole = run(reader(shared)).to_pylist()
    size = shared.catalog.extents_from("a", 5, 1)[0].byte_length // 3
    offset, data = DAMAGES[damage]
    shared.damage("a", 5, size + offset, data)
    with pytest.raises(
        DamagedRecord, match=r'llog/wal-shared/\w+, offset \d+, seqs 5 to 5 of topic "a": damaged'
    ):
        run(reader(shared))
    with caplog.at_level(logging.WARNING, "topicsd.spark"):
        rows = run(reader(shared, mode="PERMISSIVE")).to_pylist()
    assert rows == [row for row in whole if row["offset"] != 5]
    assert "count=1" in caplog.text
    bounds = {"startingOffsets": '{"a":6}'}
    assert seqs(run(reader(shared, **bounds))) == [6, 7, 8, 9]


def test_damage_in_a_compacted_object_is_reported_with_its_key(shared: SharedStore) -> None:
    shared.fill("a", 3)
    expected = answered(shared)
    shared.compact("a")
    size = len(b'{"n":1}') + HEADER_BYTES + 8
    # The header of the file, the frames of seqs 1 to 4, then that of seq 5.
    shared.damage("a", 5, 110 + 4 * size + HEADER_BYTES, b"\xff")
    with pytest.raises(DamagedRecord, match=r"llog/compacted/\w+, offset \d+, seq 5 of topic"):
        run(reader(shared))
    assert values(run(reader(shared, mode="PERMISSIVE"))) == [one for one in expected if one[0] != 5]


def test_a_damaged_index_of_a_compacted_object_loses_no_record(shared: SharedStore) -> None:
    shared.fill("a", 3)
    expected = answered(shared)
    shared.compact("a")
    (extent,) = shared.catalog.extents_from("a", 1, 1)
    shared.damage("a", 1, extent.byte_length - 60, b"\xff\xff\xff")
    assert values(run(reader(shared))) == expected


def test_a_body_of_an_unknown_encoding_is_named(shared: SharedStore) -> None:
    topic = shared.topic("a")
    shared.store.create("llog/wal-shared/feed", [b"records"], "put")
    shared.catalog.commit(
        "llog/wal-shared/feed", "records-v9", [Slice("a", topic.incarnation, 0, (Part("x", 2, 7),))]
    )
    with pytest.raises(SourceError, match="body encoding records-v9: this program reads frames-v1"):
        run(reader(shared, mode="PERMISSIVE"))


def test_many_extents_are_planned_page_by_page(shared: SharedStore) -> None:
    topic = shared.topic("a")
    for number in range(3):
        parts = tuple(Part(f"{number}/{one}", 1, 10) for one in range(300))
        for at, part in enumerate(parts):
            shared.catalog.commit(
                f"llog/wal-shared/{number}",
                "frames-v1",
                [Slice("a", topic.incarnation, at * 10, (part,))],
            )
    parts_planned = reader(shared).partitions()
    ranges = [one for part in parts_planned if isinstance(part, SharedPartition) for one in part.ranges]
    assert [one.first_seq for one in ranges] == list(range(1, 901))


def test_an_executor_without_the_catalog_reads_what_was_not_replaced(
    shared: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill("a", 4)
    plan = planned(query := reader(shared))
    catalog = shared.folder / "catalog.sqlite"
    catalog.rename(shared.folder / "elsewhere.sqlite")
    assert seqs(run(query, plan)) == list(range(1, 13))
    path, _ = shared.path_of("a", 4)
    path.unlink()
    with pytest.raises(SourceError, match="was replaced after the query was planned, and this executor"):
        run(query, plan)


def test_a_name_of_an_exported_and_of_a_shared_topic_is_refused(shared: SharedStore) -> None:
    retries = shared.retries()
    local = open_catalog(shared.catalog_url, catalog_directory(shared.url, ""), retries)
    local.create("a", 1, 9, "node", 0)
    local.close()
    shared.fill("b", 1)
    with pytest.raises(SourceError, match=r'topic "a": .* has an exported and a shared topic of this name'):
        run(reader(shared, "a,b"))
    assert seqs(run(reader(shared, "b"))) == [1, 2, 3]


def test_the_password_of_a_catalog_is_refused_in_an_option() -> None:
    for url in (
        "postgresql://user:secret@host/topics",
        "postgresql://host/topics?password=secret",
        "postgresql://host/topics?user=a&sslpassword=secret",
    ):
        with pytest.raises(SourceError, match=r"^catalog: must not contain a password") as refused:
            parse_options({"path": "s3://bucket", "catalog": url, "topics": "a"}, is_stream=False)
        assert "secret" not in str(refused.value)
