"""Benchmarks of segments and checkpoints, without HTTP.

They measure memory, starts, reads of old records, deletes by tag, and the delay of the event loop that a
checkpoint causes under load.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from functools import partial
from random import Random

from loadtest.engine.one_shard import (
    ReportLine,
    closed_loop,
    create_topics,
    fill,
    fresh,
    open_shard,
    report,
    request_of,
)
from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.topic_config import TopicConfigPatch
from shared.settings.settings import Settings
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.read.read import read
from topicsd.engine.requests import DeleteAnswer, DeleteRequest, ReadAnswer, ReadRequest
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard
from topicsd.engine.write.append import append

RECORDS = 1_000_000
TICK_SECONDS = 0.001
# About 10,000 writes per second.
WRITES_A_TICK = 20
NAME = "topic-0"
SETTINGS = Settings(max_waiting_bytes=1 << 30, checkpoint_interval_ms=86_400_000)


async def checkpoint(shard: Shard) -> float:
    """Run a whole checkpoint; return its seconds."""
    done = asyncio.get_running_loop().create_future()
    started = time.perf_counter()
    shard.start_checkpoint(done.set_result)
    outcome = await done
    assert outcome is None, outcome
    return time.perf_counter() - started


async def read_all(shard: Shard, first: int, last: int, limit: int) -> float:
    """Return records per second of consecutive reads."""
    loop = asyncio.get_running_loop()
    options = ReaderOptions(limit=limit)
    started, cursor = time.perf_counter(), first
    while cursor < last:
        done: asyncio.Future[ReadAnswer | Refusal] = loop.create_future()
        read(shard.state, NAME, ReadRequest(cursor, options), done.set_result)
        answer = await done if not done.done() else done.result()
        assert isinstance(answer, ReadAnswer), answer
        cursor = answer.next_from_seq
    return (cursor - first) / (time.perf_counter() - started)


async def run_sealed(directory: str, rounds: int, seconds: float) -> list[ReportLine]:
    """Measure memory and starts."""
    path = fresh(directory, "log")
    shard = open_shard(path, SETTINGS)
    await create_topics(shard, 1, TopicConfigPatch())
    await fill(shard, NAME, RECORDS, 100, None)
    took = await checkpoint(shard)
    lines = [report(ReportLine("checkpoint of a million records", took * 1000, "ms"))]
    shard.close()
    started = time.perf_counter()
    shard = open_shard(path, SETTINGS)
    elapsed = time.perf_counter() - started
    assert shard.state.topics[NAME].live_count == RECORDS
    lines.append(report(ReportLine("start after a clean stop, a million sealed", elapsed * 1000, "ms")))
    shard.close()
    del shard
    # The growth of the process would mostly be memory that the allocator keeps after reading megabytes at a
    # start, not the few bytes for each of 100 segments, so the traced memory is measured.
    gc.collect()
    tracemalloc.start()
    shard = open_shard(path, SETTINGS)
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    lines.append(report(ReportLine("memory a sealed record, x 100", 100 * grown / RECORDS, "bytes")))
    await fill(shard, NAME, 200_000, 1, None)
    shard.close(checkpoint=False)
    started = time.perf_counter()
    shard = open_shard(path, SETTINGS)
    elapsed = time.perf_counter() - started
    shard.close()
    lines.append(report(ReportLine("start with one WAL file to replay besides", elapsed * 1000, "ms")))
    return lines


async def run_reads(directory: str, rounds: int, seconds: float) -> list[ReportLine]:
    """Measure reads from the tail and from segments, and deletes by tag."""
    shard = open_shard(fresh(directory, "log"), SETTINGS)
    await create_topics(shard, 1, TopicConfigPatch())
    await fill(shard, NAME, RECORDS, 100, "order-%d")
    lines = []
    window = 30_000
    await read_all(shard, RECORDS - window, RECORDS, 100)
    rate = max([await read_all(shard, RECORDS - window, RECORDS, 100) for _ in range(max(3, rounds))])
    lines.append(report(ReportLine("diff of 100 from the hot tail", rate, "records/s")))
    await checkpoint(shard)
    shard.state.pages = PageCache(SETTINGS.page_cache_bytes)
    rate = await read_all(shard, 0, 300_000, 100)
    lines.append(report(ReportLine("diff of 100 from sealed segments, first time", rate, "records/s")))
    rate = max([await read_all(shard, 0, window, 100) for _ in range(max(3, rounds))])
    lines.append(report(ReportLine("diff of 100 from sealed segments, again", rate, "records/s")))
    shard.state.pages = PageCache(SETTINGS.page_cache_bytes)
    rate = await read_all(shard, 300_000, 600_000, 1000)
    lines.append(report(ReportLine("diff of 1000 from sealed segments, first time", rate, "records/s")))
    lines.append(
        report(ReportLine("delete of one by tag, cold, in a million", await delete(shard, 1, 1), "ms"))
    )
    await delete(shard, 50, 2)
    lines.append(report(ReportLine("delete of ten by tag in a million", await delete(shard, 10, 3), "ms")))
    shard.close()
    return lines


async def delete(shard: Shard, count: int, seed: int) -> float:
    """Run `count` deletes of one record each, one after the other; return total milliseconds."""
    loop = asyncio.get_running_loop()
    rng = Random(seed)
    started = time.perf_counter()
    for _ in range(count):
        done: asyncio.Future[DeleteAnswer | Refusal] = loop.create_future()
        request = DeleteRequest(tag=f"order-{rng.randrange(RECORDS)}")
        delete_records(shard.state, NAME, request, done.set_result)
        answer = await done
        assert not isinstance(answer, Refusal)
        assert answer.deleted <= 1
    return (time.perf_counter() - started) * 1000


async def run_delay(directory: str, rounds: int, seconds: float) -> list[ReportLine]:
    """Measure the delay of the event loop under writes, with and without a 64 MiB checkpoint.

    The writers write at a fixed rate, not at full speed: otherwise the log would grow faster than a
    checkpoint can follow, and the work of the writers in one turn would itself delay the event loop.
    """
    lines = []
    for has_checkpoint in (False, True):
        shard = open_shard(fresh(directory, "log"), SETTINGS)
        names = await create_topics(shard, 100, TopicConfigPatch())
        while shard.log.counters.bytes_written < 64 << 20:
            await closed_loop(partial(append, shard.state), names, request_of(10), 32, 0.1)
        delays: list[float] = []
        writing = asyncio.ensure_future(write_steadily(shard, names, delays))
        if has_checkpoint:
            lines.append(report(ReportLine("the checkpoint took", await checkpoint(shard) * 1000, "ms")))
        else:
            await asyncio.sleep(max(5.0, seconds))
        writing.cancel()
        condition = "during a checkpoint of 64 MiB" if has_checkpoint else "without a checkpoint"
        for share in (0.5, 0.99, 0.999):
            late = sorted(delays)[int(len(delays) * share)]
            lines.append(report(ReportLine(f"loop delay p{share * 100:g} {condition}", late * 1e6, "us")))
        shard.close()
    return lines


async def write_steadily(shard: Shard, names: list[str], delays: list[float]) -> None:
    """Write a few records at each tick, and record by how much the tick was late.

    A tick is up to 1 ms late even on an idle event loop, because of the resolution of its timers.
    """
    request = request_of(1)
    at = 0
    while True:
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        delays.append(max(0.0, time.perf_counter() - due))
        for _ in range(WRITES_A_TICK):
            at += 1
            append(shard.state, names[at % len(names)], request, _check_accepted)


def _check_accepted(answer: object) -> None:
    assert not isinstance(answer, Refusal), answer.message
