"""The same queries by `path` and by `url` over one store: same rows, same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark.errors import DamagedRecord, DataLoss
from spark.source.columns import all_columns, arrow_schema
from spark.source.read_options import parse_options
from spark.task.read_pages import RangePartition, SeqRange, read_ranges
from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.whole_server import WholeServer
from tests.spark.conftest import CAPPED, CAPPED_BYTES, OTHER, PLAIN, SMALL_FILES, Store
from tests.spark.test_batch_reads import as_answered
from tests.spark.test_damage_and_drops import seal_all
from tests.spark.test_stream_reads import Sink, expected_offsets

STAYING = f"{PLAIN},{OTHER},{CAPPED},{CAPPED_BYTES}"


def url_of(store: Store) -> str:
    return f"http://127.0.0.1:{store.server.port}"


def both(spark: SparkSession, store: Store, schema: str = "", **options: Any) -> list[DataFrame]:
    """The query by path and by url."""
    frames = []
    for place in ({"path": store.path}, {"url": url_of(store)}):
        reader = spark.read.format("topicsd").options(**{"subscribe": STAYING, **options}, **place)
        frames.append((reader.schema(schema) if schema else reader).load())
    return frames


@pytest.mark.parametrize(
    "options", [{"includeHeaders": "true"}, {"columns": "native"}, {"maxRecordsPerPartition": "170"}]
)
def test_all_columns_are_the_same(spark: SparkSession, store: Store, options: dict[str, str]) -> None:
    by_path, by_url = both(spark, store, **options)
    assert by_path.schema == by_url.schema
    order = "seq" if "columns" in options else "offset"
    # Rows of all four topics have one order by all of their columns.
    keys = [order, *[name for name in by_path.columns if name not in (order, "headers")]]
    rows = by_path.orderBy(*keys).collect()
    assert rows == by_url.orderBy(*keys).collect()
    assert len(rows) == sum(len(store.client.rows(topic)) for topic in STAYING.split(","))


def test_rows_by_url_are_those_of_diff(spark: SparkSession, store: Store) -> None:
    _, by_url = both(spark, store, subscribe=PLAIN, includeHeaders="true")
    assert [as_answered(row) for row in by_url.collect()] == store.client.rows(PLAIN)


def test_the_same_options_bound_what_is_read(spark: SparkSession, store: Store) -> None:
    stamps = [one["$ts"] for one in store.client.rows(PLAIN)]
    low, high = stamps[300], stamps[-5]
    for options in (
        {"startingOffsets": f'{{"{PLAIN}":{{"0":800}}}}', "endingOffsets": f'{{"{PLAIN}":805}}'},
        {"startingTimestamp": low, "endingTimestamp": high},
        {"startingOffsetsByTimestamp": f'{{"{PLAIN}":{high}}}'},
        {"minPartitions": "9"},
        {"assign": f'{{"{PLAIN}":[0]}}', "subscribe": ""},
        {"subscribePattern": f"{PLAIN}|capped", "subscribe": ""},
    ):
        given = {"subscribe": PLAIN, **options}
        given = {name: text for name, text in given.items() if text}
        results = []
        for place in ({"path": store.path}, {"url": url_of(store)}):
            frame = spark.read.format("topicsd").options(**given, **place).schema("topic string, offset long")
            results.append(sorted(frame.load().collect()))
        assert results[0] == results[1], options
        assert results[0], options
    assert both(spark, store, subscribe=PLAIN, minPartitions="9")[1].rdd.getNumPartitions() >= 9


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nowhere"}, 'topic "nowhere" does not exist in'),
        (
            {"subscribe": PLAIN, "assign": None, "endingOffsets": f'{{"{PLAIN}":9999999}}'},
            "endingOffsets: must be at most",
        ),
        ({"subscribe": PLAIN, "startingTimestamp": "99999999999999"}, "has no record at or after"),
        (
            {"subscribe": CAPPED, "startingOffsets": f'{{"{CAPPED}":1}}'},
            r'topic "capped": read from seq 1, earliest is \d+: seqs 1 to \d+ are gone \(cap\)',
        ),
    ],
)
def test_errors_by_url_are_those_by_path(
    spark: SparkSession, store: Store, options: dict[str, str], sentence: str
) -> None:
    given = {name: text for name, text in options.items() if text}
    for frame in both(spark, store, **given):
        with pytest.raises(PySparkException, match=sentence):
            frame.collect()
    if CAPPED in options["subscribe"]:
        by_path, by_url = both(spark, store, failOnDataLoss="false", **given)
        assert by_path.count() == by_url.count() == 700


def test_what_has_expired_is_gone_in_both(spark: SparkSession, store: Store) -> None:
    store.server.wait_for(lambda: not store.client.rows("aging"), "all of the topic expires")
    for frame in both(spark, store, subscribe="aging"):
        assert frame.count() == 0
    for frame in both(spark, store, subscribe="aging", startingOffsets='{"aging":1}'):
        with pytest.raises(PySparkException, match=r"seqs 1 to 2650 are gone \(ttl\)"):
            frame.collect()


def test_an_ephemeral_topic_is_read_from_the_server_only(spark: SparkSession, store: Store) -> None:
    by_path, by_url = both(spark, store, subscribe="passing")
    assert [bytes(row.value) for row in by_url.collect()] == [b"1"]
    with pytest.raises(PySparkException, match="is ephemeral: it has no files"):
        by_path.collect()


def test_a_missing_server_is_an_error(spark: SparkSession, store: Store) -> None:
    reader = spark.read.format("topicsd").option("subscribe", PLAIN)
    with pytest.raises(PySparkException, match="path, url: set exactly one"):
        reader.options(path=store.path, url=url_of(store)).load().collect()
    with pytest.raises(PySparkException, match=r"url: must be an http or https URL .*, got 'nowhere'"):
        spark.read.format("topicsd").options(subscribe=PLAIN, url="nowhere").load().collect()


def test_a_stream_by_path_resumes_by_url(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    topics = ("either-a", "either-b")
    for topic, count in zip(topics, (300, 150), strict=True):
        store.client.fill(topic, count)
    store.client.wait_until_durable(*topics)
    names = ",".join(topics)
    Sink(spark, tmp_path, store.path, names).drain()
    for topic in topics:
        store.client.fill(topic, 400)
    store.client.wait_until_durable(*topics)
    places = {"url": url_of(store), "progressCursor": "by-spark"}
    query = Sink(spark, tmp_path, None, names, maxOffsetsPerTrigger="300", **places).drain()
    sink = Sink(spark, tmp_path, None, names, **places)
    assert sink.rows() == expected_offsets(store.client, *topics)
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert batches == [300, 300, 200]
    # Spark says one batch late how far it is.
    assert 300 < store.client.ask("GET", "topics/either-a/cursors/by-spark")["from_seq"] <= 700
    store.client.delete("either-a")
    store.client.fill("either-a", 900)
    store.client.wait_until_durable("either-a")
    with pytest.raises(StreamingQueryException, match=r'"either-a": read from seq 701.*\(recreated\)'):
        sink.drain()


def test_a_stream_by_path_may_publish_how_far_it_is(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.client.fill("published", 100)
    store.client.wait_until_durable("published")
    options = {"url": url_of(store), "progressCursor": "by-path", "maxOffsetsPerTrigger": "30"}
    Sink(spark, tmp_path, store.path, "published", **options).drain()
    assert store.client.ask("GET", "topics/published/cursors/by-path")["from_seq"] >= 60


class Ranges:
    """A task that reads from a server, without Spark around it."""

    def __init__(self, server: WholeServer, topic: str) -> None:
        self._topic = topic
        self._epoch = TopicClient(server.port).state(topic)["epoch"]
        self._given = {"url": f"http://127.0.0.1:{server.port}", "subscribe": topic}
        columns = all_columns(is_native=False, include_headers=False)
        self._schema = arrow_schema(["offset"], columns)

    def seqs(self, first: int, last: int, is_front: bool = False, **options: str) -> list[int]:
        parsed = parse_options({**self._given, **options}, is_stream=False)
        part = RangePartition([SeqRange(self._topic, self._epoch, 0, first, last, is_front)])
        batches = read_ranges(parsed, self._schema, part)
        return [seq for batch in batches for seq in batch["offset"].to_pylist()]


def test_what_goes_after_the_plan_is_loss_but_in_front_of_it_all(tmp_path: Path) -> None:
    with WholeServer(tmp_path, *SMALL_FILES, shards=1) as server:
        client = TopicClient(server.port)
        client.put("short", cap_records=100)
        client.fill("short", 300)
        ranges = Ranges(server, "short")
        assert ranges.seqs(150, 300, is_front=True) == list(range(201, 301))
        assert ranges.seqs(150, 300, failOnDataLoss="false") == list(range(201, 301))
        with pytest.raises(DataLoss, match=r"read from seq 150, earliest is 201: seqs 150 to 200 are gone"):
            ranges.seqs(150, 300)
        client.delete("short")
        client.fill("short", 300)
        # What was deleted while a job reads is wanted gone.
        assert ranges.seqs(150, 300) == []


def test_damage_fails_the_task_or_is_skipped(tmp_path: Path) -> None:
    with WholeServer(tmp_path, *SMALL_FILES, shards=1) as server:
        segments = seal_all(server, TopicClient(server.port), tmp_path)
        data = bytearray(segments[1].read_bytes())
        data[data.index(b'"n": 700,') + 5] ^= 1
        segments[1].write_bytes(data)
        server.start()
        ranges = Ranges(server, "orders")
        with pytest.raises(DamagedRecord, match=r"corrupt_segment: seq 701 of .*; set mode=PERMISSIVE"):
            ranges.seqs(1, 2000)
        assert ranges.seqs(1, 2000, mode="PERMISSIVE") == [seq for seq in range(1, 2001) if seq != 701]


def test_a_key_is_sent_where_the_server_wants_one(spark: SparkSession, tmp_path: Path) -> None:
    keys = {"TOPICS_API_KEYS": "reader:r,writer:rw+d+a"}
    with WholeServer(tmp_path, shards=1, environ=keys) as server:
        url = f"http://127.0.0.1:{server.port}"
        frame = spark.createDataFrame([('{"n":1}',), ("2",)], "value string")
        frame.coalesce(1).write.format("topicsd").mode("append").options(
            url=url, topic="kept", apiKey="writer"
        ).save()
        reader = spark.read.format("topicsd").options(url=url, subscribe="kept")
        assert [bytes(row.value) for row in reader.option("apiKey", "reader").load().collect()] == [
            b'{"n":1}',
            b"2",
        ]
        with pytest.raises(PySparkException, match="401 unauthorized"):
            reader.option("apiKey", "unknown").load().collect()
