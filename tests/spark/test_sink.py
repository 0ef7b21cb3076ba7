"""The sink on a real Spark: batches, streams, what it refuses, and what is killed while it writes."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from spark.sink.write_options import parse_write_options
from spark.sink.writers import BatchWriter
from spark.view.server_client import ServerClient, ServerRefusal
from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.whole_server import WholeServer, name_on
from tests.spark.conftest import PLAIN, SHARDS, Store
from tests.spark.test_stream_killed import run_and_kill
from tests.spark.test_stream_reads import write_until


def url_of(server: Any) -> str:
    return f"http://127.0.0.1:{server.port}"


def write(frame: DataFrame, store: Store, mode: str = "append", **options: str) -> None:
    frame.write.format("topicsd").mode(mode).options(url=url_of(store.server), **options).save()


def test_rows_go_where_their_column_says_with_key_and_headers(spark: SparkSession, store: Store) -> None:
    rows = [("sunk-a" if n % 3 else "sunk-b", f'{{"n": {n}}}', f"tag-{n}") for n in range(400)]
    frame = spark.createDataFrame(rows, "topic string, value string, key string").repartition(3)
    headers = "array(named_struct('key', 'trace', 'value', cast(key as binary)))"
    write(frame.withColumn("headers", expr(headers)), store, recordsPerRequest="50")
    received = [(topic, row) for topic in ("sunk-a", "sunk-b") for row in store.client.rows(topic)]
    assert sorted((topic, json.dumps(row["data"]), row["$tag"]) for topic, row in received) == sorted(rows)
    assert all(row["meta"] == {"trace": row["$tag"]} for _, row in received)


@pytest.mark.parametrize("columns", ["kafka", "native"])
def test_what_was_read_can_be_written(spark: SparkSession, store: Store, columns: str) -> None:
    options = {"includeHeaders": "true"} if columns == "kafka" else {"columns": "native"}
    reader = spark.read.format("topicsd").options(url=url_of(store.server), subscribe=PLAIN, **options)
    write(reader.load(), store, topic=f"copied-{columns}")
    kept = ("$tag", "$node", "data", *(("meta",) if columns == "native" else ()))
    rows = [[row.get(name) for name in kept] for row in store.client.rows(PLAIN)]
    assert [[row.get(name) for name in kept] for row in store.client.rows(f"copied-{columns}")] == rows


def test_nothing_stays_of_a_write(spark: SparkSession, store: Store) -> None:
    def write_numbers(frame: DataFrame, value: str) -> None:
        write(frame.select(expr(value).alias("value")), store, topic="clean", stagingPrefix="clean-")

    write_numbers(spark.range(50), "cast(id as string)")
    write_numbers(spark.range(0), "cast(id as string)")
    with pytest.raises(PySparkException, match=r"column value, row 1999 of partition 0: must be JSON"):
        write_numbers(spark.range(2000).coalesce(1), "if(id = 1999, 'no json', '1')")
    assert len(store.client.rows("clean")) == 50
    assert listed(store, "clean-") == []


def test_a_task_that_outlives_its_write_leaves_nothing(store: Store) -> None:
    """Spark does not wait for the other tasks of a job that has failed."""
    given = {"url": url_of(store.server), "stagingPrefix": "late-", "topic": "outlived"}
    rows = pa.record_batch({"value": ["1", "2"]})
    writer = BatchWriter(parse_write_options(given))
    assert writer._stage(writer._id, 0, iter([rows]), is_open=True).chunks
    assert len(listed(store, "late-")) == 1
    writer.abort([])
    with pytest.raises(ServerRefusal) as refused:
        writer._stage(writer._id, 1, iter([rows]), is_open=True)
    assert refused.value.status == 404
    assert listed(store, "late-") == listed(store, "outlived") == []


def listed(store: Store, prefix: str) -> list[str]:
    with ServerClient(url_of(store.server), "") as client:
        page = json.loads(client.ask("GET", f"topics?prefix={prefix}"))
    return [entry["topic"] for entry in page["topics"]]


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("'1' as value", {}, "topic: is missing; set the option topic, or add a column topic"),
        ("1 as value", {"topic": "t"}, "column value: must be string or binary, got int"),
        (
            "'1' as other, '1' as value",
            {"topic": "t"},
            "column other: unknown; must be one of",
        ),
        ("'1' as value, '2' as data", {"topic": "t"}, "column data: must not be combined with column value"),
        ("'1' as key", {"topic": "t"}, "column value: is missing; it must hold the JSON of each record"),
        ("'1' as value", {"topic": "a b"}, "topic: must match .*, got 'a b'"),
        ("'1' as value", {"topic": "t", "topics": "u"}, "topics: unknown option; must be one of url"),
        (
            "'1' as value",
            {"topic": "t", "recordsPerRequest": "0"},
            "recordsPerRequest: must be a whole number of at least",
        ),
        ("'1' as value", {"topic": "t", "mode": "overwrite"}, "mode: must be append"),
    ],
)
def test_invalid_writes_are_refused_with_the_reason(
    spark: SparkSession, store: Store, columns: str, options: dict[str, str], sentence: str
) -> None:
    mode = options.pop("mode", "append")
    with pytest.raises(PySparkException, match=sentence):
        write(spark.sql(f"select {columns}"), store, mode, **options)


def test_a_server_has_to_be_named(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="url: is missing; set it to the server to write to"):
        spark.sql("select '1' as value").write.format("topicsd").mode("append").option("topic", "t").save()


class Copy:
    """A stream from topics to one topic, whose values say where they are from."""

    def __init__(
        self, spark: SparkSession, folder: Path, server: Any, topics: str, path: str = "", **given: Any
    ) -> None:
        place = {"path": path} if path else {"url": url_of(server)}
        source = spark.readStream.format("topicsd").options(subscribe=topics, startingOffsets="earliest")
        rows = source.options(**place, **given).load()
        where = rows.select(expr("to_json(struct(topic, offset))").alias("value"), "key")
        self._writer = (
            where.writeStream.format("topicsd")
            .options(url=url_of(server), topic="sink", recordsPerRequest="200")
            .option("checkpointLocation", str(folder / "checkpoint"))
        )

    def start(self, **trigger: Any) -> Any:
        return self._writer.trigger(**trigger).start()

    def drain(self) -> None:
        self.start(availableNow=True).awaitTermination()


def copied(client: TopicClient, *topics: str) -> None:
    """Each record of the sources is in the sink once."""
    counts = Counter((row["data"]["topic"], row["data"]["offset"]) for row in client.rows("sink"))
    assert counts == Counter((topic, row["$seq"]) for topic in topics for row in client.rows(topic))


def test_a_stream_is_copied_once_over_replays(spark: SparkSession, tmp_path: Path) -> None:
    topics = tuple(name_on(shard, SHARDS, "from") for shard in range(SHARDS))
    with WholeServer(tmp_path, shards=SHARDS) as server:
        client = TopicClient(server.port)
        for topic in topics:
            client.fill(topic, 900)
        client.wait_until_durable(*topics)
        options = {"maxOffsetsPerTrigger": "600"}
        Copy(spark, tmp_path, server, ",".join(topics), **options).drain()
        copied(client, *topics)
        # As after a kill behind the last answer: Spark has not noted that the batch was done.
        commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
        for file in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
            file.unlink()
        client.fill(topics[0], 100)
        client.wait_until_durable(*topics)
        again = {"minPartitions": "7", **options}
        Copy(spark, tmp_path, server, ",".join(topics), str(tmp_path / "data"), **again).drain()
        copied(client, *topics)


def test_a_stream_outlives_its_server(spark: SparkSession, tmp_path: Path) -> None:
    """Workers are killed under it all the time."""
    topics = tuple(name_on(shard, SHARDS, "from") for shard in range(SHARDS))
    with WholeServer(tmp_path, shards=SHARDS) as server:
        client = TopicClient(server.port)
        for topic in topics:
            client.fill(topic, 4000)
        client.wait_until_durable(*topics)
        query = Copy(spark, tmp_path, server, ",".join(topics), maxOffsetsPerTrigger="1000").start(
            processingTime="0 seconds"
        )
        for number in range(4):
            time.sleep(2)
            worker = server.worker(number % SHARDS)
            if worker is not None:
                worker.signal(signal.SIGKILL)
                worker.wait()
                worker.close()
                server.wait_for_shard(number % SHARDS)
        query.processAllAvailable()
        query.stop()
        copied(client, *topics)


DRIVER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from spark.session import local_session
from tests.spark.test_sink import Copy

session = local_session("killed sink", memory="768m")
folder, port, topics = sys.argv[1:]
copy = Copy(session, Path(folder), SimpleNamespace(port=port), topics, maxOffsetsPerTrigger="5000")
copy.start(processingTime="0 seconds").awaitTermination()
"""


@pytest.mark.deep
def test_a_stream_that_is_killed_writes_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    """Its driver three times, with all its processes, and then all of the server."""
    topics = tuple(name_on(shard, SHARDS, "load") for shard in range(SHARDS))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with WholeServer(tmp_path, f"--port={port}", shards=SHARDS) as server:
        client = TopicClient(port)
        for topic in topics:
            client.fill(topic, 10)
        client.wait_until_durable(*topics)
        ends = threading.Event()
        writer = threading.Thread(target=write_until, args=(port, topics, ends))
        writer.start()
        try:
            for number in range(3):
                arguments = [str(tmp_path), str(port), ",".join(topics)]
                run_and_kill(DRIVER, arguments, tmp_path / "checkpoint", tmp_path / f"driver-{number}.log")
        finally:
            ends.set()
            writer.join()
        client.wait_until_durable(*topics)
        query = Copy(spark, tmp_path, server, ",".join(topics), maxOffsetsPerTrigger="50000").start(
            processingTime="0 seconds"
        )
        time.sleep(3)
        server.kill()
        server.start()
        query.processAllAvailable()
        query.stop()
        copied(client, *topics)
