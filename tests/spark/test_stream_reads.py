"""Streams on a real Spark: bounded batches, restarts from a checkpoint, and topics that change under them."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.whole_server import WholeServer, name_on
from tests.spark.conftest import SHARDS, SMALL_FILES, Store

LOAD_SECONDS = 120.0 if os.environ.get("TOPICS_TEST_DEEP") else 8.0


class Sink:
    """A directory of Parquet, which has each batch once, and a checkpoint beside it."""

    way = "subscribe"

    def __init__(
        self, spark: SparkSession, folder: Path, store: str | None, topics: str, **options: Any
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._source = (
            spark.readStream.format("topicsd")
            .schema("topic string, offset bigint, value binary")
            .option(self.way, topics)
            .options(**{"startingOffsets": "earliest", **options})
            .load(store)
        )

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self._source.writeStream.format("parquet").option("path", str(self._folder / "rows"))
        return (
            writer.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(**trigger).start()
        )

    def drain(self) -> StreamingQuery:
        query = self.start(availableNow=True)
        query.awaitTermination()
        return query

    def rows(self) -> list[tuple[str, int]]:
        """In no order."""
        rows = self._spark.read.parquet(str(self._folder / "rows")).select("topic", "offset").collect()
        return sorted((row.topic, row.offset) for row in rows)


class SinkOfPattern(Sink):
    way = "subscribePattern"


def expected_offsets(client: TopicClient, *topics: str) -> list[tuple[str, int]]:
    return sorted((topic, row["$seq"]) for topic in topics for row in client.rows(topic))


def test_a_stream_has_bounded_batches_and_resumes_after_a_restart(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    topics = ("stream-a", "stream-b")
    for topic, count in zip(topics, (900, 300), strict=True):
        store.client.fill(topic, count)
    store.client.wait_until_durable(*topics)
    sink = Sink(spark, tmp_path, store.path, ",".join(topics), maxOffsetsPerTrigger="500")
    query = sink.drain()
    assert sink.rows() == expected_offsets(store.client, *topics)
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert batches == [500, 500, 200]
    last = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    assert {name: place["offset"] for name, place in last["topics"].items()} == {
        "stream-a": 901,
        "stream-b": 301,
    }
    assert query.recentProgress[-1]["sources"][0]["latestOffset"] is not None

    store.client.fill("stream-a", 40)
    store.client.wait_until_durable(*topics)
    sink.drain()
    assert sink.rows() == expected_offsets(store.client, *topics)


def test_a_batch_is_bounded_by_bytes(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.client.fill("stream-bytes", 400, size=1000)
    store.client.wait_until_durable("stream-bytes")
    sink = Sink(spark, tmp_path, store.path, "stream-bytes", maxBytesPerTrigger="120000")
    query = sink.drain()
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(batches) == 400
    assert len(batches) >= 4
    assert max(batches) <= 130


def test_a_topic_that_was_made_anew_is_loss(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.client.fill("again", 20)
    store.client.wait_until_durable("again")
    Sink(spark, tmp_path, store.path, "again").drain()
    store.client.delete("again")
    store.client.fill("again", 30)
    store.client.wait_until_durable("again")
    with pytest.raises(StreamingQueryException, match=r'topic "again": read from seq 21.*\(recreated\)'):
        Sink(spark, tmp_path, store.path, "again").drain()
    sink = Sink(spark, tmp_path, store.path, "again", failOnDataLoss="false")
    sink.drain()
    assert sink.rows() == sorted([("again", n) for n in (*range(1, 21), *range(1, 31))])


def test_a_stream_under_load_has_each_record_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    topics = tuple(name_on(shard, SHARDS, "load") for shard in range(SHARDS))
    (tmp_path / "cold").mkdir()
    flags = (
        *SMALL_FILES,
        "--reader-grace-ms=0",
        f"--cold-dir={tmp_path / 'cold'}",
        "--hot-retain-segments=1",
    )
    with WholeServer(tmp_path, *flags, shards=SHARDS) as server:
        client = TopicClient(server.port)
        for topic in topics:
            client.fill(topic, 10)
        client.wait_until_durable(*topics)
        ends = threading.Event()
        writer = threading.Thread(target=write_until, args=(server.port, topics, ends))
        writer.start()
        try:
            sink = Sink(spark, tmp_path / "sink", str(tmp_path / "data"), ",".join(topics))
            for _ in range(3):
                query = sink.start(processingTime="0 seconds")
                deadline = time.monotonic() + LOAD_SECONDS / 4
                while time.monotonic() < deadline and query.isActive:
                    time.sleep(0.1)
                assert query.exception() is None
                query.stop()
        finally:
            ends.set()
            writer.join()
        client.wait_until_durable(*topics)
        sink.drain()
        assert sink.rows() == expected_offsets(client, *topics)


def write_until(port: int, topics: tuple[str, ...], ends: threading.Event) -> None:
    client = TopicClient(port)
    while not ends.wait(0.02):
        for topic in topics:
            client.fill(topic, 50)


def test_topics_of_a_pattern_may_come_and_go(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.client.fill("guest-1", 10)
    store.client.wait_until_durable("guest-1")
    first = SinkOfPattern(spark, tmp_path, store.path, "guest-.*", startingOffsets='{"guest-1":{"0":4}}')
    first.drain()
    assert first.rows() == [("guest-1", seq) for seq in range(4, 11)]
    store.client.fill("guest-2", 5)
    store.client.wait_until_durable("guest-2")
    first.drain()
    both = sorted([*[("guest-1", seq) for seq in range(4, 11)], *[("guest-2", seq) for seq in range(1, 6)]])
    assert first.rows() == both
    store.client.delete("guest-1")
    store.client.wait_until_durable("guest-2")
    with pytest.raises(
        StreamingQueryException, match='topic "guest-1" was deleted; set failOnDataLoss=false'
    ):
        first.drain()
    second = SinkOfPattern(spark, tmp_path, store.path, "guest-.*", failOnDataLoss="false")
    second.drain()
    assert second.rows() == both
