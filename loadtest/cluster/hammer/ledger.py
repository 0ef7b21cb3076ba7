"""The check of a run: every acknowledged record is read once, at its offset, in the order of its producer."""

from __future__ import annotations

from typing import Any

import msgspec

from loadtest.cluster.hammer.records import RecordRun
from loadtest.cluster.hammer.routing import Partition

VIOLATIONS_MAX = 100
"""Of which the text is kept; all are counted."""


class Acked(msgspec.Struct, frozen=True, order=True):
    """Records that were acknowledged together."""

    offset: int
    producer: str
    number: int
    count: int


class Ledger:
    """What was acknowledged and what was read, by partition."""

    def __init__(self) -> None:
        self._acked: dict[Partition, list[Acked]] = {}
        self._read: dict[Partition, list[RecordRun]] = {}
        self._ends: dict[Partition, int] = {}
        self.violations: list[str] = []
        self.violation_count = 0

    def acknowledge(self, partition: Partition, acked: Acked) -> None:
        self._acked.setdefault(partition, []).append(acked)
        end = acked.offset + acked.count
        self._ends[partition] = max(self._ends.get(partition, 0), end)

    def read(self, partition: Partition, run: RecordRun) -> None:
        self._read.setdefault(partition, []).append(run)

    def acked_end(self, partition: Partition) -> int:
        """Return the offset after the last acknowledged record; 0 when there is none."""
        return self._ends.get(partition, 0)

    def violate(self, text: str) -> None:
        self.violation_count += 1
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)

    def check(self, read_to_end: bool) -> dict[str, Any]:
        """Join both sides; `read_to_end` is whether the consumers had the time to read everything."""
        totals = {"acked": 0, "read": 0, "acked_unread": 0, "read_unacked": 0}
        for partition in sorted({*self._acked, *self._read}):
            self._check_order(partition)
            self._check_offsets(partition, totals)
        if read_to_end and totals["acked_unread"]:
            self.violate(f"{totals['acked_unread']} acknowledged records were not read")
        return {**totals, "violation_count": self.violation_count, "violations": self.violations}

    def _check_order(self, partition: Partition) -> None:
        """Report offsets that are read twice, and numbers that do not grow with the offset."""
        next_offset = 0
        last: dict[str, int] = {}
        for run in sorted(self._read.get(partition, ())):
            if run.offset < next_offset:
                self.violate(f"{_name(partition)}: offset {run.offset} was read twice")
            next_offset = run.offset + run.count
            before = last.get(run.producer, -1)
            if run.number <= before:
                problem = f"record {run.number} of {run.producer} repeats or precedes {before}"
                self.violate(f"{_name(partition)}: offset {run.offset}: {problem}")
            last[run.producer] = run.number + run.count - 1

    def _check_offsets(self, partition: Partition, totals: dict[str, int]) -> None:
        """Compare each acknowledged range with what was read there."""
        reads = sorted(self._read.get(partition, ()))
        matched = at = next_offset = 0
        for acked in sorted(self._acked.get(partition, ())):
            if acked.offset < next_offset:
                self.violate(f"{_name(partition)}: offset {acked.offset} was given twice")
            next_offset = end = acked.offset + acked.count
            # A range may begin in the middle of a run, which then also served the range before it.
            while at < len(reads) and reads[at].offset + reads[at].count <= acked.offset:
                at += 1
            match_count = 0
            for index in range(at, len(reads)):
                run = reads[index]
                if run.offset >= end:
                    break
                match_count += self._compare(partition, acked, run)
            matched += match_count
            totals["acked"] += acked.count
            totals["acked_unread"] += acked.count - match_count
        read = sum(run.count for run in reads)
        totals["read"] += read
        totals["read_unacked"] += max(0, read - matched)

    def _compare(self, partition: Partition, acked: Acked, run: RecordRun) -> int:
        """Return the count of offsets that both have; report other records at them."""
        first = max(acked.offset, run.offset)
        end = min(acked.offset + acked.count, run.offset + run.count)
        sent = (acked.producer, acked.number + first - acked.offset)
        read = (run.producer, run.number + first - run.offset)
        if sent != read:
            self.violate(f"{_name(partition)}: offset {first}: acknowledged {sent}, read {read}")
        return end - first


def _name(partition: Partition) -> str:
    return f"{partition[0]}:{partition[1]}"
