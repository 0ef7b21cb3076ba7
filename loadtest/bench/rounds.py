"""The measurement of a benchmark line: rounds of alternating loads, and their medians.

The two loads of a line are measured in turn, in several rounds, and the first one alternates. The value is
the median of its rounds, and the ratio is the median of the ratios of each round, because two figures of the
same seconds are subject to the same other load on the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from loadtest.bench.result import Result
from loadtest.bench.subjects import Subjects
from loadtest.clients.generator import Load, run
from loadtest.clients.processes import Running
from loadtest.clients.traffic import NotMeasured

WARMUP_SECONDS = 0.3


class Reading(msgspec.Struct, frozen=True):
    per_second: float
    cpu_us: float
    p50_us: float
    p99_us: float
    answer_bytes: float


class Bench:
    """The run of one line: its directory, the length of a measurement, the number of rounds."""

    def __init__(self, subjects: Subjects, seconds: float, rounds: int) -> None:
        self.subjects = subjects
        self.seconds = seconds
        self.rounds = rounds

    @property
    def home(self) -> str:
        return self.subjects.home

    def load(self, **more: object) -> Load:
        return msgspec.structs.replace(Load(seconds=self.seconds, warmup=WARMUP_SECONDS), **more)

    def read(self, subject: Running, load: Load) -> Reading:
        before = subject.cpu_seconds()
        measured = run(subject.port, load)
        used = subject.cpu_seconds() - before
        if fault := measured.fault():
            raise NotMeasured(fault)
        return Reading(
            measured.per_second,
            used / measured.sent * 1e6,
            measured.latency_us.p50,
            measured.latency_us.p99,
            measured.body_bytes / measured.latency_us.count,
        )

    def in_turn(self, *pairs: tuple[Running, Load]) -> list[list[Reading]]:
        """Return the readings of each pair, round by round."""
        return self.rounds_of(*[partial(self.read, subject, load) for subject, load in pairs])

    def rounds_of(self, *takes: Callable[[], Reading]) -> list[list[Reading]]:
        readings: list[list[Reading]] = [[] for _ in takes]
        for number in range(self.rounds):
            order = list(enumerate(takes))
            for at, take in order if number % 2 == 0 else reversed(order):
                readings[at].append(take())
        return readings


def medians(
    rounds: Sequence[Sequence[Reading]], of: Callable[[Reading], float]
) -> tuple[float, float, float]:
    """Return the medians of the first, of the second, and of the ratios of first to second."""
    first, second = ([of(reading) for reading in readings] for readings in rounds)
    ratios = [a / b if b else 0.0 for a, b in zip(first, second, strict=True)]
    return statistics.median(first), statistics.median(second), statistics.median(ratios)


def against_ceiling(bench: Bench, server: Running, ceiling: Running, load: Load, scale: int = 1) -> Result:
    """Measure the same load on both; `scale` is the number of records of one request."""
    rounds = bench.in_turn((server, load), (ceiling, load))
    value, bare, ratio = medians(rounds, lambda reading: reading.per_second)
    cpu_ratio = 1 / max(medians(rounds, lambda reading: reading.cpu_us)[2], 1e-9)
    ours, theirs, sizes = medians(rounds, lambda reading: reading.answer_bytes)
    # Small responses differ in parts that hardly matter to a client; pages must have the same size.
    differs = not 0.8 < sizes < 1.25 and max(ours, theirs) > 1000
    return Result(
        line="",
        title="",
        unit="requests/s" if scale == 1 else "records/s",
        value=value * scale,
        ceiling=bare * scale,
        ratio=ratio,
        cpu_ratio=cpu_ratio,
        p50_us=statistics.median(reading.p50_us for reading in rounds[0]),
        p99_us=statistics.median(reading.p99_us for reading in rounds[0]),
        note=f"answers of {ours:.0f} bytes, ceiling {theirs:.0f}" if differs else "",
    )
