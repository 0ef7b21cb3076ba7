"""Batch reads on a real Spark, beside what paging with `diff` gives of the same store."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col

from spark.source.source import TopicsdSource
from tests.spark.conftest import CAPPED, CAPPED_BYTES, OTHER, PLAIN, TOPICS, Store

STAYING = [topic for topic in TOPICS if topic != "aging"]


def read(spark: SparkSession, store: Store, topics: str, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("topicsd").option("subscribe", topics).options(**options)
    return (reader.schema(schema) if schema else reader).load(store.path)


def as_answered(row: Row) -> dict[str, Any]:
    """A row with Kafka's columns as a record in the answer to a diff."""
    record = {
        "$seq": row.offset,
        "$ts": round(row.timestamp.timestamp() * 1000),
        "data": json.loads(row.value),
    }
    if row.key is not None:
        record["$tag"] = row.key.decode()
    for key, value in row.headers or []:
        if key == "node":
            record["$node"] = value.decode()
        else:
            record.setdefault("meta", {})[key] = value.decode() if key == "trace" else json.loads(value)
    return record


@pytest.mark.parametrize("topic", STAYING)
def test_a_topic_has_the_rows_that_diff_gives(spark: SparkSession, store: Store, topic: str) -> None:
    rows = read(spark, store, topic, includeHeaders="true").collect()
    assert [as_answered(row) for row in rows] == store.client.rows(topic)
    assert {(row.topic, row.timestampType) for row in rows} == {(topic, 1)}
    assert {row.partition for row in rows} == {0 if topic == PLAIN else row.partition for row in rows}


def test_all_topics_at_once_by_a_pattern(spark: SparkSession, store: Store) -> None:
    reader = spark.read.format("topicsd").option("subscribePattern", f"{PLAIN}|{OTHER}|capped.*")
    counts = {row.topic: row["count"] for row in reader.load(store.path).groupBy("topic").count().collect()}
    assert counts == {topic: len(store.client.rows(topic)) for topic in (PLAIN, OTHER, CAPPED, CAPPED_BYTES)}


def test_what_has_expired_is_left_out(spark: SparkSession, store: Store) -> None:
    deadline = time.monotonic() + 20
    while store.client.rows("aging"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert read(spark, store, "aging").count() == 0


def test_the_native_columns_are_ours(spark: SparkSession, store: Store) -> None:
    rows = read(spark, store, PLAIN, columns="native").where("meta is not null").collect()
    expected = [one for one in store.client.rows(PLAIN) if "meta" in one]
    assert len(rows) == len(expected) == 2
    for row, one in zip(rows, expected, strict=True):
        assert list(row.asDict()) == ["seq", "ts", "tag", "node", "meta", "data", "data_bytes"]
        assert (row.seq, row.tag, row.node) == (one["$seq"], one["$tag"], one["$node"])
        assert json.loads(row.meta) == one["meta"]
        assert (json.loads(row.data), row.data_bytes) == (one["data"], None)


def test_the_schema_has_kafkas_types(spark: SparkSession, store: Store) -> None:
    types = dict(read(spark, store, PLAIN, includeHeaders="true").dtypes)
    assert types == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }


def test_a_given_schema_chooses_columns(spark: SparkSession, store: Store) -> None:
    rows = read(spark, store, PLAIN, "offset bigint, key binary").collect()
    expected = [(one["$seq"], one.get("$tag")) for one in store.client.rows(PLAIN)]
    assert [(row.offset, row.key and row.key.decode()) for row in rows] == expected
    assert read(spark, store, PLAIN, "offset bigint").count() == len(expected)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("ofset bigint", "column ofset: unknown; must be one of key, value, topic, partition, offset"),
        ("offset int", "column offset: must be bigint, got int"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(
    spark: SparkSession, store: Store, schema: str, sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        read(spark, store, PLAIN, schema).collect()


def test_partitions_are_split_at_records(spark: SparkSession, store: Store) -> None:
    count = len(store.client.rows(PLAIN))
    few = read(spark, store, PLAIN, "offset bigint")
    assert few.rdd.getNumPartitions() == 1
    for options in ({"maxRecordsPerPartition": "150"}, {"minPartitions": "17"}):
        many = read(spark, store, PLAIN, "offset bigint", **options)
        assert many.rdd.getNumPartitions() >= 17
        offsets = [row.offset for row in many.collect()]
        assert len(offsets) == len(set(offsets)) == count
        assert sorted(offsets) == [row.offset for row in few.collect()]


def test_offsets_bound_what_is_read(spark: SparkSession, store: Store) -> None:
    bounds = {"startingOffsets": f'{{"{PLAIN}":{{"0":800}}}}', "endingOffsets": f'{{"{PLAIN}":805}}'}
    rows = read(spark, store, PLAIN, "offset bigint", **bounds).collect()
    assert [row.offset for row in rows] == [800, 801, 802, 803, 804]
    assigned = spark.read.format("topicsd").option("assign", f'{{"{PLAIN}":[0]}}').options(**bounds)
    assert assigned.load(store.path).count() == 5


def test_times_bound_what_is_read(spark: SparkSession, store: Store) -> None:
    stamps = [(one["$ts"], one["$seq"]) for one in store.client.rows(PLAIN)]
    low, high = stamps[500][0], stamps[-1][0]
    rows = read(spark, store, PLAIN, "offset bigint", startingTimestamp=low, endingTimestamp=high).collect()
    assert [row.offset for row in rows] == [seq for ts, seq in stamps if low <= ts < high]
    by_topic = {"startingOffsetsByTimestamp": f'{{"{PLAIN}":{{"0":{high}}}}}'}
    rows = read(spark, store, PLAIN, "offset bigint", **by_topic).collect()
    assert [row.offset for row in rows] == [seq for ts, seq in stamps if ts >= high]


def test_the_source_can_be_registered_by_hand(spark: SparkSession, store: Store) -> None:
    session = spark.newSession()
    session.dataSource.register(TopicsdSource)
    assert read(session, store, OTHER, "offset bigint").where(col("offset") <= 3).count() == 3


@pytest.mark.parametrize(
    ("topics", "sentence"),
    [
        ("nowhere", 'topic "nowhere" does not exist in'),
        ("passing", 'topic "passing" is ephemeral: it has no files'),
    ],
)
def test_a_topic_that_cannot_be_read_is_an_error(
    spark: SparkSession, store: Store, topics: str, sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        read(spark, store, topics).collect()


def test_loss_names_what_is_gone(spark: SparkSession, store: Store) -> None:
    bounds = {"startingOffsets": f'{{"{CAPPED}":1}}'}
    earliest = store.client.rows(CAPPED)[0]["$seq"]
    message = rf"read from seq 1, earliest is {earliest}: seqs 1 to {earliest - 1} are gone \(cap\)"
    with pytest.raises(PySparkException, match=message):
        read(spark, store, CAPPED, **bounds).collect()
    assert read(spark, store, CAPPED, failOnDataLoss="false", **bounds).count() == 700
    # What was deleted on purpose is no loss.
    deleted = {"startingOffsets": f'{{"{PLAIN}":1}}'}
    assert read(spark, store, PLAIN, **deleted).count() == len(store.client.rows(PLAIN))


def test_segments_that_moved_to_the_cold_directory_are_read(spark: SparkSession, store: Store) -> None:
    cold = store.server.folder / "cold"
    # The server looks for what may move once a minute.
    store.server.wait_for(lambda: any(cold.rglob("*.data")), "segments move to the cold directory", 90)
    for topic in (PLAIN, OTHER):
        rows = read(spark, store, topic, includeHeaders="true").collect()
        assert [as_answered(row) for row in rows] == store.client.rows(topic)
