"""Exported topics on a real Spark, from the store and the catalog alone, beside what the servers answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.harness.output.command_run import run_here
from tests.spark.conftest import CAPPED, OTHER, PLAIN
from tests.spark.exported_topics import (
    ADOPTED,
    EXPORTED,
    QUEUE,
    ExportedTopics,
    catalog_of,
    exported_topics,
)
from tests.spark.test_backup_reads import by_topic
from tests.spark.test_batch_reads import as_answered
from tests.stack.servers import CREDENTIALS, postgres_server, s3_server
from topicsd.segment.entry import STATE


@pytest.fixture(scope="module", params=["folder", "s3"])
def topics(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ExportedTopics]:
    folder = tmp_path_factory.mktemp("exported")
    if request.param == "folder":
        (folder / "objects").mkdir()
        with exported_topics(folder, f"file://{folder}/objects", "sqlite:") as topics:
            yield topics
        return
    with s3_server(folder) as s3, postgres_server() as postgres:
        catalog_url = postgres.new_database("catalog")
        with exported_topics(folder, s3.url("exported"), catalog_url, CREDENTIALS) as topics:
            yield topics


def read(spark: SparkSession, topics: ExportedTopics, names: str, **options: str) -> DataFrame:
    reader = spark.read.format("topicsd").option("subscribe", names)
    return reader.options(**{**topics.options, **options}).load()


@pytest.mark.parametrize("topic", EXPORTED)
def test_a_topic_has_the_rows_that_diff_gave(spark: SparkSession, topics: ExportedTopics, topic: str) -> None:
    rows = read(spark, topics, topic, includeHeaders="true").collect()
    assert [as_answered(row) for row in rows] == topics.rows[topic]
    assert {row.partition for row in rows} <= {0}


def test_all_topics_at_once_by_a_pattern(spark: SparkSession, topics: ExportedTopics) -> None:
    reader = spark.read.format("topicsd").option("subscribePattern", "(?!aging).*").options(**topics.options)
    counts = {row.topic: row["count"] for row in reader.load().groupBy("topic").count().collect()}
    assert counts == {topic: len(rows) for topic, rows in topics.rows.items() if rows}


def test_a_count_and_bounds_leave_out_the_same_records(spark: SparkSession, topics: ExportedTopics) -> None:
    reader = spark.read.format("topicsd").option("subscribe", f"{PLAIN},{QUEUE}").options(**topics.options)
    sums = reader.schema("topic string, records bigint").load().groupBy("topic").sum("records").collect()
    assert {row.topic: row[1] for row in sums} == {name: len(topics.rows[name]) for name in (PLAIN, QUEUE)}
    bounds = {"startingOffsets": f'{{"{PLAIN}":1000}}', "endingOffsets": f'{{"{PLAIN}":2000}}'}
    seqs = [row.offset for row in read(spark, topics, PLAIN, **bounds).collect()]
    assert seqs == [row["$seq"] for row in topics.rows[PLAIN] if 1000 <= row["$seq"] < 2000]
    middle = topics.rows[OTHER][len(topics.rows[OTHER]) // 2]["$ts"]
    newer = read(spark, topics, OTHER, startingTimestamp=str(middle)).count()
    assert newer == sum(row["$ts"] >= middle for row in topics.rows[OTHER])


def test_evicted_records_are_data_loss(spark: SparkSession, topics: ExportedTopics) -> None:
    options = {"startingOffsets": f'{{"{CAPPED}":1}}'}
    with pytest.raises(PySparkException, match=rf'topic "{CAPPED}": read from seq 1, .* are gone \(cap'):
        read(spark, topics, CAPPED, **options).collect()
    rows = read(spark, topics, CAPPED, failOnDataLoss="false", **options).count()
    assert rows == len(topics.rows[CAPPED])


def test_a_topic_that_is_not_in_the_catalog_is_named(spark: SparkSession, topics: ExportedTopics) -> None:
    with pytest.raises(PySparkException, match='topic "plai" does not exist in'):
        read(spark, topics, "plai").collect()


def test_a_missing_state_object_is_an_error_and_not_an_empty_topic(
    spark: SparkSession, topics: ExportedTopics
) -> None:
    """The extents of the catalog alone do not say which records were deleted."""
    with closing(catalog_of(topics.url, topics.catalog_url)) as catalog:
        (row,) = catalog.list(QUEUE, "", 1)
        (newest,) = catalog.extents_from(QUEUE, row.exported_to, 2)
        objects = tuple(
            msgspec.structs.replace(one, key=one.key.replace("-state-", "-state-9"))
            if one.key.endswith(STATE)
            else one
            for one in newest.objects
        )
        changed = msgspec.structs.replace(newest, objects=objects)
        catalog.publish_extents(QUEUE, row.ownership, [changed], [newest])
        try:
            with pytest.raises(
                PySparkException, match=f'topic "{QUEUE}": .* is missing, although the catalog'
            ):
                read(spark, topics, QUEUE).collect()
        finally:
            catalog.publish_extents(QUEUE, row.ownership, [newest], [changed])


def test_without_a_state_object_all_records_of_the_extents_are_read(
    spark: SparkSession, topics: ExportedTopics
) -> None:
    with closing(catalog_of(topics.url, topics.catalog_url)) as catalog:
        (row,) = catalog.list(OTHER, "", 1)
        with_state = catalog.extents_from(OTHER, row.exported_from, 256)
        without = [
            msgspec.structs.replace(
                extent, objects=tuple(one for one in extent.objects if not one.key.endswith(STATE))
            )
            for extent in with_state
        ]
        catalog.publish_extents(OTHER, row.ownership, without, with_state)
        try:
            seqs = [one.offset for one in read(spark, topics, OTHER).collect()]
            assert seqs == list(range(1, row.exported_to + 1))
        finally:
            catalog.publish_extents(OTHER, row.ownership, with_state, without)


def test_a_stream_follows_what_is_exported(
    spark: SparkSession, topics: ExportedTopics, tmp_path: Path
) -> None:
    def run() -> list[int]:
        stream = spark.readStream.format("topicsd").option("subscribe", PLAIN).options(**topics.options)
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .select("offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        return sorted(row.offset for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    assert run() == [row["$seq"] for row in topics.rows[PLAIN]]
    topics.client.append(PLAIN, {"data": "later"})
    topics.wait_until_exported(PLAIN)
    topics.rows[PLAIN] = topics.client.rows(PLAIN)
    assert run() == [row["$seq"] for row in topics.rows[PLAIN]]
    assert topics.rows[PLAIN][-1]["data"] == "later"


def test_the_epoch_of_an_adopted_topic_is_kept(spark: SparkSession, topics: ExportedTopics) -> None:
    with closing(catalog_of(topics.url, topics.catalog_url)) as catalog:
        (row,) = catalog.list(ADOPTED, "", 1)
    assert row.owner_epoch == 2
    assert len(topics.rows[ADOPTED]) > 1000
    seqs = [one.offset for one in read(spark, topics, ADOPTED).collect()]
    assert seqs == [one["$seq"] for one in topics.rows[ADOPTED]]


@pytest.mark.parametrize("server", ["first", "second"])
def test_a_backup_that_refers_to_exported_segments_has_the_same_rows(
    spark: SparkSession,
    topics: ExportedTopics,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    made = run_here("backup", "create", topics.folder / server / "data", "--to", tmp_path, "--json")
    assert made.code == 0, made.err
    names = [ADOPTED] if server == "second" else [PLAIN, OTHER, CAPPED, QUEUE]
    reader = spark.read.format("topicsd").option("subscribe", ",".join(names))
    rows = by_topic(reader.option("includeHeaders", "true").load(f"file://{tmp_path}").collect())
    assert rows == {name: topics.rows[name] for name in names}
