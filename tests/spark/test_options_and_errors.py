"""Each option of a read, and each sentence that refuses one, as a query of a real Spark meets them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import CAPPED, OTHER, PLAIN, Store
from tests.spark.test_drops_under_readers import EVERYTHING, filled, let_go
from topicsd.log.frame import HEADER_BYTES

FAR = 4_000_000_000_000
OFFSETS = "offset bigint"


def load(spark: SparkSession, path: object, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("topicsd").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(path))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def drain(stream: DataFrame, kind: str, folder: Path) -> None:
    writer = stream.writeStream.format(kind).option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


REFUSED = [
    ({}, "topics: set exactly one of subscribe, topics, subscribePattern, assign; got none"),
    ({"subscribe": PLAIN, "topics": PLAIN}, "topics: set exactly one of subscribe, topics, subscribePattern"),
    ({"subscribe": " , "}, "subscribe: must name at least one topic"),
    ({"subscribePattern": "("}, "subscribePattern: must be a regular expression"),
    ({"assign": "[]"}, r"assign: must be JSON such as"),
    ({"assign": f'{{"{PLAIN}":[1]}}'}, rf'assign: topic "{PLAIN}" must have shard 0, got \[1\]'),
    ({"subscribe": PLAIN, "ofsets": "1"}, "ofsets: unknown option; must be one of path,"),
    ({"subscribe": PLAIN, "columns": "all"}, "columns: must be one of kafka, native, got 'all'"),
    ({"subscribe": PLAIN, "includeHeaders": "yes"}, "includeHeaders: must be one of false, true, got 'yes'"),
    (
        {"subscribe": PLAIN, "columns": "native", "includeHeaders": "true"},
        "includeHeaders: must not be set with columns=native",
    ),
    (
        {"subscribe": PLAIN, "startingOffsets": "latest"},
        "startingOffsets: must not be latest in a batch read",
    ),
    ({"subscribe": PLAIN, "startingOffsets": f'{{"{PLAIN}":-1}}'}, "startingOffsets: must not be latest"),
    ({"subscribe": PLAIN, "startingOffsets": f'{{"{PLAIN}":-3}}'}, "startingOffsets: .* must be a seq"),
    ({"subscribe": PLAIN, "startingOffsets": "soon"}, "startingOffsets: must be JSON such as"),
    (
        {"subscribe": PLAIN, "startingOffsets": f'{{"{PLAIN}":{{"0":1,"1":1}}}}'},
        f'startingOffsets: "{PLAIN}" must have one shard, such as .*, got 2',
    ),
    (
        {"subscribe": PLAIN, "startingOffsets": f'{{"{OTHER}":1}}'},
        "startingOffsets: must name exactly the topics that are read",
    ),
    (
        {"subscribe": PLAIN, "endingOffsets": "earliest"},
        "endingOffsets: must be latest or seqs as JSON, got earliest",
    ),
    (
        {"subscribe": PLAIN, "endingOffsets": f'{{"{PLAIN}":999999}}'},
        "endingOffsets: must be at most .*, got 999999",
    ),
    (
        {"subscribe": PLAIN, "startingTimestamp": "-5"},
        "startingTimestamp: must be a whole number of at least",
    ),
    (
        {"subscribe": PLAIN, "endingTimestamp": "today"},
        "endingTimestamp: must be a whole number of at least",
    ),
    (
        {"subscribe": PLAIN, "startingOffsetsByTimestamp": f'{{"{PLAIN}":-1}}'},
        "startingOffsetsByTimestamp: must be at least 0 ms",
    ),
    (
        {"subscribe": PLAIN, "startingTimestamp": str(FAR)},
        f'startingTimestamp: topic "{PLAIN}" has no record at or after {FAR}; set .*=latest to begin',
    ),
    (
        {"subscribe": PLAIN, "startingOffsetsByTimestampStrategy": "first"},
        "startingOffsetsByTimestampStrategy: must be one of error, latest, got 'first'",
    ),
    ({"subscribe": PLAIN, "failOnDataLoss": "no"}, "failOnDataLoss: must be one of false, true, got 'no'"),
    (
        {"subscribe": PLAIN, "maxOffsetsPerTrigger": "5"},
        "maxOffsetsPerTrigger: must be set only for a stream",
    ),
    ({"subscribe": PLAIN, "maxBytesPerTrigger": "5"}, "maxBytesPerTrigger: must be set only for a stream"),
    (
        {"subscribe": PLAIN, "minPartitions": "0"},
        "minPartitions: must be a whole number of at least 1, got '0'",
    ),
    (
        {"subscribe": PLAIN, "maxRecordsPerPartition": "many"},
        "maxRecordsPerPartition: must be a whole number of at least",
    ),
    ({"subscribe": PLAIN, "mode": "LENIENT"}, "mode: must be one of FAILFAST, PERMISSIVE, got 'LENIENT'"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_a_wrong_option_is_refused_by_name(
    spark: SparkSession, store: Store, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        load(spark, store.path, **options).count()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: must be set only for a batch read"),
        ({"endingTimestamp": "5"}, "endingTimestamp: must be set only for a batch read"),
        (
            {"maxOffsetsPerTrigger": "0"},
            "maxOffsetsPerTrigger: must be a whole number of at least 1, got '0'",
        ),
        ({"maxBytesPerTrigger": "1MB"}, "maxBytesPerTrigger: must be a whole number of at least"),
        ({"subscribe": "nowhere"}, 'topic "nowhere" does not exist in'),
        ({"subscribe": "passing"}, 'topic "passing" is ephemeral: it has no files'),
    ],
)
def test_a_stream_refuses_what_is_no_option_of_it(
    spark: SparkSession, store: Store, tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    reader = spark.readStream.format("topicsd").options(**{"subscribe": PLAIN, **options})
    with pytest.raises(PySparkException, match=sentence):
        drain(reader.load(store.path), "noop", tmp_path)


def test_what_is_no_data_directory_is_refused(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="is not a data directory: it has no LAYOUT"):
        load(spark, tmp_path, subscribe=PLAIN).count()
    with pytest.raises(PySparkException, match="path"):
        spark.read.format("topicsd").option("subscribe", PLAIN).load().count()


def test_each_way_to_name_topics_selects_the_same(spark: SparkSession, store: Store) -> None:
    read_offsets = offsets(load(spark, store.path, OFFSETS, subscribe=PLAIN))
    assert read_offsets == [row["$seq"] for row in store.client.rows(PLAIN)]
    for way in (
        {"topics": f" {PLAIN} ,"},
        {"SUBSCRIBE": PLAIN},
        {"subscribePattern": f"{PLAIN[:-1]}."},
        {"assign": f'{{"{PLAIN}":[0]}}'},
    ):
        assert offsets(load(spark, store.path, OFFSETS, **way)) == read_offsets
    assert load(spark, store.path, OFFSETS, subscribePattern="nothing-of-it").count() == 0


def test_words_and_numbers_of_offsets_mean_what_kafkas_do(spark: SparkSession, store: Store) -> None:
    whole = offsets(load(spark, store.path, OFFSETS, subscribe=PLAIN))
    for bounds in (
        {"startingOffsets": "earliest", "endingOffsets": "latest"},
        {"startingOffsets": f'{{"{PLAIN}":-2}}', "endingOffsets": f'{{"{PLAIN}":{{"0":-1}}}}'},
        {"startingOffsets": " Earliest "},
        {"startingOffsets": f'{{"{PLAIN}":0}}'},
    ):
        assert offsets(load(spark, store.path, OFFSETS, subscribe=PLAIN, **bounds)) == whole


def test_a_start_behind_every_record_is_empty_where_that_is_wanted(spark: SparkSession, store: Store) -> None:
    for late in ({"startingTimestamp": FAR}, {"startingOffsetsByTimestamp": f'{{"{PLAIN}":{FAR}}}'}):
        strategy = {"startingOffsetsByTimestampStrategy": "latest"}
        assert load(spark, store.path, subscribe=PLAIN, **late, **strategy).count() == 0
    assert load(spark, store.path, subscribe=PLAIN, endingTimestamp=1).count() == 0


def test_a_stream_begins_at_the_given_position(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    rows = store.client.rows(PLAIN)
    stamp, seqs = rows[-1]["$ts"], [row["$seq"] for row in rows]
    young = [row["$seq"] for row in rows if row["$ts"] >= stamp]
    for number, (options, expected) in enumerate(
        [
            ({}, []),
            ({"startingOffsets": f'{{"{PLAIN}":-1}}'}, []),
            ({"startingOffsets": f'{{"{PLAIN}":{seqs[-10]}}}'}, seqs[-10:]),
            ({"startingTimestamp": str(stamp)}, young),
        ]
    ):
        folder = tmp_path / str(number)
        reader = spark.readStream.format("topicsd").schema(OFFSETS).options(subscribe=PLAIN, **options)
        drain(reader.options(minPartitions="3").load(store.path), "parquet", folder)
        read_offsets = offsets(spark.read.schema(OFFSETS).parquet(str(folder / "rows")))
        assert read_offsets == expected, options


def test_a_checkpoint_of_another_version_is_refused(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    stream = spark.readStream.format("topicsd").option("subscribe", OTHER).load(store.path)
    drain(stream, "noop", tmp_path)
    (offset,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    *head, place = offset.read_text().splitlines()
    stored = json.loads(place)
    assert (place, stored["version"]) == (json.dumps(stored, sort_keys=True, separators=(", ", ": ")), 1)
    offset.write_text("\n".join([*head, json.dumps({**stored, "version": 2})]))
    # What Spark keeps beside it of what it wrote itself.
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    with pytest.raises(StreamingQueryException, match="the version of its offsets must be 1, got 2"):
        drain(stream, "noop", tmp_path)


def test_a_directory_without_its_cold_part_names_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    """And `coldDir` says where it is by now."""
    cold = tmp_path / "cold"
    shard = filled(tmp_path, cold_dir=str(cold), hot_retain_segments=1)
    let_go(shard)
    shard.shard.close()
    moved = cold.rename(tmp_path / "elsewhere")
    assert len(list(moved.rglob("*.data"))) == 4
    with pytest.raises(PySparkException, match=r"the object store does not answer: .*set storeUrl to"):
        load(spark, tmp_path / "data", subscribe="orders").count()
    frame = load(spark, tmp_path / "data", subscribe="orders", coldDir=str(moved))
    assert offsets(frame) == EVERYTHING


def test_damage_fails_the_query_or_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path).shard.close()
    segment = next((tmp_path / "data").rglob("seg-0000000000000201.data"))
    data = bytearray(segment.read_bytes())
    at = data.index(b'{"n":230}')
    data[at + 5] ^= 1
    segment.write_bytes(data)
    start = at - HEADER_BYTES - len("gone")
    message = (
        rf'{re.escape(str(segment))}, offset {start}, seq 230 of topic "orders" is damaged: the checksum'
    )
    with pytest.raises(PySparkException, match=message):
        load(spark, tmp_path / "data", subscribe="orders", mode="failfast").collect()
    rows = load(spark, tmp_path / "data", subscribe="orders", mode="PERMISSIVE")
    assert offsets(rows) == [seq for seq in EVERYTHING if seq != 230]


def test_a_copy_that_is_older_than_a_start_is_loss(spark: SparkSession, store: Store) -> None:
    head = store.client.rows(CAPPED)[-1]["$seq"]
    start = {"startingOffsets": f'{{"{CAPPED}":{head + 100}}}'}
    assert load(spark, store.path, subscribe=CAPPED, failOnDataLoss="false", **start).count() == 0
    with pytest.raises(
        PySparkException, match=rf"seqs {head + 1} to {head + 99} are gone \(never written here"
    ):
        load(spark, store.path, subscribe=CAPPED, **start).count()
