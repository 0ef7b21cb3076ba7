"""Backups on a real Spark, read in the store, beside what the server answered when they were created."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import run_here
from tests.harness.server.everything import Everything
from tests.harness.server.whole_server import WholeServer
from tests.spark.conftest import (
    AGING,
    CAPPED,
    CAPPED_BYTES,
    OTHER,
    PLAIN,
    SHARDS,
    SMALL_FILES,
    fill,
)
from tests.spark.test_batch_reads import as_answered
from tests.stack.servers import CREDENTIALS, s3_server

QUEUE = "queue"
STAYING = (PLAIN, OTHER, CAPPED, CAPPED_BYTES, QUEUE)


class Backups:
    """Two backups of a server, and what it answered at each of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ids: list[str] = []
        self.rows: list[dict[str, list[dict[str, Any]]]] = []

    def create(self, data: Path, client: TopicClient) -> None:
        made = run_here("backup", "create", data, "--to", self.url, "--json")
        assert made.code == 0, made.err
        self.ids.append(made.json["id"])
        self.rows.append({topic: client.rows(topic) for topic in (*STAYING, AGING)})


@pytest.fixture(scope="module", params=["folder", "s3"])
def backups(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backups]:
    folder = tmp_path_factory.mktemp("backups")
    if request.param == "folder":
        (folder / "backups").mkdir()
        yield filled(folder, f"file://{folder}/backups")
        return
    with s3_server(folder) as s3, pytest.MonkeyPatch.context() as environment:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        yield filled(folder, s3.url("backups"))


def filled(folder: Path, url: str) -> Backups:
    backups = Backups(url)
    with WholeServer(folder, *SMALL_FILES, shards=SHARDS) as server:
        client = TopicClient(server.port)
        client.put(QUEUE, type="queue")
        client.fill(QUEUE, 1000)
        client.call(QUEUE, "ack", node="worker", seqs=client.claim(QUEUE, 40))
        fill(client)
        client.put(AGING, ttl_ms=600_000)
        client.fill(AGING, 10)
        backups.create(folder / "data", client)
        # What follows is in the second backup only, most of it in the log.
        client.call(PLAIN, "delete", match=["tag", "Eq", "green"])
        client.call(OTHER, "delete", before_seq=2000)
        client.call(QUEUE, "ack", node="worker", seqs=client.claim(QUEUE, 40))
        client.put(AGING, ttl_ms=600_001)
        for topic in STAYING:
            client.fill(topic, 70)
        backups.create(folder / "data", client)
        client.put(AGING, ttl_ms=1)
        for topic in STAYING:
            client.fill(topic, 10)
            client.call(topic, "delete", before_seq=2500)
    return backups


def read(spark: SparkSession, backups: Backups, names: str, **options: str) -> DataFrame:
    return spark.read.format("topicsd").option("subscribe", names).options(**options).load(backups.url)


def by_topic(rows: list[Row]) -> dict[str, list[dict[str, Any]]]:
    answered: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row.topic, row.offset)):
        answered.setdefault(row.topic, []).append(as_answered(row))
    return answered


def test_each_backup_has_the_rows_of_its_point(spark: SparkSession, backups: Backups) -> None:
    for backup_id, expected in zip(backups.ids, backups.rows, strict=True):
        rows = read(spark, backups, ",".join(expected), includeHeaders="true", backup=backup_id).collect()
        assert by_topic(rows) == expected
        assert {row.partition for row in rows if row.topic in (PLAIN, OTHER)} == {0, 1}


def test_the_newest_backup_is_read_without_an_id(spark: SparkSession, backups: Backups) -> None:
    rows = spark.read.format("topicsd").option("subscribePattern", ".*").load(backups.url)
    counts = {row.topic: row["count"] for row in rows.groupBy("topic").count().collect()}
    assert counts == {topic: len(rows) for topic, rows in backups.rows[1].items()}


def test_records_that_expired_after_the_point_are_still_there(spark: SparkSession, backups: Backups) -> None:
    assert read(spark, backups, AGING).count() == len(backups.rows[1][AGING]) > 10


def test_counts_bounds_and_small_partitions_have_the_same_records(
    spark: SparkSession, backups: Backups
) -> None:
    reader = spark.read.format("topicsd").option("subscribe", ",".join(STAYING))
    counted = reader.schema("topic string, records bigint").load(backups.url)
    sums = {row.topic: row[1] for row in counted.groupBy("topic").sum("records").collect()}
    assert sums == {topic: len(backups.rows[1][topic]) for topic in STAYING}
    bounds = {"startingOffsets": json.dumps({PLAIN: 2000}), "endingOffsets": json.dumps({PLAIN: 2700})}
    frame = read(spark, backups, PLAIN, maxRecordsPerPartition="100", **bounds)
    seqs = sorted(row.offset for row in frame.collect())
    assert seqs == [row["$seq"] for row in backups.rows[1][PLAIN] if 2000 <= row["$seq"] < 2700]
    assert frame.rdd.getNumPartitions() >= 7
    middle = backups.rows[1][PLAIN][500]["$ts"]
    newer = read(spark, backups, PLAIN, startingTimestamp=str(middle)).count()
    assert newer == sum(row["$ts"] >= middle for row in backups.rows[1][PLAIN])


def test_what_is_not_there_is_named(spark: SparkSession, backups: Backups) -> None:
    with pytest.raises(PySparkException, match="backup: 2020-5f is not in "):
        read(spark, backups, PLAIN, backup="2020-5f").collect()
    with pytest.raises(
        PySparkException, match=rf'topic "plai" does not exist in .*/backups/{backups.ids[1]}'
    ):
        read(spark, backups, "plai").collect()
    with pytest.raises(
        PySparkException, match=r"path: .* has no backup; to read exported topics, set catalog"
    ):
        spark.read.format("topicsd").option("subscribe", PLAIN).load(f"{empty_store(backups)}").collect()


def empty_store(backups: Backups) -> str:
    scheme, _, rest = backups.url.partition("://")
    path, _, query = rest.partition("?")
    return f"{scheme}://{path}/backups?{query}" if query else f"{scheme}://{path}/blobs"


def test_a_missing_object_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """A log without its end would else be a log that ended earlier."""
    with WholeServer(tmp_path, shards=1) as server:
        client = TopicClient(server.port)
        client.fill(PLAIN, 100)
        (tmp_path / "store").mkdir()
        backups = Backups(f"file://{tmp_path}/store")
        made = run_here("backup", "create", tmp_path / "data", "--to", backups.url, "--json")
        assert made.code == 0, made.err
    assert read(spark, backups, PLAIN).count() == 100
    for blob in sorted((tmp_path / "store" / "blobs").rglob("*-*")):
        content = blob.read_bytes()
        blob.unlink()
        with pytest.raises(PySparkException, match=rf"the object blobs/.*{blob.name} is missing"):
            read(spark, backups, PLAIN).collect()
        blob.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
        with pytest.raises(PySparkException, match=r"cannot read shard 00 of .*run `topicsd backup verify`"):
            read(spark, backups, PLAIN).collect()
        blob.write_bytes(content)


def test_the_directory_of_everything_has_the_same_rows_in_a_backup(
    spark: SparkSession, everything: Everything, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    made = run_here(
        "backup", "create", everything.data, "--to", tmp_path / "store", "--cold-dir", everything.cold
    )
    assert made.code == 0, made.err
    states = everything.said.states
    topics = sorted(name for name, state in states.items() if state["config"]["durability"] != "ephemeral")
    options = {"subscribe": ",".join(topics), "failOnDataLoss": "false"}
    directory = {"coldDir": str(everything.cold), **options}
    expected = spark.read.format("topicsd").options(**directory).load(str(everything.data)).collect()
    rows = spark.read.format("topicsd").options(**options).load(f"file://{tmp_path}/store").collect()
    assert len(expected) > 1000
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
