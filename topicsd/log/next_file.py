"""The next WAL file: make it ahead of need on the disk thread, and handle a disk without room for it.

A full disk is not a failure. Until it has space, records may fill the active file except for its last
sixteenth, which is reserved for requests that free space: deletes and acks. Making the file is retried
every few seconds, so writes resume by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shared.contract.errors import STORAGE_FULL, Refusal
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import DiskThread
from shared.text.message import size_text
from topicsd.log.writer import NO_SPACE, LogWriter, Spare

logger = logging.getLogger("topicsd.log")

# With a tick and the making of a file, writes resume within five seconds after space is available.
RETRY_SECONDS = 4.0
# One sixteenth of the active file is reserved for control frames.
CONTROL_SHARE = 16

NO_LIMIT = 1 << 63


class NextFile:
    """The maker of WAL files, with the position limit while the disk is full."""

    def __init__(
        self,
        clock: Clock,
        thread: DiskThread,
        writer: LogWriter,
        on_change: Callable[[], None],
        on_made: Callable[[bool], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._clock = clock
        self._thread = thread
        self._writer = writer
        self._on_change = on_change
        self._on_made = on_made
        """Callback with True after a file was made, with False when the disk had no room for it."""
        self._on_failure = on_failure
        self._is_making = False
        self._retry_at = 0.0
        self.limit = NO_LIMIT
        """Position that records may not pass."""

    @property
    def is_missing(self) -> bool:
        """Whether the disk has no room for the next file."""
        return self.limit != NO_LIMIT

    def preallocate_if_half_full(self) -> None:
        """Make the next file when half of the active file is used; called after every write."""
        if self._writer.needs_spare and not self._is_making and not self.is_missing:
            self._make()

    def provide(self, batch_bytes: int) -> None:
        """Make a file that has room for this batch, unless one is being made; then call `on_made`."""
        if not self._is_making:
            self._make(batch_bytes)

    def on_disk_full(self) -> None:
        """Limit records to the active file and schedule a retry: the disk is full."""
        if self._writer.has_spare:
            return  # The failed write was larger than a file; the next file is already made.
        if not self.is_missing:
            logger.error("disk: full: writes are refused until space is available")
        reserved = self._writer.file_bytes // CONTROL_SHARE
        self.limit = self._writer.end.position + max(0, self._writer.room_bytes - reserved)
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        self._on_change()

    def retry(self) -> None:
        """Try again to make the next file when the retry is due; called on every tick."""

        now = self._clock.monotonic()
        if self.is_missing and now >= self._retry_at and not self._is_making:
            self._retry_at = now + RETRY_SECONDS
            self._make()

    def refusal(self, required_bytes: int) -> Refusal:
        detail: dict[str, object] = {
            "free_bytes": self._writer.free_bytes(),
            "required_bytes": required_bytes,
        }
        return Refusal(
            STORAGE_FULL,
            f"disk full: the write needs {size_text(required_bytes)}",
            detail,
            retry_after_ms=5000,
        )

    def _make(self, batch_bytes: int = 0) -> None:
        self._is_making = True
        self._thread.submit(self._writer.make_spare(batch_bytes), self._made)

    def _made(self, outcome: Spare | OSError) -> None:
        self._is_making = False
        if isinstance(outcome, Spare):
            self._writer.add_spare(outcome)
            if self.is_missing:
                logger.warning("disk: space is available: writes are accepted again")
            self.limit = NO_LIMIT
            self._on_change()
        elif outcome.errno in NO_SPACE:
            self.on_disk_full()
        else:
            self._on_failure(outcome)
            return
        self._on_made(isinstance(outcome, Spare))
