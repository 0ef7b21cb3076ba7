"""The number of answered requests, and the time from reading each to its response.

Refused requests are not counted: the time of a refusal says nothing about the server.
"""

from __future__ import annotations

from shared.runtime.clock import Clock
from shared.runtime.histogram import Histogram
from topicsd.service.call import Call


class RequestCounts:
    """Histograms in microseconds, by kind of work."""

    __slots__ = (
        "_monotonic",
        "appends",
        "others",
        "reads",
        "records_beyond_first",
        "tombstones",
        "upload_lines",
        "upload_records",
        "uploads",
        "waited_claims",
        "waited_reads",
    )

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self.appends = Histogram()
        self.reads = Histogram()
        self.waited_reads = Histogram()
        """Reads that found nothing at first: their time depends on the writer they waited for."""
        self.waited_claims = Histogram()
        """Claims that found no job at first."""
        self.others = Histogram()
        self.tombstones = 0
        """Number of responses to reads with a tombstone."""
        self.records_beyond_first = 0
        """Appended records that were not the first of their append; most appends have one record."""

        self.uploads = self.upload_lines = self.upload_records = 0
        """Uploads of lines that wrote a batch, and the lines and records of their batches."""

    def append(self, call: Call, record_count: int) -> int:
        """Count an append; return its time in microseconds. Local appends are counted in place."""
        if record_count > 1:
            self.records_beyond_first += record_count - 1
        return self._count(call, self.appends)

    def read(self, call: Call, *, has_waited: bool) -> None:
        """Count a read."""
        self._count(call, self.waited_reads if has_waited else self.reads)

    def performance(self, call: Call) -> dict[str, float]:
        """Count a call among `others`; return the `performance` member of its response."""
        return {"server_total_ms": round(self._count(call, self.others) / 1000, 3)}

    def waited_claim(self, call: Call) -> dict[str, float]:
        """Count a claim that waited for a job; return the `performance` member of its response."""
        return {"server_total_ms": round(self._count(call, self.waited_claims) / 1000, 3)}

    def _count(self, call: Call, histogram: Histogram) -> int:
        elapsed_us = int((self._monotonic() - call.started) * 1e6)
        histogram.counts[elapsed_us.bit_length()] += 1
        histogram.total += elapsed_us
        return elapsed_us
