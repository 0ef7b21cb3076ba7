"""Benchmarks of the log of one shard without HTTP, next to the bare log (`bare_log.py`).

Each line is a closed loop: each writer sends its next request when the previous one is answered. The two are
measured in turn, in several rounds, and the medians are compared: the machine is shared and noisy, so the
ratio counts.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial

import uvloop

from loadtest.engine import segment_bench
from loadtest.engine.bare_log import BareLog
from loadtest.engine.one_shard import (
    ReportLine,
    closed_loop,
    create_topics,
    fill,
    fresh,
    open_shard,
    report,
    request_of,
    resident_bytes,
)
from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfigPatch
from shared.settings.settings import Settings
from topicsd.engine.topic_admin import topic_state
from topicsd.engine.write.append import append
from topicsd.worker.worker import SWITCH_SECONDS


async def measure_writes(
    directory: str, records: int, writers: int, is_durable: bool, seconds: float
) -> tuple[float, float]:
    """Return records per second of the log and of the bare log, measured back to back."""
    request = request_of(records)
    bare = BareLog(fresh(directory, "bare"), is_durable)
    bare_rate = await closed_loop(bare.append, ["topic-0"], request, writers, seconds)
    bare.close()
    shard = open_shard(fresh(directory, "log"))
    names = await create_topics(shard, 1, TopicConfigPatch(durable=is_durable))
    await closed_loop(partial(append, shard.state), names, request, writers, min(0.1, seconds))
    rate = await closed_loop(partial(append, shard.state), names, request, writers, seconds)
    shard.close()
    return rate * records, bare_rate * records


async def measure_many_topics(directory: str, topics: int, seconds: float) -> float:
    """Return single writes per second, in turn over all topics."""
    shard = open_shard(fresh(directory, "log"), Settings(max_topics=0))
    names = await create_topics(shard, topics, TopicConfigPatch())
    # Write to each topic once before the measurement, which must not include first records.
    await closed_loop(partial(append, shard.state), names, request_of(1), 32, max(0.2, topics / 100_000))
    gc.collect()
    gc.freeze()
    rate = await closed_loop(partial(append, shard.state), names, request_of(1), 32, seconds)
    gc.unfreeze()
    shard.close()
    return rate


async def measure_memory(directory: str, records: int, tag: bool) -> float:
    """Return bytes of memory per record of the tail, by the growth of the process."""
    shard = open_shard(fresh(directory, "log"))
    await create_topics(shard, 1, TopicConfigPatch())
    gc.collect()
    before = resident_bytes()
    await fill(shard, "topic-0", records, 100, "order-%d" if tag else None)
    gc.collect()
    grown = resident_bytes() - before
    shard.close()
    return grown / records


async def measure_replay(directory: str, records: int, batch: int) -> tuple[float, float]:
    """Return records and MB per second of a start that replays the whole log."""
    path = fresh(directory, "log")
    shard = open_shard(path)
    await create_topics(shard, 1, TopicConfigPatch())
    await fill(shard, "topic-0", records, batch, None)
    size = shard.log.counters.bytes_written
    shard.close(checkpoint=False)
    started = time.perf_counter()
    shard = open_shard(path)
    elapsed = time.perf_counter() - started
    state = topic_state(shard.state, "topic-0")
    assert not isinstance(state, Refusal)
    assert state.head_seq >= records
    shard.close()
    return state.head_seq / elapsed, size / elapsed / 1e6


async def run_writes(directory: str, rounds: int, seconds: float) -> list[ReportLine]:
    lines = []
    cases = [(records, writers, False) for records in (1, 10, 100, 1000) for writers in (1, 32, 256)]
    cases += [(records, writers, True) for records in (1, 100) for writers in (1, 32, 256)]
    for records, writers, is_durable in cases:
        pairs = [
            await measure_writes(directory, records, writers, is_durable, seconds) for _ in range(rounds)
        ]
        rate = statistics.median(pair[0] for pair in pairs)
        ceiling = statistics.median(pair[1] for pair in pairs)
        ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
        name = f"append of {records}, {'fsync' if is_durable else 'disk'}, {writers} writers"
        lines.append(report(ReportLine(name, rate, "records/s", ceiling, ratio)))
    return lines


async def run_topics(directory: str, rounds: int, seconds: float) -> list[ReportLine]:
    few = [await measure_many_topics(directory, 10, seconds) for _ in range(rounds)]
    many = [await measure_many_topics(directory, 100_000, seconds) for _ in range(rounds)]
    cost = statistics.median(few) / statistics.median(many)
    return [
        report(ReportLine("append of 1, disk, 32 writers, 10 topics", statistics.median(few), "records/s")),
        report(
            ReportLine(
                "the same over 100,000 topics (ratio: cost)", statistics.median(many), "records/s", ratio=cost
            )
        ),
    ]


async def run_memory(directory: str, rounds: int, seconds: float) -> list[ReportLine]:
    return [
        report(
            ReportLine(
                "memory a record in the tail, no tag",
                await measure_memory(directory, 1_000_000, False),
                "bytes",
            )
        ),
        report(
            ReportLine(
                "memory a record in the tail, a tag of its own",
                await measure_memory(directory, 1_000_000, True),
                "bytes",
            )
        ),
    ]


async def run_replay(directory: str, rounds: int, seconds: float) -> list[ReportLine]:
    lines = []
    for batch, records in ((1, 200_000), (100, 1_000_000)):
        pairs = [await measure_replay(directory, records, batch) for _ in range(rounds)]
        rate, speed = (
            statistics.median(pair[0] for pair in pairs),
            statistics.median(pair[1] for pair in pairs),
        )
        lines.append(report(ReportLine(f"replay, batches of {batch}", rate, "records/s")))
        lines.append(report(ReportLine(f"replay, batches of {batch}", speed, "MB/s")))
    return lines


PARTS = {
    "writes": run_writes,
    "topics": run_topics,
    "memory": run_memory,
    "replay": run_replay,
    "sealed": segment_bench.run_sealed,
    "reads": segment_bench.run_reads,
    "delay": segment_bench.run_delay,
}


def run(parts: list[str], rounds: int, seconds: float, directory: str | None) -> list[ReportLine]:
    """Measure the parts, print their lines, and return them."""
    # As in a worker: otherwise the work of threads between two disk calls takes time from the event loop.
    sys.setswitchinterval(SWITCH_SECONDS)
    home = tempfile.mkdtemp(prefix="topicsd-bench-", dir=directory)

    async def measure() -> list[ReportLine]:
        lines: list[ReportLine] = []
        for part in parts:
            lines += await PARTS[part](home, rounds, seconds)
        return lines

    try:
        return uvloop.run(measure())
    finally:
        shutil.rmtree(home, ignore_errors=True)
