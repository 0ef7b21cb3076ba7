"""Speed of Spark over a shared topic in a store, next to a local topic with the same records.

The shared topic is read as slices of blobs and as compacted objects, all in folders of one disk. Each
source is read once to warm up, then they take turns; the shortest time counts. All columns are read, and the
rows are discarded. `--plan` measures instead how long a query over so many extents is planned::

    python -m loadtest.shared_spark_bench --records 1000000
    python -m loadtest.shared_spark_bench --plan 100000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from loadtest.engine.one_shard import create_topics, open_shard
from loadtest.engine.segment_bench import checkpoint
from loadtest.spark_bench import DATA, drain
from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.clock import SystemClock
from shared.runtime.retries import Retries
from shared.settings.settings import Settings
from spark.session import local_session
from spark.source.batch_reader import BatchQueryReader
from spark.source.columns import KAFKA, KNOWN_COLUMNS, arrow_schema
from spark.source.read_options import parse_options
from topicsd.broker.frames_v1 import FRAMES_V1, NewFrame, encode_frames
from topicsd.broker.lls1 import SliceBody, encode_blob
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import Compactor
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, Part, SharedCatalog, Slice
from topicsd.disk.fs import RealFs
from topicsd.engine.requests import AppendRequest, NewRecord
from topicsd.engine.write.append import append
from topicsd.store.metered import MeteredStore
from topicsd.store.open_store import open_store

TOPIC: Final = "orders"
INCARNATION: Final = 7
SLICE_BYTES: Final = 1 << 20
BATCH: Final = 500
SIZES: Final = {"100 B": DATA, "1 KiB": DATA[:-1] + b" " * 924 + b"}"}


class BenchStore:
    """A store and a catalog in a folder."""

    def __init__(self, folder: str) -> None:
        os.mkdir(folder)
        self.options = {"path": f"file://{folder}", "catalog": "sqlite:"}
        self._age_ms = 0
        self.store: MeteredStore = open_store(self.options["path"], RealFs())
        self.catalog: SharedCatalog = open_shared_catalog("sqlite:", folder, retries(), self._now_ms)
        self.catalog.create(TOPIC, INCARNATION, b"{}")

    def _now_ms(self) -> int:
        return SystemClock().now_ms() + self._age_ms

    def write(self, data: bytes, records: int) -> None:
        """Commit blobs, one slice each."""
        in_slice = SLICE_BYTES // len(data)
        for first in range(0, records, in_slice):
            count = min(in_slice, records - first)
            body = encode_frames([NewFrame(data)] * count, INCARNATION, 1, self._now_ms())
            blob = encode_blob(self._now_ms(), FRAMES_V1, [SliceBody(TOPIC, count, [body])])
            key = f"llog/wal-shared/{first:032x}"
            self.store.create(key, blob.parts, key)
            parts = (Part(key, count, len(body)),)
            self.catalog.commit(key, FRAMES_V1, [Slice(TOPIC, INCARNATION, blob.offsets[0], parts)])

    def compact(self) -> None:
        self._age_ms = REPEATED_MS
        compactor = Compactor("bench", self.store, self.catalog, retries, CompactorLimits())
        outcome = "merged"
        while outcome == "merged":
            steps = compactor.compact(TOPIC)
            result: Any = None
            try:
                while True:
                    result = steps.send(result)()
            except StopIteration as end:
                outcome = end.value.outcome


def retries() -> Retries:
    return Retries(time.monotonic, time.sleep, 10.0)


async def make_local(folder: str, data: bytes, records: int) -> None:
    settings = Settings(max_waiting_bytes=1 << 30, background_bytes_per_second=16 << 30)
    shard = open_shard(folder, settings)
    (name,) = await create_topics(shard, 1, TopicConfigPatch())
    request = AppendRequest([NewRecord(msgspec.Raw(data), None) for _ in range(BATCH)])
    for _ in range(-(-records // BATCH)):
        answered = asyncio.get_running_loop().create_future()
        append(shard.state, name, request, answered.set_result)
        shard.log.commit()
        answer = await answered
        assert not isinstance(answer, Refusal), answer.message
    await checkpoint(shard)
    shard.close()


def sources(
    session: SparkSession, folder: str, data: bytes, records: int
) -> dict[str, Callable[[], DataFrame]]:
    local, blobs, compacted = (os.path.join(folder, name) for name in ("local", "blobs", "compacted"))
    asyncio.run(make_local(local, data, records))
    slices = BenchStore(blobs)
    slices.write(data, records)
    segments = BenchStore(compacted)
    segments.write(data, records)
    segments.compact()

    def frame(options: dict[str, str]) -> DataFrame:
        return session.read.format("topicsd").option("subscribePattern", ".*").options(**options).load()

    return {
        "local topic": lambda: frame({"path": local}),
        "shared topic, slices of blobs": lambda: frame(slices.options),
        "shared topic, compacted": lambda: frame(segments.options),
    }


def measure_reads(records: int, rounds: int, directory: str | None) -> None:
    session = local_session("topicsd bench", memory="2g")
    session.sparkContext.setLogLevel("ERROR")
    for size, data in SIZES.items():
        count = records * len(DATA) // len(data) * 2 if len(data) > len(DATA) else records
        with tempfile.TemporaryDirectory(prefix="topicsd-shared-", dir=directory) as folder:
            ways = sources(session, folder, data, count)
            best = dict.fromkeys(ways, float("inf"))
            for turn in range(rounds + 1):
                for name, frame in ways.items():
                    started = time.perf_counter()
                    drain(frame())
                    if turn:
                        best[name] = min(best[name], time.perf_counter() - started)
            for name, seconds in best.items():
                rate, mb = count / seconds, count * len(data) / seconds / 1e6
                print(f"{size}, {name}: {count:,} records in {seconds:.2f} s, {rate:,.0f}/s, {mb:.0f} MB/s")
    session.stop()


def measure_plan(extents: int, directory: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="topicsd-shared-", dir=directory) as folder:
        target = BenchStore(os.path.join(folder, "store"))
        for first in range(0, extents, 100):
            slices = [
                Slice(TOPIC, INCARNATION, 80_000 * at, (Part(f"{first}/{at}", 100, 80_000),))
                for at in range(100)
            ]
            target.catalog.commit(f"llog/wal-shared/{first:032x}", FRAMES_V1, slices)
        options = parse_options({"topics": TOPIC, **target.options}, is_stream=False)
        started = time.perf_counter()
        partitions = BatchQueryReader(options, arrow_schema(list(KAFKA), KNOWN_COLUMNS)).partitions()
        took = time.perf_counter() - started
        print(f"{extents:,} extents planned as {len(partitions)} partitions in {took:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=1_000_000, help="records of 100 bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plan", type=int, default=0, help="extents to plan")
    parser.add_argument("--dir")
    given = parser.parse_args()
    if given.plan:
        measure_plan(given.plan, given.dir)
    else:
        measure_reads(given.records, given.rounds, given.dir)


if __name__ == "__main__":
    main()
