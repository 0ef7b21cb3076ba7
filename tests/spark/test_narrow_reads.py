"""What a query does not need is not asked of the source, and its rows are the same."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from spark.errors import SourceError
from spark.optimizer.narrow_reads import narrow_reads
from tests.spark.conftest import AGING, CAPPED, OTHER, PLAIN, TOPICS, Store
from tests.spark.test_drops_under_readers import RECORDS, filled

BOTH = f"{PLAIN},{OTHER}"


@pytest.fixture(scope="module")
def narrow(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    narrow_reads(session)
    return session


def load(session: SparkSession, store: Store, topics: str = BOTH, **options: Any) -> DataFrame:
    place = {} if "url" in options else {"path": store.path}
    return session.read.format("topicsd").options(subscribe=topics, **options, **place).load()


def columns_read(frame: DataFrame) -> list[str]:
    """By each scan of the plan."""
    plan = cast(Any, frame)._jdf.queryExecution().optimizedPlan().toString()
    scans = re.findall(r"RelationV2\[(.*?)\] topicsd", plan)
    return [re.sub(r"#\d+L?", "", scan) for scan in scans]


def partitions(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def test_only_the_columns_that_are_used_are_read(narrow: SparkSession, store: Store) -> None:
    frame = load(narrow, store)
    frame.createOrReplaceTempView("orders")
    everything = "key, value, topic, partition, offset, timestamp, timestampType"
    for query, columns in (
        ("select count(*) from orders", ["records"]),
        ("select count(*) from orders where offset > 5", ["offset"]),
        ("select count(*), max(topic) from orders", ["topic"]),
        ("select count(offset) from orders", ["offset"]),
        ("select 1 from orders", ["offset"]),
        ("select offset from orders", ["offset"]),
        ("select topic, count(*) from orders group by topic", ["topic, records"]),
        ("select topic, count(*) from orders where rand() < 0.5 group by topic", ["topic"]),
        ("select max(timestamp) from orders where length(value) > 9", ["value, timestamp"]),
        ("select * from orders where offset > 5", [everything]),
        ("select * from orders", [everything]),
        (
            "select a.key, b.offset from orders a join orders b on a.offset = b.partition",
            ["key, offset", "partition, offset"],
        ),
        (
            "select partition from orders where offset = (select max(offset) from orders)",
            ["offset", "partition, offset"],
        ),
    ):
        assert columns_read(narrow.sql(query)) == columns, query
    native = load(narrow, store, columns="native")
    assert columns_read(native.selectExpr("count(1)")) == ["records"]
    assert columns_read(native.selectExpr("1")) == ["seq"]
    assert columns_read(native.selectExpr("upper(tag)")) == ["tag"]


QUERIES = (
    f"offset > 900 and offset <= 1200 and topic = '{PLAIN}'",
    f"topic in ('{PLAIN}', 'nowhere')",
    "key = X'677265656E'",
    "key is null and offset < 30",
    "startswith(cast(key as string), 're')",
    "timestamp >= timestamp_seconds({middle})",
    "timestamp < timestamp_seconds({middle}) and value is not null and offset % 7 = 0",
    "timestamp = timestamp_seconds({first})",
    "timestamp > timestamp_seconds({first}) - interval 1 hour and offset > 2000",
    "offset = 1000 or offset = 1001",
    "not (offset > 20)",
    "offset in (7, 2001, 2002)",
    "offset <=> 2005 and rand() < 2",
)


@pytest.mark.parametrize("place", ["path", "url"])
def test_rows_are_those_of_a_session_that_reads_everything(
    spark: SparkSession, narrow: SparkSession, store: Store, place: str
) -> None:
    stamps = [one["$ts"] / 1000 for one in store.client.rows(PLAIN)]
    conditions = [one.format(first=stamps[0], middle=stamps[len(stamps) // 2]) for one in QUERIES]
    marks = [f"({condition}) as mark_{at}" for at, condition in enumerate(conditions)]
    rows = load(spark, store).selectExpr("topic", "offset", "value", *marks).collect()
    given = {"url": f"http://127.0.0.1:{store.server.port}"} if place == "url" else {}
    frame = load(narrow, store, **given)
    for at, condition in enumerate(conditions):
        expected = sorted((row.topic, row.offset, row.value) for row in rows if row[f"mark_{at}"])
        assert expected, condition
        actual = sorted(map(tuple, frame.where(condition).select("topic", "offset", "value").collect()))
        assert actual == expected, condition


COUNTS = (
    "select count(*), 2 * count(1) + 1 from orders",
    "select topic, count(*) as n from orders group by topic",
    f"select partition, count(*) from orders where topic in ('{PLAIN}', 'nowhere') group by partition",
    "select count(*) from orders where topic = 'nowhere'",
    "select topic, count(*) from orders where topic = 'nowhere' group by topic",
    "select distinct topic, partition from orders",
    "select count(distinct topic) from orders",
    "select count(*), count(distinct topic) from orders where partition < 5",
    "select topic from orders group by topic having count(*) > 2600",
    f"select count(*) filter (where topic = '{OTHER}') from orders",
    f"select (select count(*) from orders) + count(*) from orders where topic = '{PLAIN}'",
)


@pytest.mark.parametrize("place", ["path", "url"])
def test_records_that_are_counted_are_those_that_are_read(
    spark: SparkSession, narrow: SparkSession, store: Store, place: str
) -> None:
    # What ages is another number each time.
    topics = BOTH if place == "url" else ",".join(name for name in TOPICS if name != AGING)
    given = {"url": f"http://127.0.0.1:{store.server.port}"} if place == "url" else {}
    load(spark, store, topics).localCheckpoint().createOrReplaceTempView("orders")
    load(narrow, store, topics, **given).createOrReplaceTempView("orders")
    for query in COUNTS:
        expected, actual = (sorted(map(tuple, session.sql(query).collect())) for session in (spark, narrow))
        assert actual == expected, query


def test_a_schema_may_ask_for_the_number_of_records(
    spark: SparkSession, narrow: SparkSession, store: Store
) -> None:
    counts = {name: len(store.client.rows(name)) for name in (PLAIN, OTHER)}
    for session in (spark, narrow):
        reader = session.read.format("topicsd").option("subscribe", BOTH)
        rows = reader.schema("topic string, records bigint").load(store.path)
        assert dict(map(tuple, rows.groupBy("topic").sum("records").collect())) == counts
        assert reader.schema("records bigint").load(store.path).where("records > 0").count() == 2
        assert rows.select("topic").count() == 2, "a row is no record, also where no column says so"
        with pytest.raises(PySparkException, match="column records: must be combined only with"):
            reader.schema("offset bigint, records bigint").load(store.path).collect()


def test_filters_leave_segments_out(spark: SparkSession, narrow: SparkSession, store: Store) -> None:
    blue = "key = X'626C7565'"
    everything = load(spark, store, PLAIN, maxRecordsPerPartition="500").where(blue)
    some = load(narrow, store, PLAIN, maxRecordsPerPartition="500").where(blue)
    assert some.count() == everything.count() == 1
    assert partitions(some) < partitions(everything)
    none = load(narrow, store, BOTH, maxRecordsPerPartition="500").where("topic = 'nowhere'")
    assert (none.count(), partitions(none)) == (0, 1)


def test_each_query_of_a_frame_has_its_own_filters(narrow: SparkSession, store: Store) -> None:
    """Spark keeps with a table what was pushed to it last."""
    frame = load(narrow, store, OTHER)
    count = len(store.client.rows(OTHER))
    assert frame.where("offset <= 10").count() == 10
    assert frame.count() == len(frame.collect()) == count
    low, high = frame.where("offset <= 5"), frame.where("offset > 2000 and offset <= 2003")
    rows = low.union(high).select("offset").collect()
    assert sorted(row.offset for row in rows) == [1, 2, 3, 4, 5, 2001, 2002, 2003]
    joined = low.alias("a").join(broadcast(frame.where("offset <= 3")).alias("b"), "offset")
    assert joined.count() == 3
    kept = frame.where("offset <= 7").cache()
    assert (kept.count(), frame.where("offset <= 7 and offset > 5").count(), frame.count()) == (7, 2, count)
    kept.unpersist()


def test_what_came_since_a_frame_was_made_is_read(narrow: SparkSession, tmp_path: Path) -> None:
    shard = filled(tmp_path)
    frame = narrow.read.format("topicsd").option("subscribe", "orders").load(str(tmp_path / "data"))
    assert frame.count() == RECORDS
    shard.append("orders", 1)
    shard.pass_time(1000)
    shard.checkpoint()
    assert frame.count() == RECORDS + 1
    shard.shard.close()


def test_errors_are_still_those_of_the_source(narrow: SparkSession, store: Store) -> None:
    with pytest.raises(PySparkException, match='topic "nowhere" does not exist in'):
        load(narrow, store, "nowhere").where("offset > 5").count()
    with pytest.raises(PySparkException, match=r"read from seq 1, .* are gone \(cap\)"):
        load(narrow, store, CAPPED, startingOffsets=f'{{"{CAPPED}":1}}').count()


def test_it_is_in_a_session_once(narrow: SparkSession, spark: SparkSession) -> None:
    def rules(session: SparkSession) -> int:
        return int(cast(Any, session)._jsparkSession.experimental().extraOptimizations().size())

    narrow_reads(narrow)
    assert (rules(narrow), rules(spark)) == (1, 0)


def test_a_session_without_a_java_of_its_own_is_refused() -> None:
    with pytest.raises(
        SourceError, match=r"narrow_reads: cannot install the rule in this session: .*_jsparkSession"
    ):
        narrow_reads(cast(Any, SimpleNamespace()))
