"""How many requests were answered by this process, and how long each took from being read to its answer.

Refused requests are not among them: how fast somebody is told no says nothing about the server.
"""

from __future__ import annotations

from shared.runtime.histogram import Histogram


class RequestCounts:
    """In microseconds, by the kind of work."""

    __slots__ = ("appends", "others", "reads", "records_beyond_first", "tombstones", "waited_reads")

    def __init__(self) -> None:
        self.appends = Histogram()
        self.reads = Histogram()
        self.waited_reads = Histogram()
        """Reads that found nothing at first: their time is that of the writer they waited for."""
        self.others = Histogram()
        self.tombstones = 0
        """Answers to a read that said that something was lost."""
        self.records_beyond_first = 0
        """Of the appends. Most have one record, and count no more than themselves."""
