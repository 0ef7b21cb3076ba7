"""What a shard's log has done since it was opened."""

from __future__ import annotations

from shared.histogram import Histogram


class Counters:
    __slots__ = (
        "batch_frames",
        "batches",
        "bytes_written",
        "frames",
        "refused",
        "refused_under_pressure",
        "sync_seconds",
        "sync_us",
        "syncs",
    )

    def __init__(self) -> None:
        self.batches = self.bytes_written = self.frames = self.syncs = 0
        self.sync_seconds = 0.0
        self.refused = 0
        """Requests that `admit` and `admit_control` throttled at a bound."""
        self.refused_under_pressure = 0
        """Those that `admit` throttled before there was need to."""
        self.sync_us = Histogram()
        self.batch_frames = Histogram()
