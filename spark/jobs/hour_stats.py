"""Statistics of topics by hour: records, bytes, rate, tags, and how many seqs are gone.

Spark aggregates the records by topic, hour and tag, and those groups by topic and hour; what is left is a few
numbers per hour, which are completed here.

A seq is gone when it can no longer be read: it was deleted, has expired, or was evicted. Its time is lost
with it, so it is counted in the hour of the next live record; seqs after the last live record are counted in
the topic's sum only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.functions import coalesce, col, count, date_trunc, lit, max_by, octet_length
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from spark.jobs.job_source import JobSource, TopicRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_SCHEMA = "topic string, offset bigint, timestamp timestamp, key binary, value binary"
HOUR_S = 3600


class Hour(NamedTuple):
    topic: str
    begins_s: int
    """Seconds since 1970."""
    records: int
    bytes: int
    """The size of the values."""
    tags: int
    top_tag: str | None
    first_seq: int
    last_seq: int
    first_s: float
    last_s: float
    gone: int = 0
    rate: float = 0.0
    """Records per second, over the part of the hour in which the topic existed and was observed."""


class TopicSum(NamedTuple):
    topic: str
    records: int
    bytes: int
    first_s: float
    last_s: float
    head: int
    """The last seq that was assigned, or the last one before the requested end."""
    gone: int


def hours_of(
    session: SparkSession, source: JobSource, ranges: Mapping[str, TopicRange], starts: Mapping[str, int]
) -> list[Hour]:
    """Return the hours of the topics; `starts` are the seqs from which gone seqs count."""
    if not any(one.start < one.end for one in ranges.values()):
        return []
    rows = by_hour(source.frame(session, ranges, READ_SCHEMA)).collect()
    return with_rates(map(_hour, rows), starts)


def by_hour(rows: DataFrame) -> DataFrame:
    by_tag = (
        rows.withColumn("hour", date_trunc("hour", col("timestamp")))
        .groupBy("topic", "hour", "key")
        .agg(
            count(lit(1)).alias("records"),
            total(octet_length("value").cast("bigint")).alias("bytes"),
            least("offset").alias("first_seq"),
            greatest("offset").alias("last_seq"),
            least("timestamp").alias("first"),
            greatest("timestamp").alias("last"),
        )
    )
    # Records without a tag win only if the hour has no tag.
    weight = coalesce(col("key").isNotNull().cast("int") * col("records"), lit(0))
    return by_tag.groupBy("topic", col("hour").cast("bigint").alias("begins_s")).agg(
        total("records").alias("records"),
        total("bytes").alias("bytes"),
        count("key").alias("tags"),
        max_by(col("key").cast("string"), weight).alias("top"),
        least("first_seq").alias("first_seq"),
        greatest("last_seq").alias("last_seq"),
        least("first").cast("double").alias("first_s"),
        greatest("last").cast("double").alias("last_s"),
    )


def _hour(row: Any) -> Hour:
    return Hour(
        row.topic,
        row.begins_s,
        row.records,
        row.bytes,
        row.tags,
        row.top,
        row.first_seq,
        row.last_seq,
        row.first_s,
        row.last_s,
    )


def with_rates(hours: Iterable[Hour], starts: Mapping[str, int]) -> list[Hour]:
    """Return hours sorted by topic and time, with the numbers that depend on the hour before.

    >>> hour = Hour("a", 0, 5, 50, 1, "x", 3, 8, 600.0, 3000.0)
    >>> later = hour._replace(begins_s=3600, records=2, first_seq=12, last_seq=13, last_s=3700.0)
    >>> [(one.gone, round(one.rate, 4)) for one in with_rates([later, hour], {"a": 1})]
    [(3, 0.0017), (3, 0.02)]
    """
    results = []
    ordered = sorted(hours)
    now = max((one.last_s for one in ordered), default=0.0)
    previous: Hour | None = None
    for one in ordered:
        is_first = previous is None or previous.topic != one.topic
        last_seq = starts[one.topic] - 1 if is_first or previous is None else previous.last_seq
        begins = max(one.begins_s, one.first_s) if is_first else one.begins_s
        seconds = max(1.0, min(now, one.begins_s + HOUR_S) - begins)
        results.append(one._replace(gone=one.last_seq - last_seq - one.records, rate=one.records / seconds))
        previous = one
    return results


def sums_of(
    hours: Iterable[Hour], ranges: Mapping[str, TopicRange], starts: Mapping[str, int]
) -> list[TopicSum]:
    by_topic: dict[str, list[Hour]] = {name: [] for name in sorted(ranges)}
    for one in hours:
        by_topic[one.topic].append(one)
    sums = []
    for name, own in by_topic.items():
        topic_range, records = ranges[name], sum(one.records for one in own)
        size = sum(one.bytes for one in own)
        first, last = (own[0].first_s, own[-1].last_s) if own else (0.0, 0.0)
        gone = topic_range.end - starts[name] - records
        sums.append(TopicSum(name, records, size, first, last, topic_range.end - 1, gone))
    return sums
