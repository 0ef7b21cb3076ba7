"""What Spark's sink takes: rows of 100 bytes, written as a batch to a server of this machine.

Rows come out of Spark's own `range`, which costs next to nothing. The first write warms up; the median of the
others counts, for one topic and for eight. Beside it stands the bare way: the same bodies, appended by one
client that waits for each answer. So what the exactness of the sink costs can be seen.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from loadtest.bench.subjects import Subjects
from loadtest.engine.one_shard import Line, report
from spark.session import local_session
from spark.view.server_client import ServerClient

DATA = '{"sku":"AEROPRESS-GO","qty":1,"total":3499,"warehouse":"rotterdam-4","carrier":"a name","seat":"2B"}'
TASKS, SHARDS, REQUEST_RECORDS = 2, 2, 1000


def rows(session: SparkSession, records: int, topics: int) -> DataFrame:
    topic = f"concat('sunk-', id % {topics})"
    return session.range(0, records, 1, TASKS).selectExpr(f"'{DATA}' as value", f"{topic} as topic")


def bare(url: str, records: int) -> None:
    body = b'{"records":[%b]}' % b",".join([b'{"data":%b}' % DATA.encode()] * REQUEST_RECORDS)
    with ServerClient(url, "") as client:
        for _ in range(records // REQUEST_RECORDS):
            client.ask("POST", "topics/bare?return_seqs=false", body)


def run(records: int, rounds: int, directory: str | None) -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="topicsd-sink-", dir=directory) as home:
        session = local_session("topicsd sink bench")
        session.sparkContext.setLogLevel("ERROR")
        try:
            with Subjects(home).server(SHARDS) as server:
                url = f"http://127.0.0.1:{server.port}"
                bodies = {topics: rows(session, records, topics) for topics in (1, 8)}

                def sunk(frame: DataFrame) -> None:
                    frame.write.format("topicsd").mode("append").option("url", url).save()

                ways: dict[str, Callable[[], None]] = {
                    "the sink, one topic": lambda: sunk(bodies[1]),
                    "the sink, eight topics": lambda: sunk(bodies[8]),
                    "bare appends, one client": lambda: bare(url, records),
                }
                return [report(_line(way, write, records, rounds)) for way, write in ways.items()]
        finally:
            session.stop()


def _line(way: str, write: Callable[[], None], records: int, rounds: int) -> Line:
    taken = []
    for turn in range(rounds + 1):
        started = time.perf_counter()
        write()
        if turn:
            taken.append(time.perf_counter() - started)
    return Line(way, records / statistics.median(taken), "rows/s")
