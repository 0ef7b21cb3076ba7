"""Benchmark lines of fan-out: delivery time, delivery rate, and the memory of a session.

Each watcher has its own session and connection. The ceiling frames and writes the record as the ceiling of
writes does and sends the same events to the same number of sockets, and one client measures both
(`watching.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from loadtest.bench.result import Result
from loadtest.bench.rounds import WARMUP_SECONDS, Bench, Reading, medians
from loadtest.clients.processes import Running
from loadtest.clients.traffic import append_body, create_topics, names_of_shard
from loadtest.clients.watching import FanoutResult, WatchedTopic, make_sessions, measure, possible_streams

# While one append is delivered, exactly one more has arrived, so each append is an event.
WINDOW = 2
SESSIONS = 10_000
TOPICS = 100
SHARDS = 2


def delivery(watchers: int) -> Callable[[Bench], Result]:
    """Measure the delivery time of one append at a time."""

    def of(bench: Bench) -> Result:
        rounds = _rounds(bench, watchers, window=1)
        value, bare, ratio = medians(rounds, lambda reading: reading.p50_us / 1000)
        p99_us, bare_p99_us, _ = medians(rounds, lambda reading: reading.p99_us)
        cpu_ratio = 1 / max(medians(rounds, lambda reading: reading.cpu_us)[2], 1e-9)
        return Result(
            line="",
            title="",
            unit="ms (median)",
            value=value,
            ceiling=bare,
            ratio=1 / max(ratio, 1e-9),
            cpu_ratio=cpu_ratio,
            p50_us=value * 1000,
            p99_us=p99_us,
            ceiling_p99_us=bare_p99_us,
            note=f"p99 {p99_us / 1000:.2f} ms, of the ceiling {bare_p99_us / 1000:.2f} ms",
        )

    return of


def delivering(watchers: int) -> Callable[[Bench], Result]:
    """Measure the rate of deliveries, with appends as fast as they are delivered."""

    def of(bench: Bench) -> Result:
        rounds = _rounds(bench, watchers, WINDOW)
        value, bare, ratio = medians(rounds, lambda reading: reading.per_second)
        cpu_ratio = 1 / max(medians(rounds, lambda reading: reading.cpu_us)[2], 1e-9)
        ours, theirs, sizes = medians(rounds, lambda reading: reading.answer_bytes)
        differs = not 0.8 < sizes < 1.25
        return Result(
            line="",
            title="",
            unit="records/s",
            value=value,
            ceiling=bare,
            ratio=ratio,
            cpu_ratio=cpu_ratio,
            note=f"{ours:.0f} bytes per record, ceiling {theirs:.0f}" if differs else "",
        )

    return of


def _rounds(bench: Bench, watchers: int, window: int) -> list[list[Reading]]:
    with bench.subjects.server() as server, bench.subjects.ceiling("fanout_ceiling") as ceiling:
        create_topics(server.port, bench.home, ["x"])
        names = ["x"] * possible_streams(watchers)
        takes = [
            partial(_read, bench, subject, make_sessions(subject.port, names), window)
            for subject in (server, ceiling)
        ]
        return bench.rounds_of(*takes)


def _read(bench: Bench, subject: Running, topics: list[WatchedTopic], window: int) -> Reading:
    took = _deliver(bench, subject, topics, window)
    count = took.count
    return Reading(count / took.seconds, took.metered / count * 1e6, *took.each_us, took.bytes / count)


def _deliver(
    bench: Bench,
    subject: Running,
    topics: list[WatchedTopic],
    window: int = 1,
    meter: Callable[[], float] | None = None,
) -> FanoutResult:
    meter = meter or subject.cpu_seconds
    return measure(subject.port, topics, append_body(1), bench.seconds, window, WARMUP_SECONDS, meter)


def sessions(bench: Bench) -> Result:
    """Measure the growth of the memory of all processes; socket buffers belong to the kernel."""
    count = possible_streams(SESSIONS)
    half = TOPICS // SHARDS
    by_shard = [names_of_shard(shard, SHARDS) for shard in range(SHARDS)]
    names = [next(by_shard[number % SHARDS]) for number in range(half * SHARDS)]
    with bench.subjects.server(SHARDS) as server:
        create_topics(server.port, bench.home, names)
        # Memory that is allocated once, with the first sessions, does not count.
        _deliver(bench, server, make_sessions(server.port, names))
        before = server.pss_bytes()
        topics = make_sessions(server.port, [names[number % TOPICS] for number in range(count - TOPICS)])
        readings: list[int] = []

        def meter() -> float:
            readings.append(server.pss_bytes())
            return 0.0

        took = _deliver(bench, server, topics, meter=meter)
    each = sum(len(topic.streams) for topic in topics)
    last_p50, last_p99 = took.last_us
    limited = "" if count == SESSIONS else f"only {count} sessions because of the descriptor limit; "
    return Result(
        line="",
        title="",
        unit="KiB",
        value=(statistics.mean(readings) - before) / each / 1024,
        p50_us=last_p50,
        p99_us=last_p99,
        note=f"{limited}an append reached the last of {each // TOPICS} watchers of {TOPICS} topics "
        f"after {last_p50 / 1000:.2f} ms, p99 {last_p99 / 1000:.2f} ms",
    )
