"""The number of answered requests, and the time from reading each to its response.

Refused requests are not counted: the time of a refusal says nothing about the server.
"""

from __future__ import annotations

from shared.runtime.histogram import Histogram


class RequestCounts:
    """Histograms in microseconds, by kind of work."""

    __slots__ = ("appends", "others", "reads", "records_beyond_first", "tombstones", "waited_reads")

    def __init__(self) -> None:
        self.appends = Histogram()
        self.reads = Histogram()
        self.waited_reads = Histogram()
        """Reads that found nothing at first: their time depends on the writer they waited for."""
        self.others = Histogram()
        self.tombstones = 0
        """Number of responses to reads with a tombstone."""
        self.records_beyond_first = 0
        """Appended records that were not the first of their append; most appends have one record."""
