"""A shared topic of a running server, read from its store and through its API, beside what diff answers."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.harness.clients.topic_client import TopicClient, ask_until_ready
from tests.harness.server.whole_server import WholeServer
from tests.spark.test_batch_reads import as_answered


def test_both_ways_have_the_rows_that_diff_gives(spark: SparkSession, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/objects"
    (tmp_path / "objects").mkdir()
    with WholeServer(tmp_path, f"--store-url={store}", shards=1) as server:
        ask_until_ready(server.port, "PUT", "/v0/topics/orders", {"placement": "shared"})
        client = TopicClient(server.port)
        for number in range(4):
            tagged = {
                "data": {"n": number},
                "tag": f"t{number}",
                "node": "n1",
                "meta": {"trace": "t-1", "n": 7},
            }
            client.append("orders", tagged, {"data": "text"})
        client.call("orders", "delete", before_seq=3)
        expected = client.rows("orders")
        assert [row["$seq"] for row in expected] == [3, 4, 5, 6, 7, 8]

        def read(**options: str) -> DataFrame:
            reader = spark.read.format("topicsd").option("topics", "orders").option("includeHeaders", "true")
            return reader.options(**options).load()

        by_url = {"url": f"http://127.0.0.1:{server.port}"}
        for options in ({"path": store, "catalog": "sqlite:"}, by_url):
            assert [as_answered(row) for row in read(**options).collect()] == expected
            assert read(maxRecordsPerPartition="2", **options).count() == 6
