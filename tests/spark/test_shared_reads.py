"""Shared topics on a real Spark, from the catalog and the store, beside what a broker answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow

from tests.spark.shared_store import Row, SharedStore
from tests.stack.servers import CREDENTIALS, postgres_server, s3_server
from topicsd.broker.frames_v1 import NewFrame

RICH = NewFrame('{"text":"Grüße"}'.encode(), tag="red", node="n1", meta=b'{"trace":7}')


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedStore]:
    with SharedStore(tmp_path) as shared:
        shared.create("orders", "orders:3", "other")
        yield shared


def fill_two_topics(shared: SharedStore) -> None:
    for number in range(8):
        data = b'{"n":%d}' % number
        shared.append(orders=[data, RICH, data * 50], other=[NewFrame(data, tag=f"t{number}")])


def read(spark: SparkSession, shared: SharedStore, topics: str, **options: str) -> DataFrame:
    reader = spark.read.format("topicsd").option("topics", topics).options(**shared.options)
    return reader.options(includeHeaders="true", **options).load()


def rows_of(rows: list[SparkRow], topic: str) -> list[Row]:
    return [
        (
            row.offset,
            round(row.timestamp.timestamp() * 1000),
            bytes(row.value),
            None if row.key is None else bytes(row.key),
            [
                ("meta", b'{"%s":%s}' % (one.key.encode(), bytes(one.value)))
                if one.key != "node"
                else ("node", bytes(one.value))
                for one in row.headers or []
            ],
        )
        for row in rows
        if row.topic == topic
    ]


def test_two_topics_of_the_same_blobs_have_the_rows_that_a_broker_answers(
    spark: SparkSession, shared: SharedStore
) -> None:
    fill_two_topics(shared)
    rows = read(spark, shared, "orders,other").collect()
    for topic in ("orders", "other"):
        assert rows_of(rows, topic) == shared.rows(topic)
    assert {(row.partition, row.timestampType) for row in rows} == {(0, 1)}
    assert len(rows) == 32
    assert rows_of(read(spark, shared, "other").collect(), "other") == shared.rows("other")


def test_a_compacted_topic_has_the_same_rows_and_the_native_columns(
    spark: SparkSession, shared: SharedStore
) -> None:
    fill_two_topics(shared)
    before = shared.rows("orders")
    assert shared.compact("orders", object_bytes=4000).outcome == "merged"
    shared.fill("orders", 2)
    shared.vacuum()
    rows = read(spark, shared, "orders").collect()
    assert rows_of(rows, "orders") == shared.rows("orders") == [*before, *shared.rows("orders")[24:]]
    native = spark.read.format("topicsd").option("topics", "orders").option("columns", "native")
    first = native.options(**shared.options).load().orderBy("seq").take(2)[1]
    assert (first.seq, first.tag, first.node, first.meta, first.data) == (
        2,
        "red",
        "n1",
        '{"trace":7}',
        '{"text":"Grüße"}',
    )


def test_a_pattern_selects_the_partitions_of_a_topic(spark: SparkSession, shared: SharedStore) -> None:
    shared.append(**{"orders": [b"1"], "orders:3": [b"2"], "other": [b"3"]})
    reader = (
        spark.read.format("topicsd").option("subscribePattern", r"orders(:\d+)?").options(**shared.options)
    )
    assert {(row.topic, bytes(row.value)) for row in reader.load().collect()} == {
        ("orders", b"1"),
        ("orders:3", b"2"),
    }


def test_filters_and_counts_are_exact(spark: SparkSession, shared: SharedStore) -> None:
    from spark.optimizer.narrow_reads import narrow_reads

    narrow_reads(spark)
    fill_two_topics(shared)
    assert shared.compact("orders", object_bytes=4000).outcome == "merged"
    shared.trim("orders", 2)
    expected = shared.rows("orders")
    frame = read(spark, shared, "orders,other")
    assert frame.count() == len(expected) + 8
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"orders": len(expected), "other": 8}
    assert frame.filter("topic = 'orders' and key = 'red'").count() == sum(
        row[3] == b"red" for row in expected
    )
    assert [row.offset for row in frame.filter("topic = 'orders' and offset between 5 and 9").collect()] == [
        5,
        6,
        7,
        8,
        9,
    ]
    middle = expected[len(expected) // 2][1]
    since = frame.filter(f"topic = 'orders' and timestamp >= timestamp_millis({middle})")
    assert sorted(row.offset for row in since.select("offset").collect()) == [
        row[0] for row in expected if row[1] >= middle
    ]


def test_a_stream_continues_from_its_checkpoint_and_reports_what_was_evicted(
    spark: SparkSession, shared: SharedStore, tmp_path: Path
) -> None:
    def run(**options: str) -> list[int]:
        stream = spark.readStream.format("topicsd").option("topics", "orders").options(**shared.options)
        query = (
            stream.options(startingOffsets="earliest", **options)
            .load()
            .select("offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        return sorted(row.offset for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    shared.fill("orders", 4)
    assert run(maxOffsetsPerTrigger="5") == list(range(1, 13))
    shared.fill("orders", 2)
    shared.compact("orders")
    shared.vacuum()
    assert run() == list(range(1, 19))
    shared.fill("orders", 2)
    # Deleted by a client: passed over.
    shared.trim("orders", 20)
    assert run(maxBytesPerTrigger="10") == [*range(1, 19), *range(21, 25)]
    shared.fill("orders", 2)
    shared.trim("orders", 26, "evicted")
    with pytest.raises(PySparkException, match=r'topic "orders": read from seq 25, .* are gone \(evicted\)'):
        run()
    assert run(failOnDataLoss="false")[-4:] == [27, 28, 29, 30]
    shared.delete("orders")
    shared.create("orders")
    shared.fill("orders", 1)
    with pytest.raises(PySparkException, match=r"\(recreated\)"):
        run()


def test_s3_and_postgresql_have_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    with (
        pytest.MonkeyPatch.context() as environment,
        s3_server(tmp_path) as s3,
        postgres_server() as postgres,
    ):
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        with SharedStore(tmp_path, s3.url("shared"), postgres.new_database("shared")) as shared:
            shared.create("orders", "other")
            fill_two_topics(shared)
            rows = read(spark, shared, "orders,other").collect()
            for topic in ("orders", "other"):
                assert rows_of(rows, topic) == shared.rows(topic)
