"""The batch of this turn of the loop: frames that go to the disk in one write, and who waits for them.

An *entry* is what a request left in the log: it is published when its class is satisfied, or refused.
Within a batch the entries of one topic that wait for a sync stand behind those that do not.

What a shard's log has done since it was opened.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from msgspec import UNSET, UnsetType

from shared.contract.errors import Refusal
from shared.runtime.histogram import Histogram


class Entry(Protocol):
    ordinal: int
    """That of its first frame, or of the next one when it has none; set by joining."""

    def publish(self) -> None:
        """The frames are where their class wants them: make them visible and answer."""
        ...

    def undo(self) -> None:
        """The frames were not written: take back what joining the batch changed. Newest first."""
        ...

    def refuse(self, refusal: Refusal) -> None:
        """Answer that it did not happen, or that nobody knows."""
        ...


class Bounds(NamedTuple):
    """How long data may stay unsynced, and how much of it before writers wait, and then are refused."""

    sync_interval_seconds: float
    unsynced_bytes_max: int
    waiting_entries_max: int


class CommitTimes(NamedTuple):
    """Milliseconds that a commit took, of what applies to it."""

    write: float | UnsetType = UNSET
    sync: float | UnsetType = UNSET
    throttle: float | UnsetType = UNSET
    """From the write until pressure let the sync begin, for the first of those that waited."""


UNTIMED: Final = CommitTimes()


class Batch:
    __slots__ = (
        "after_sync",
        "after_write",
        "first_position",
        "frame_count",
        "next_ordinal",
        "next_position",
        "parts",
        "urgent",
    )

    def __init__(self, next_position: int, next_ordinal: int) -> None:
        self.parts: list[bytes] = []
        self.first_position = next_position
        self.next_position = next_position
        """Where the next frame will stand in the log."""
        self.next_ordinal = next_ordinal
        self.frame_count = 0
        self.after_write: list[Entry] = []
        self.after_sync: list[Entry] = []
        self.urgent = False
        """Somebody waits for the sync, so it begins at once and not with the next background one."""

    @property
    def is_empty(self) -> bool:
        return not self.parts and not self.after_sync and not self.after_write

    @property
    def needs_write(self) -> bool:
        """There are frames, or somebody waits for a sync of those before it."""
        return bool(self.parts or self.after_sync)

    def undo(self) -> None:
        for entry in reversed(self.after_sync):
            entry.undo()
        for entry in reversed(self.after_write):
            entry.undo()

    def entries(self) -> list[Entry]:
        return self.after_write + self.after_sync


def refuse(entries: list[Entry], refusal: Refusal) -> None:
    for entry in entries:
        entry.refuse(refusal)


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
