"""One shard on the real disk without HTTP, and writers that measure the engine alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import msgspec

from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.disk_thread import start_threads
from shared.settings.settings import Settings
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir, shard_paths
from topicsd.engine.requests import AppendRequest, NewRecord
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import put_topic
from topicsd.engine.write.append import append
from topicsd.log.writer import Identity

INSTANCE = b"benchmark-------"
DATA = b'{"sku":"AEROPRESS-GO","qty":1,"total":3499,"warehouse":"rotterdam-4","carrier":"x"}'

Append = Callable[[str, AppendRequest, Callable[[Any], Any]], None]


def request_of(count: int, tag: str | None = None) -> AppendRequest:
    return AppendRequest([NewRecord(msgspec.Raw(DATA), tag) for _ in range(count)])


def open_shard(directory: str, settings: Settings | None = None, clock: Clock | None = None) -> Shard:
    fs = RealFs()
    if not os.path.exists(os.path.join(directory, "LAYOUT.json")):
        create_data_dir(fs, directory, 1, INSTANCE)
    loop = asyncio.get_running_loop()
    threads = start_threads(loop, 0)
    return Shard(
        fs,
        SystemClock() if clock is None else clock,
        loop,
        threads,
        shard_paths(directory, 0),
        Identity(INSTANCE, 0),
        settings or Settings(max_waiting_bytes=1 << 30),
        lambda error: print("log: failed:", error),
    )


async def closed_loop(
    append: Append, names: list[str], request: AppendRequest, writers: int, seconds: float
) -> float:
    """Return answered requests per second; each of the writers takes the topics in turn."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    topics = len(names)
    answered, running, stopping = 0, writers, False

    def stop() -> None:
        nonlocal stopping
        stopping = True

    def writer(at: int) -> Callable[[Any], None]:
        def on_answer(answer: Any) -> None:
            nonlocal answered, running, at
            if isinstance(answer, Refusal):
                if not done.done():
                    done.set_exception(RuntimeError(f"refused: {answer.message}"))
                return
            answered += 1
            if stopping:
                running -= 1
                if not running and not done.done():
                    done.set_result(None)
                return
            at += writers
            append(names[at % topics], request, on_answer)

        return on_answer

    loop.call_later(seconds, stop)
    started = time.perf_counter()
    for number in range(writers):
        append(names[number % topics], request, writer(number))
    await done
    return answered / (time.perf_counter() - started)


async def create_topics(shard: Shard, count: int, patch: TopicConfigPatch) -> list[str]:
    loop = asyncio.get_running_loop()
    names = [f"topic-{number}" for number in range(count)]
    created = [loop.create_future() for _ in names]
    for name, future in zip(names, created, strict=True):
        put_topic(shard.state, name, patch, future.set_result)
    answers = await asyncio.gather(*created)
    assert not any(isinstance(answer, Refusal) for answer in answers), answers[0]
    return names


async def fill(shard: Shard, name: str, records: int, batch: int, tag: str | None) -> None:
    """Write records; each request is a batch of its own in the log."""
    loop = asyncio.get_running_loop()
    same = request_of(batch)
    for first in range(0, records, batch):
        request = same
        if tag is not None:
            request = AppendRequest(
                [NewRecord(msgspec.Raw(DATA), tag % seq) for seq in range(first, first + batch)]
            )
        answered = loop.create_future()
        append(shard.state, name, request, answered.set_result)
        shard.log.commit()
        answer = await answered
        assert not isinstance(answer, Refusal), answer.message


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fresh(directory: str, name: str) -> str:
    path = os.path.join(directory, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


class ReportLine(msgspec.Struct):
    """One line of the report; `ratio` is to the bare log, or to the other number of topics."""

    name: str
    value: float
    unit: str
    ceiling: float | None = None
    ratio: float | None = None


def report(line: ReportLine) -> ReportLine:
    ceiling = "" if line.ceiling is None else f"   bare {line.ceiling:>12,.0f}"
    ratio = "" if line.ratio is None else f"   ratio {line.ratio:.2f}"
    print(f"{line.name:<48} {line.value:>12,.0f} {line.unit:<10}{ceiling}{ratio}", flush=True)
    return line
