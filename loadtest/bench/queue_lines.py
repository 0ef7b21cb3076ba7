"""Benchmark lines of queues: jobs per second, the cost of waiting jobs, memory of a job."""

from __future__ import annotations

import os
import pathlib
import statistics
from functools import partial

from loadtest.bench.result import Result
from loadtest.bench.rounds import WARMUP_SECONDS, Bench, Reading, medians
from loadtest.clients.generator import Load
from loadtest.clients.processes import Running
from loadtest.clients.traffic import append_body, ask, create_topics, run_checked
from loadtest.clients.working import Work, measure

WAITING = 1_000_000
WAITING_FEW = 1_000
LEASED = 100_000
TAGS = 10_000
FILL_BATCH = 1000
CLAIM_MAX = 1000
CHECKPOINT_MS = 1000
RECORD_BYTES = 100
QUEUE = "x"
WORK = Work(QUEUE)


def jobs(bench: Bench) -> Result:
    """Measure jobs from append to ack; the client shares the machine with the server."""
    with bench.subjects.server() as server:
        _make_queue(bench, server, 0)
        (rounds,) = bench.rounds_of(partial(_read, bench, server, WORK))
    return Result(
        line="",
        title="",
        unit="jobs/s",
        value=statistics.median(reading.per_second for reading in rounds),
        p50_us=statistics.median(reading.p50_us for reading in rounds),
        p99_us=statistics.median(reading.p99_us for reading in rounds),
        note=f"{WORK.producers} producers in batches of {WORK.batch}, "
        f"{statistics.median(reading.cpu_us for reading in rounds):.1f} us of CPU a job in the server; "
        "the times are those of a claim",
    )


def waiting(bench: Bench) -> Result:
    """Measure the CPU cost of a job with a million jobs waiting and with a thousand.

    Each finished job is replaced by a new one. The million waiting jobs are in segments, where they are soon
    in practice too. Both servers continue to checkpoint the new jobs.
    """
    settings = {"TOPICS_CHECKPOINT_INTERVAL_MS": str(CHECKPOINT_MS)}
    with bench.subjects.server(**settings) as full, bench.subjects.server(**settings) as short:
        _make_queue(bench, full, WAITING)
        _make_queue(bench, short, WAITING_FEW)
        full.wait_for(lambda: _segment_bytes(full) > WAITING * RECORD_BYTES or None, "jobs in segments")
        # As many jobs are produced as are finished, so the number of waiting jobs is constant.
        work = Work(QUEUE, ahead=WAITING_FEW)
        rounds = bench.rounds_of(*[partial(_read, bench, server, work) for server in (full, short)])
    many_us, few_us, ratio = medians(rounds, lambda reading: reading.cpu_us)
    note = f"{many_us:.1f} us of CPU a job with {WAITING:,} waiting, {few_us:.1f} with {WAITING_FEW:,}"
    return Result(line="", title="", unit="x the CPU", value=ratio, note=note)


def fair(bench: Bench) -> Result:
    """Measure the CPU cost of a job in a fair queue with many tags, and in a plain one with the same jobs."""
    with bench.subjects.server() as fair_server, bench.subjects.server() as plain:
        _make_queue(bench, fair_server, 0, b',"fair_by":"tag"')
        _make_queue(bench, plain, 0)
        work = Work(QUEUE, tags=TAGS)
        rounds = bench.rounds_of(*[partial(_read, bench, server, work) for server in (fair_server, plain)])
    fair_us, plain_us, ratio = medians(rounds, lambda reading: reading.cpu_us)
    note = f"{fair_us:.1f} us of CPU a job with {TAGS:,} tags, {plain_us:.1f} in a plain queue"
    return Result(line="", title="", unit="x the CPU", value=ratio, note=note)


def memory_of_a_job(bench: Bench) -> Result:
    # A small cache: pages cached by claims are not part of the memory of a lease.
    with bench.subjects.server(TOPICS_PAGE_CACHE_BYTES=str(1 << 20)) as server:
        _make_queue(bench, server, FILL_BATCH)
        _claim(server, FILL_BATCH)
        empty = server.pss_bytes()
        _fill(server, WAITING)
        full = server.pss_bytes()
        _claim(server, LEASED)
        leased = server.pss_bytes()
    each = (leased - full) / LEASED
    note = f"a leased job takes {each:.0f} bytes more, with {LEASED:,} leased"
    return Result(line="", title="", unit="bytes", value=(full - empty) / WAITING, note=note)


def _read(bench: Bench, server: Running, work: Work) -> Reading:
    worked = measure(server.port, work, bench.seconds, WARMUP_SECONDS, server.cpu_seconds)
    return Reading(
        worked.jobs / worked.seconds, worked.metered / worked.jobs * 1e6, *worked.claim_us, answer_bytes=0.0
    )


def _segment_bytes(server: Running) -> int:
    topics = pathlib.Path(server.home, "data", "shards", "00", "topics")
    return sum(one.stat().st_size for one in topics.glob("*/seg-*.data"))


def _make_queue(bench: Bench, server: Running, waiting: int, more: bytes = b"") -> None:
    create_topics(server.port, bench.home, [QUEUE], b'{"type":"queue","lease_ms":3600000%b}' % more)
    os.unlink(os.path.join(bench.home, "put"))
    _fill(server, waiting)


def _fill(server: Running, count: int) -> None:
    if count:
        body = append_body(FILL_BATCH)
        run_checked(server.port, Load(path=f"/v0/topics/{QUEUE}", body=body, requests=count // FILL_BATCH))


def _claim(server: Running, count: int) -> None:
    for _ in range(0, count, CLAIM_MAX):
        ask(server.port, f"/v0/topics/{QUEUE}/claim", b'{"node":"holder","max":%d}' % CLAIM_MAX)
