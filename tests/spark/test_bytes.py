"""Records of bytes in Spark: read by path and by URL, as a batch and as a stream, and written."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Store
from tests.spark.test_sink import url_of, write

BYTES = bytes(range(256))
ROWS = [
    (1, '{"n": 1.0}', None, None),
    (2, None, BYTES, "logo"),
    (3, None, b"", None),
    (4, "null", None, "json"),
    (5, None, b'{"n": 1.0}', None),
]


@pytest.fixture(scope="module")
def topic(store: Store) -> str:
    records: list[dict[str, Any]] = []
    for _, text, octets, tag in ROWS:
        record = {"data": None} if text == "null" else {"data_base64": b64encode(octets or b"").decode()}
        records.append({**record, **({"tag": tag} if tag else {})})
    # As it is sent: 1.0 stays 1.0.
    body = b'{"records":[{"data":{"n": 1.0}}]}'
    assert store.server.ask("POST", "/v0/topics/octets", body).status == 201
    store.client.append("octets", *records[1:])
    store.client.wait_until_durable("octets")
    return "octets"


def options_of(store: Store, place: str) -> dict[str, str]:
    return {"path": store.path} if place == "path" else {"url": url_of(store.server)}


def native(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = [(row.seq, row.data, row.data_bytes, row.tag) for row in frame.collect()]
    return sorted(
        (seq, data, octets if octets is None else bytes(octets), tag) for seq, data, octets, tag in rows
    )


@pytest.mark.parametrize("place", ["path", "url"])
def test_bytes_have_a_column_of_their_own_and_are_the_value(
    spark: SparkSession, store: Store, topic: str, place: str
) -> None:
    reader = spark.read.format("topicsd").options(**options_of(store, place), subscribe=topic)
    assert native(reader.option("columns", "native").load()) == ROWS
    values = sorted(reader.option("columns", "kafka").load().collect(), key=lambda row: int(row.offset))
    expected = [text.encode() if octets is None and text else octets for _, text, octets, _ in ROWS]
    assert [bytes(row.value) for row in values] == expected


@pytest.mark.parametrize("place", ["path", "url"])
def test_a_schema_may_choose_the_bytes_or_leave_them_out(
    spark: SparkSession, store: Store, topic: str, place: str
) -> None:
    reader = spark.read.format("topicsd").options(**options_of(store, place), subscribe=topic)
    only = reader.schema("seq bigint, data_bytes binary").load().collect()
    assert sorted(row.seq for row in only if row.data_bytes is not None) == [2, 3, 5]
    texts = reader.schema("seq bigint, data string").load().where("data is not null").collect()
    assert sorted((row.seq, row.data) for row in texts) == [(1, '{"n": 1.0}'), (4, "null")]


@pytest.mark.parametrize("place", ["path", "url"])
def test_a_stream_has_bytes(
    spark: SparkSession, store: Store, topic: str, place: str, tmp_path: Path
) -> None:
    given = {**options_of(store, place), "subscribe": topic, "columns": "native"}
    frame = spark.readStream.format("topicsd").options(**given, startingOffsets="earliest").load()
    name = f"octets_{place}"
    query = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path))
    started = query.start()
    try:
        started.processAllAvailable()
        assert native(spark.table(name)) == ROWS
    finally:
        started.stop()


def test_rows_with_bytes_are_written_as_records_of_bytes(
    spark: SparkSession, store: Store, topic: str
) -> None:
    options = {"url": url_of(store.server), "subscribe": topic, "columns": "native"}
    frame = spark.read.format("topicsd").options(**options).load()
    write(frame.coalesce(1).sortWithinPartitions("seq"), store, topic="octets-copied")
    fields = ("data", "data_base64", "$tag")
    rows = [[row.get(name) for name in fields] for row in store.client.rows(topic)]
    assert [[row.get(name) for name in fields] for row in store.client.rows("octets-copied")] == rows
    both = spark.createDataFrame([("1", bytearray(b"x"))], "data string, data_bytes binary")
    with pytest.raises(PySparkException, match=r"column data_bytes, row 0 of partition .: must be null"):
        write(both.coalesce(1), store, topic="octets-both")
    alone = spark.createDataFrame([(bytearray(BYTES),)], "data_bytes binary")
    write(alone, store, topic="octets-alone", txnAppId="octets", txnVersion="1")
    [row] = store.client.rows("octets-alone")
    assert row["data_base64"] == b64encode(BYTES).decode()
