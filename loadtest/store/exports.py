"""Export of segments, beside a bare program that puts the same bytes.

Both run here and take turns, segment by segment. The CPU counts both; the server does this work on one
thread of the worker, at most at `TOPICS_BACKGROUND_BYTES_PER_SECOND`, which is off here.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Callable
from functools import partial

import uvloop

from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench
from loadtest.engine.one_shard import create_topics, fill, fresh, open_shard
from loadtest.engine.segment_bench import SETTINGS, checkpoint
from loadtest.store.nodes import StorePlace
from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.retries import Retries
from topicsd.disk.fs import RealFs
from topicsd.engine.ownership.exporter import unexported
from topicsd.engine.upkeep.tiering import export_segment, no_throttle
from topicsd.segment.entry import OBJECT_SUFFIXES
from topicsd.store.open_store import open_store

RECORDS = 200_000
BATCH = 100
MEGABYTE = 1e6


def exports(s3_url: str = "") -> Callable[[Bench], Result]:
    def measure(bench: Bench) -> Result:
        return uvloop.run(measured(bench, StorePlace(bench, s3_url).url))

    return measure


async def measured(bench: Bench, url: str) -> Result:
    shard = open_shard(fresh(bench.home, "log"), SETTINGS)
    (name,) = await create_topics(shard, 1, TopicConfigPatch())
    await fill(shard, name, RECORDS, BATCH, "order-%d")
    await checkpoint(shard)
    store, local = open_store(url, RealFs()), shard.stores.hot
    retries = Retries(time.monotonic, lambda seconds: None, 0.0)
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    total = 0

    def put(files: list[bytes]) -> None:
        for data in files:
            store.create(f"bare/{secrets.token_hex(8)}", [data], secrets.token_hex(8))

    runs = list(unexported(shard.state.topics[name]))
    for number, run in enumerate(runs):
        keys = [run.name.key(suffix) for suffix in OBJECT_SUFFIXES]
        files = [local.read_range(key, 0, local.size(key)) for key in keys if local.exists(key)]
        total += sum(map(len, files))

        export = partial(export_segment, store, local, run.name, run.entry, 1, no_throttle, retries)
        pairs: list[tuple[list[tuple[float, float]], Callable[[], object]]] = [
            (ours, export),
            (bare, partial(put, files)),
        ]
        for times, work in pairs if number % 2 else reversed(pairs):
            times.append(await asyncio.to_thread(cost, work))
    shard.close()
    store.close()
    seconds, cpu = (sum(one[at] for one in ours) for at in (0, 1))
    bare_seconds, bare_cpu = (sum(one[at] for one in bare) for at in (0, 1))
    ratio = statistics.median(theirs[0] / mine[0] for mine, theirs in zip(ours, bare, strict=True))
    note = (
        f"{total / MEGABYTE:.0f} MB in {len(runs)} segments; CPU {cpu / total * 1e9:.1f} ms a MB, bare "
        f"{bare_cpu / total * 1e9:.1f}; {cpu / seconds:.2f} of a core while exporting"
    )
    return Result(
        line="",
        title="",
        unit="MB/s",
        value=total / seconds / MEGABYTE,
        ceiling=total / bare_seconds / MEGABYTE,
        ratio=ratio,
        note=note,
    )


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a chunk of work, and its CPU seconds in all threads of the process."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used
