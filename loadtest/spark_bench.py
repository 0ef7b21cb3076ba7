"""Speed of Spark over a data directory, next to Parquet and JSON lines of the same rows.

Each query runs once to warm up, and then the sources take turns; the shortest time counts, since other load
on the machine only adds to it. Except for counts, the rows are discarded (Spark's `noop`). The directory is
newly made: 100 topics in one shard, written in turn at an even rate, so that each topic spans the whole time.
A topic without records shows the cost of a query before it reads anything. The session has the optimizer rule
of `spark/optimizer/narrow_reads.py`; a schema that names the column, or asks for the number, shows the result
without that rule.

`ratio` is the speed relative to JSON lines; it is also given for Parquet, so that both can be compared.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable

import msgspec
from pyspark.sql import DataFrame, SparkSession

from loadtest.engine.one_shard import ReportLine, create_topics, fresh, open_shard, report
from loadtest.engine.segment_bench import checkpoint
from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.clock import SystemClock
from shared.settings.settings import Settings
from spark.optimizer.narrow_reads import narrow_reads
from spark.session import local_session
from topicsd.engine.requests import AppendRequest, NewRecord
from topicsd.engine.topic_admin import put_topic
from topicsd.engine.write.append import append

TOPICS = 100
BATCH = 500
DATA = b'{"sku":"AEROPRESS-GO","qty":1,"total":3499,"warehouse":"rotterdam-4","carrier":"a name","seat":"2B"}'
assert len(DATA) == 100
ONE, NOTHING = "topic-7", "nothing"
BATCH_MS = 100


class EvenClock(SystemClock):
    """Wall time that advances only on request."""

    def __init__(self) -> None:
        self._now_ms = super().now_ms()

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self) -> None:
        self._now_ms += BATCH_MS


async def make_store(directory: str, records: int) -> None:
    settings = Settings(max_waiting_bytes=1 << 30, background_bytes_per_second=16 << 30)
    clock = EvenClock()
    shard = open_shard(directory, settings, clock)
    loop = asyncio.get_running_loop()
    names = await create_topics(shard, TOPICS, TopicConfigPatch())
    created = loop.create_future()
    put_topic(shard.state, NOTHING, TopicConfigPatch(), created.set_result)
    shard.log.commit()
    await created
    request = AppendRequest([NewRecord(msgspec.Raw(DATA), None) for _ in range(BATCH)])
    for number in range(-(-records // BATCH)):
        clock.advance()
        answered = loop.create_future()
        append(shard.state, names[number % TOPICS], request, answered.set_result)
        shard.log.commit()
        answer = await answered
        assert not isinstance(answer, Refusal), answer.message
    await checkpoint(shard)
    shard.close()


class RowSources:
    """The same rows in three formats."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        self._session = session
        self._folder = folder
        self._path = os.path.join(folder, "store")
        everything = self.topicsd()
        self._schema = everything.schema
        everything.write.parquet(self._copy("parquet"))
        everything.withColumn("value", everything.value.cast("string")).write.json(self._copy("json"))
        self.stamps = everything.selectExpr("min(timestamp)", "max(timestamp)").first()

    def _copy(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def topicsd(self, schema: str = "", topics: str = "", **options: str) -> DataFrame:
        way = {"subscribe": topics} if topics else {"subscribePattern": ".*"}
        reader = self._session.read.format("topicsd").options(**way, **options)
        return (reader.schema(schema) if schema else reader).load(self._path)

    def parquet(self) -> DataFrame:
        return self._session.read.parquet(self._copy("parquet"))

    def json(self) -> DataFrame:
        schema = ", ".join(
            f"{field.name} {'string' if field.name == 'value' else field.dataType.simpleString()}"
            for field in self._schema
        )
        return self._session.read.schema(schema).json(self._copy("json"))


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def queries(sources: RowSources) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the queries, by question and by source."""
    first, last = sources.stamps
    begin = first + (last - first) / 2
    span = f"timestamp >= timestamp '{begin}' and timestamp < timestamp '{begin + (last - first) / 100}'"
    of_one = f"topic = '{ONE}'"
    parquet, lines, topicsd = sources.parquet, sources.json, sources.topicsd
    return {
        "all columns": {
            "topicsd": lambda: drain(topicsd()),
            "parquet": lambda: drain(parquet()),
            "json": lambda: drain(lines()),
        },
        "count()": {
            "topicsd": lambda: topicsd().count(),
            "topicsd, schema of the count": lambda: topicsd("records bigint").groupBy().sum().first(),
            "parquet": lambda: parquet().count(),
            "json": lambda: lines().count(),
        },
        'select("offset")': {
            "topicsd": lambda: drain(topicsd().select("offset")),
            "topicsd, schema of one column": lambda: drain(topicsd("offset bigint")),
            "parquet": lambda: drain(parquet().select("offset")),
            "json": lambda: drain(lines().select("offset")),
        },
        "one topic of a hundred": {
            "topicsd": lambda: drain(topicsd(topics=ONE)),
            "parquet": lambda: drain(parquet().where(of_one)),
            "json": lambda: drain(lines().where(of_one)),
        },
        "no record at all": {"topicsd": lambda: drain(topicsd(topics=NOTHING))},
        "1 % of the time": {
            "topicsd": lambda: drain(topicsd().where(span)),
            "parquet": lambda: drain(parquet().where(span)),
            "json": lambda: drain(lines().where(span)),
        },
    }


def run(records: int, rounds: int, directory: str | None) -> list[ReportLine]:
    """Measure all queries in records per second, of all records, also for selective queries."""
    folder = tempfile.mkdtemp(prefix="topicsd-spark-", dir=directory)
    session = None
    try:
        asyncio.run(make_store(fresh(folder, "store"), records))
        session = local_session("topicsd bench", memory="2g")
        session.sparkContext.setLogLevel("ERROR")
        narrow_reads(session)
        lines = []
        for query_name, ways in queries(RowSources(session, folder)).items():
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(rounds + 1):
                for way, query in ways.items():
                    started = time.perf_counter()
                    query()
                    if turn:
                        taken[way].append(time.perf_counter() - started)
            seconds = {way: min(times) for way, times in taken.items()}
            for way, took in seconds.items():
                name = f"{query_name}: {way}, {took:.2f} s"
                lines.append(
                    report(
                        ReportLine(name, records / took, "records/s", ratio=seconds.get("json", took) / took)
                    )
                )
                if query_name == "all columns":
                    lines.append(
                        report(ReportLine(f"{query_name}: {way}", records * len(DATA) / took / 1e6, "MB/s"))
                    )
        return lines
    finally:
        if session is not None:
            session.stop()
        shutil.rmtree(folder, ignore_errors=True)
