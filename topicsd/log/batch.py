"""The batch of one turn of the event loop: frames for one write, and the pending entries that wait for it.

An *entry* is a request that has joined the log: it is published when its durability class is satisfied, or
refused. Within a batch the entries of one topic that wait for a sync follow those that do not.

Also the counters of a shard's log since it was opened.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from msgspec import UNSET, Struct, UnsetType

from shared.contract.errors import Refusal
from shared.runtime.histogram import Histogram


class CommitEntry(Protocol):
    """A pending entry: `publish` or `refuse` is called once; `undo` may precede `refuse`."""

    ordinal: int
    """Ordinal of its first frame, or of the next frame when it has none; set by joining."""

    def publish(self) -> None:
        """Make the records visible and respond: the durability class is satisfied."""
        ...

    def undo(self) -> None:
        """Revert the changes made by joining: the frames were not written. Called newest first."""
        ...

    def refuse(self, refusal: Refusal) -> None:
        """Respond that the write did not happen, or that its outcome is in doubt."""
        ...


class Bounds(NamedTuple):
    """The bounds on the age and amount of unsynced data, and on the number of waiting entries."""

    sync_interval_seconds: float
    unsynced_bytes_max: int
    waiting_entries_max: int


class CommitTimes(Struct, frozen=True):
    """Milliseconds of each part of a commit; parts that do not apply are unset.

    A struct: each response reads the fields, which costs a fraction of those of a named tuple.
    """

    write: float | UnsetType = UNSET
    sync: float | UnsetType = UNSET
    throttle: float | UnsetType = UNSET
    """From the write until pressure let the sync begin, for the first entry that waited."""


UNTIMED: Final = CommitTimes()


class Batch:
    """The frames and pending entries of one group commit."""

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
        """Position of the next frame in the log."""
        self.next_ordinal = next_ordinal
        self.frame_count = 0
        self.after_write: list[CommitEntry] = []
        self.after_sync: list[CommitEntry] = []
        self.urgent = False
        """An entry waits for the sync, so it begins at once and not with the next background sync."""

    @property
    def is_empty(self) -> bool:
        return not self.parts and not self.after_sync and not self.after_write

    @property
    def needs_write(self) -> bool:
        """Whether the batch has frames, or an entry that waits for a sync of earlier frames."""
        return bool(self.parts or self.after_sync)

    def undo(self) -> None:
        for entry in reversed(self.after_sync):
            entry.undo()
        for entry in reversed(self.after_write):
            entry.undo()

    def entries(self) -> list[CommitEntry]:
        return self.after_write + self.after_sync


def refuse(entries: list[CommitEntry], refusal: Refusal) -> None:
    for entry in entries:
        entry.refuse(refusal)


class Counters:
    """Totals of a shard's log since it was opened."""

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
        """Requests that `admit` throttled under pressure, before a bound was reached."""
        self.sync_us = Histogram()
        self.batch_frames = Histogram()
