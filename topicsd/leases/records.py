"""What the jobs of a queue ask of the log that their records stand in.

Must not know: who has a log.
"""

from __future__ import annotations

from typing import Protocol


class Totals(Protocol):
    """Of all queues together."""

    leases_in_flight: int


class Records(Protocol):
    head: int
    earliest_seq: int
    live_count: int

    @property
    def totals(self) -> Totals: ...

    def next_live(self, seq: int) -> int:
        """The first live seq at or behind `seq`, or one behind the head."""
        ...
