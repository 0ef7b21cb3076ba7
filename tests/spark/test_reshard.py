"""Spark reads the same rows before and after a reshard, and a stream resumes from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import run_here
from tests.harness.server.everything import Everything, server
from tests.harness.server.whole_server import WholeServer
from tests.spark.test_everything import options
from tests.spark.test_stream_reads import Sink, expected_offsets


def rows_read(spark: SparkSession, directory: Everything) -> list[Any]:
    frame = spark.read.format("topicsd").options(**options(directory)).load()
    rows = frame.drop("partition").collect()
    return sorted(map(str, rows))


def test_the_rows_are_the_same(spark: SparkSession, everything: Everything, tmp_path: Path) -> None:
    copy = everything.copied(tmp_path)
    with server(copy.folder) as running:
        running.stop()
    before = rows_read(spark, copy)
    assert len(before) > 500
    for shards in (5, 1):
        ran = run_here("reshard", copy.data, "--shards", shards, "--cold-dir", copy.cold)
        assert ran.code == 0, ran.err
        assert rows_read(spark, copy) == before


def test_a_stream_resumes_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    topics = [f"stream-{number}" for number in range(6)]
    sink = Sink(spark, tmp_path, str(tmp_path / "data"), ",".join(topics))
    expected: list[tuple[str, int]] = []
    for shards in (2, 5, 1):
        if expected:
            ran = run_here("reshard", tmp_path / "data", "--shards", shards)
            assert ran.code == 0, ran.err
        with WholeServer(tmp_path, shards=2) as server:
            client = TopicClient(server.port)
            for topic in topics:
                client.fill(topic, 30)
            expected = expected_offsets(client, *topics)
            server.stop()
        sink.drain()
        assert sink.rows() == expected
    assert len(expected) == 540
