"""Group commit: frames that join the log in one turn of the event loop share one write and one sync.

G1  An entry is published when its durability class is satisfied, never before: after the write, or after a
    sync that covers it. A failed commit publishes nothing.
G2  The entries of one topic are published in the order in which they joined, whatever their class: an entry
    that joins after one that waits for a sync must join as one that waits too.
G3  One sync runs at a time. Frames written while it runs wait for the next sync, so the slower the disk, the
    more writers share a sync.
G4  After a failed sync, or a write that failed for a reason other than space, nothing is ever written again:
    waiting entries are refused, `on_failure` is called, and the process must end and recover.
G5  A full disk is not a failure: the batch is undone, newest first, and its entries are refused.
G6  Under pressure, syncs that writers wait for begin a window apart, as long as writers then share them.
G7  `sync_soon` starts a sync without delay for readers that follow the synced position, one for all of them.
G8  While the next file is made, the batch waits and grows, and the event loop keeps running.
G9  Waiting data is bounded; past the bound `admit` refuses before any state changes.
G10 From `hold` to `release` nothing is written: the batch waits as in G8, and `place` does not move.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from msgspec import UNSET

from shared.contract.errors import RETRY_AFTER_MS, STORAGE_FAILED, Refusal, shutting_down, throttled
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import DiskThread, Loop
from topicsd.log.batch import UNTIMED, Batch, Bounds, CommitEntry, CommitTimes, Counters, refuse
from topicsd.log.files import LogPlace
from topicsd.log.next_file import NextFile
from topicsd.log.sync_timing import ReaderSyncs, SyncWindow
from topicsd.log.writer import NO_SPACE, LogWriter, NoFile, Sync

logger = logging.getLogger("topicsd.log")

BATCH_BYTES_MAX = 4 << 20
LAG_SECONDS = 1.0
# On a disk that syncs faster than this, the event loop itself syncs for a single waiting writer: two thread
# switches would cost as much as the sync.
FAST_SYNC_SECONDS = 0.0003
FAST_SYNC_BYTES_MAX = 64 << 10


class GroupCommit:
    """The commit queue of one shard's log."""

    def __init__(
        self,
        clock: Clock,
        loop: Loop,
        thread: DiskThread,
        writer: LogWriter,
        bounds: Bounds,
        on_failure: Callable[[OSError], None],
        on_tick: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._thread = thread
        self._writer = writer
        self._bounds = bounds
        self._on_failure = on_failure
        self._on_tick = on_tick
        """Joins due frames at each background sync; returns whether more may become due."""
        self.counters = Counters()
        end = writer.end
        self.batch = Batch(end.position, end.ordinal)
        self.synced_position = end.position
        """Position before which every byte is on the disk itself."""
        self.is_lagging = False
        """Whether the disk lags: then all logged writes wait for a sync, so that little can be lost."""
        self.failed: Refusal | None = None
        """Refusal of every write after a failure (G4)."""
        self._gate: Refusal | None = None
        """Refusal of every request to join: the log has failed or is stopping."""
        self._data_end, self._sync_started = end.position, 0.0
        self._unsynced_since: float | None = None
        self._window = SyncWindow(clock, loop, lambda: len(self._waiting), self._window_over)
        self._is_pressed = False
        self._waiting: list[CommitEntry] = []
        self._in_flight: list[CommitEntry] = []
        self._urgent = self._syncing = self._is_batch_waiting = self._is_held = False
        self._reader_syncs = ReaderSyncs(clock, loop, self._start_due_sync)
        self._sync_seconds = 1.0
        self._next_file = NextFile(clock, thread, writer, self._space_changed, self._file_made, self._fail)
        self._commit_scheduled = self._publishing = False
        self._write_ms = self._in_flight_write_ms = self._in_flight_throttle_ms = self._throttled_since = 0.0
        self.published_times = UNTIMED
        """Commit times of the entries being published."""
        self._closed = self._ticking = False
        self._idle_marked = True
        self.admit_limit = 0
        self._measure_room()

    # -- joining -----------------------------------------------------------------------------------------

    def admit(self, size_bytes: int, ignore_pressure: bool = False) -> Refusal | None:
        """Return why record frames may not join, or None; skip the call before `admit_limit`."""
        if self._gate is not None:
            return self._gate
        batch = self.batch
        if batch.next_position - self.synced_position > self._bounds.unsynced_bytes_max:
            return self._throttle("the disk is too slow: too many bytes wait for a sync")
        if self._is_crowded():
            return self._throttle("the disk is too slow: too many writes wait for a sync")
        if batch.next_position + size_bytes > self._next_file.limit:
            return self._next_file.refusal(size_bytes)
        if self._is_pressed and self._is_filling() and not ignore_pressure:
            self.counters.refused_under_pressure += 1
            return throttled("the shard is under pressure and its commit queue is full")
        return None

    @property
    def is_background_throttled(self) -> bool:
        """Whether background work must wait: a quarter of the bound is unsynced, far below `is_lagging`."""
        unsynced_bytes = self.batch.next_position - self.synced_position
        return self.is_lagging or unsynced_bytes * 4 > self._bounds.unsynced_bytes_max

    @property
    def is_disk_full(self) -> bool:
        """Whether the disk has no room for a next file."""
        return self._next_file.is_missing

    def admit_control(self) -> Refusal | None:
        """Return why a control frame may not join, or None; a full disk is no reason."""
        if self._gate is None and self._is_crowded():
            return self._throttle("the commit queue is full")
        return self._gate

    def _throttle(self, reason: str) -> Refusal:
        self.counters.refused += 1
        return throttled(reason)

    @property
    def waiting_count(self) -> int:
        """Number of entries that wait for a sync, or for a file."""
        batch = self.batch
        batch_entries = len(batch.after_write) + len(batch.after_sync) if self._is_batch_waiting else 0
        return len(self._waiting) + len(self._in_flight) + batch_entries

    @property
    def unsynced_bytes(self) -> int:
        return self._data_end - self.synced_position

    @property
    def rotations(self) -> int:
        return self._writer.rotations

    def _is_crowded(self) -> bool:
        return self.waiting_count >= self._bounds.waiting_entries_max

    def _is_filling(self) -> bool:
        """Return whether half of the allowed waiting entries wait, or the disk `is_lagging`."""
        return self.is_lagging or self.waiting_count * 2 >= self._bounds.waiting_entries_max

    def _measure_room(self) -> None:
        if self._gate is not None or self._is_pressed or self._is_crowded():
            self.admit_limit = -1
        else:
            self.admit_limit = min(
                self.synced_position + self._bounds.unsynced_bytes_max, self._next_file.limit
            )

    def join(
        self, parts: list[bytes], size_bytes: int, frame_count: int, entry: CommitEntry, wait_for_sync: bool
    ) -> None:
        """Add a request's frames to the batch of this turn."""
        batch = self.batch
        entry.ordinal = batch.next_ordinal
        batch.parts += parts
        batch.next_position += size_bytes
        batch.next_ordinal += frame_count
        batch.frame_count += frame_count
        if wait_for_sync:
            batch.after_sync.append(entry)
            batch.urgent = True
        else:
            batch.after_write.append(entry)
        if batch.next_position - batch.first_position > BATCH_BYTES_MAX and not self._publishing:
            self.commit()
        elif not self._commit_scheduled:
            self._commit_scheduled = True
            self._loop.call_soon(self.commit)

    def join_control_frame(
        self, frame: bytes, entry: CommitEntry | None = None, is_urgent: bool = False
    ) -> None:
        """Add a control frame; the next sync publishes its entry, and `is_urgent` starts one."""
        batch = self.batch
        batch.parts.append(frame)
        batch.next_position += len(frame)
        batch.next_ordinal += 1
        batch.frame_count += 1
        if entry is not None:
            entry.ordinal = batch.next_ordinal - 1
            batch.after_sync.append(entry)
        batch.urgent = batch.urgent or is_urgent
        if not self._commit_scheduled:
            self._commit_scheduled = True
            self._loop.call_soon(self.commit)

    def unpublished(self) -> Iterator[CommitEntry]:
        """Iterate over the entries that have joined and are not published."""
        return chain(self._in_flight, self._waiting, self.batch.after_write, self.batch.after_sync)

    def publish_after_sync(self, entry: CommitEntry) -> None:
        """Publish the entry after everything that has joined is synced and published."""
        self.join([], 0, 0, entry, wait_for_sync=True)

    @property
    def place(self) -> LogPlace | None:
        """Log place of the end of the last batch; None before the first one."""
        return self._writer.place

    @property
    def frame_count(self) -> int:
        """Number of frames written, without BatchEnds."""
        return self.counters.frames - self.counters.batches

    # -- writing -----------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write the batch of this turn: at the turn's end, or as soon as it is large."""
        self._commit_scheduled = False
        if self._closed:
            return
        batch = self.batch
        if self._is_batch_waiting:
            self._measure_room()
        elif not batch.needs_write:
            # An append to an ephemeral topic needs no log, and is also answered at the end of the turn.
            self.batch = Batch(batch.next_position, batch.next_ordinal)
            self._publish(batch.after_write, UNTIMED)
        elif self._write(batch):
            self._data_end = self._writer.end.position
            self._idle_marked = False
            if batch.after_sync:
                self._waiting += batch.after_sync
                self._measure_room()
            self._urgent = self._urgent or batch.urgent
            self._publish(batch.after_write, CommitTimes(self._write_ms))
            if self._unsynced_since is None:
                self._unsynced_since = self._clock.monotonic()
            if (self._data_end - self.synced_position) * 2 > self._bounds.unsynced_bytes_max:
                self.is_lagging = True
            if self._urgent and not self._syncing:
                self._start_urgent_sync()
            self._keep_ticking()

    def _write(self, batch: Batch) -> bool:
        """Write the batch and begin the next one; False when it was refused or must wait."""
        if self.failed is not None:
            self.batch = Batch(batch.next_position, batch.next_ordinal)
            refuse(batch.entries(), self.failed)
            return False
        started = self._clock.monotonic()
        try:
            self._writer.write(batch.parts, batch.frame_count, batch.next_position - batch.first_position)
        except NoFile:
            self._is_batch_waiting = True
            self._next_file.provide(batch.next_position - batch.first_position)
            return False
        except OSError as error:
            if error.errno in NO_SPACE:
                self._next_file.on_disk_full()
                self._undo(batch)
            else:
                self._fail(error)
            return False
        self._write_ms = int((self._clock.monotonic() - started) * 1e6) / 1000
        end = self._writer.end
        self.batch = Batch(end.position, end.ordinal)
        self.counters.batches += 1
        self.counters.frames += batch.frame_count + 1
        # With its BatchEnd a batch has one frame more; a bucket holds values up to its bound, inclusive.
        self.counters.batch_frames.counts[batch.frame_count.bit_length()] += 1
        self.counters.bytes_written += end.position - batch.first_position
        self._next_file.preallocate_if_half_full()
        return True

    def _undo(self, batch: Batch) -> None:
        """Undo a batch for which the disk has no room, and refuse its entries (G5)."""
        end = self._writer.end
        self.batch = Batch(end.position, end.ordinal)
        batch.undo()
        self._measure_room()
        refuse(batch.entries(), self._next_file.refusal(batch.next_position - batch.first_position))

    def hold(self) -> bool:
        """Write nothing until `release`; return False when a batch waits for a file, or at the end."""
        if self._is_batch_waiting or self._gate is not None or self._closed:
            return False
        self._is_held = self._is_batch_waiting = True
        return True

    def release(self) -> None:
        """End a hold, and write what has joined meanwhile."""
        if self._is_held:
            self._is_held = False
            self._file_made(has_room=True)

    def _file_made(self, has_room: bool) -> None:
        if self._is_batch_waiting and not self._is_held:
            self._is_batch_waiting = False
            if has_room:
                self.commit()
            else:
                self._undo(self.batch)

    def _publish(self, entries: list[CommitEntry], times: CommitTimes) -> None:
        """Publish entries in order; work that a response triggers joins the next batch."""
        self._publishing = True
        self.published_times = times
        try:
            for entry in entries:
                try:
                    entry.publish()
                except Exception:
                    # A bug in one entry must not leave the entries after it without a response.
                    logger.exception("commit: publish failed: unexpected error")
        finally:
            self._publishing = False
            self.published_times = UNTIMED

    # -- syncing -----------------------------------------------------------------------------------------

    def apply_pressure(self, sync_window_seconds: float, is_pressed: bool) -> None:
        """Apply pressure: set the sync window, and whether writes are refused at half of the bounds."""
        self._window.set(sync_window_seconds)
        if is_pressed is not self._is_pressed:
            self._is_pressed = is_pressed
            self._measure_room()

    def sync_seconds_at(self, now: float) -> float:
        """Return the total seconds spent in syncs, including the running one."""
        return self.counters.sync_seconds + (now - self._sync_started if self._syncing else 0.0)

    def _start_urgent_sync(self) -> None:
        """Start a sync now, or at the end of the last sync's window."""
        if self._window.is_shared and self._window.must_wait(self._sync_started):
            self._throttled_since = self._throttled_since or self._clock.monotonic()
        else:
            self._start_sync()

    def _window_over(self) -> None:
        if self._urgent:
            self._start_due_sync()

    def sync_soon(self, synced: Callable[[], object]) -> bool:
        """Sync and then call `synced`; return False when there is nothing to sync."""
        if self.failed is not None or self.synced_position >= self._data_end:
            return False
        self._reader_syncs.add(synced, self._sync_started, self._window.seconds)
        return True

    def _start_due_sync(self) -> None:
        is_due = not self._syncing and self.synced_position < self._data_end
        if is_due and not self._closed and self.failed is None:
            self._start_sync()

    def _start_sync(self) -> None:
        assert not self._syncing
        sync = self._writer.prepare_sync()
        is_small = (
            self._urgent and sync.is_one_file and sync.position - self.synced_position <= FAST_SYNC_BYTES_MAX
        )
        self._in_flight, self._waiting = self._waiting, []
        self._urgent = False
        self._syncing = True
        started = self._clock.monotonic()
        self._in_flight_write_ms = self._write_ms
        throttled_since = self._throttled_since or started
        self._in_flight_throttle_ms = int((started - throttled_since) * 1e6) / 1000
        self._throttled_since = 0.0
        self._unsynced_since = self._sync_started = started
        run = partial(self._timed, sync.run)
        if is_small and len(self._in_flight) == 1 and self._sync_seconds < FAST_SYNC_SECONDS:
            try:
                outcome: float | OSError = run()
            except OSError as error:
                outcome = error
            self._synced(sync, outcome)
        else:
            self._thread.submit(run, partial(self._synced, sync))

    def _timed(self, run: Callable[[], None]) -> float:
        started = self._clock.monotonic()
        run()
        return self._clock.monotonic() - started

    def _synced(self, sync: Sync, outcome: float | OSError) -> None:
        self._syncing = False
        if isinstance(outcome, OSError):
            self._fail(outcome)
            return
        if self.failed is not None:
            return
        self.counters.syncs += 1
        self.counters.sync_seconds += outcome
        self.counters.sync_us.counts[int(outcome * 1e6).bit_length()] += 1
        self._sync_seconds += (outcome - self._sync_seconds) * 0.2
        self._writer.synced(sync)
        self.synced_position = sync.position
        entries, self._in_flight = self._in_flight, []
        self._measure_room()
        throttle_ms = self._in_flight_throttle_ms or UNSET
        self._publish(entries, CommitTimes(self._in_flight_write_ms, int(outcome * 1e6) / 1000, throttle_ms))
        self._reader_syncs.synced()
        if self._data_end <= sync.position:
            self._unsynced_since = None
        self.is_lagging = (self._data_end - sync.position) * 2 > self._bounds.unsynced_bytes_max
        if self._urgent and not self._syncing:
            self._start_urgent_sync()

    def _fail(self, error: OSError) -> None:
        """Refuse all waiting entries, which are in doubt until recovery decides, and later writes (G4)."""
        if self.failed is not None:
            return
        logger.error("wal: write or sync failed, the worker restarts: %s", error)
        message = "the disk failed, the shard restarts; retry after 1 s"
        self.failed = Refusal(STORAGE_FAILED, message, retry_after_ms=RETRY_AFTER_MS)
        self._gate = self.failed
        self._is_batch_waiting = self._is_held = False
        self._measure_room()
        self._writer.note_sync_failure()
        batch = self.batch
        self.batch = Batch(batch.next_position, batch.next_ordinal)
        waiting = self._in_flight + self._waiting + batch.entries()
        self._in_flight, self._waiting = [], []
        refuse(waiting, self.failed)
        self._on_failure(error)

    # -- the background ----------------------------------------------------------------------------------

    def _keep_ticking(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(self._bounds.sync_interval_seconds, self._tick)

    def _tick(self) -> None:
        """Start a background sync, log that all is synced, or retry making the next file."""
        self._ticking = False
        if self.failed is not None or self._closed:
            return
        more = self._on_tick()
        now = self._clock.monotonic()
        if self._unsynced_since is not None and now - self._unsynced_since > LAG_SECONDS:
            self.is_lagging = True
        if self.synced_position < self._data_end:
            if not self._syncing:
                self._start_sync()
        elif self.batch.is_empty and not (self._idle_marked or self._is_batch_waiting or self.is_disk_full):
            # The BatchEnd records the synced offset: damage before it is no torn tail.
            self._idle_marked = self._write(self.batch)
        self._next_file.retry()
        if more or not self._idle_marked or self._next_file.is_missing:
            self._keep_ticking()

    def _space_changed(self) -> None:
        self._measure_room()
        self._keep_ticking()

    # -- the end -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync and publish all that has joined, with the work it triggers; blocks the event loop."""
        self.release()
        self.commit()
        end = self._writer.end
        while self.failed is None and (
            self._is_batch_waiting or self._syncing or self.synced_position < end.position
        ):
            if not self._syncing and not self._is_batch_waiting:
                self._start_sync()
            self._thread.drain()
            self.commit()
            end = self._writer.end

    def refuse_and_flush(self) -> None:
        self._gate = self._gate or shutting_down()
        self._measure_room()
        self.flush()

    def close(self) -> None:
        """Write and sync everything, answer all waiting entries, and write a clean end to CURRENT.

        Raises OSError when CURRENT cannot be written; after a failure of the log it is left as it is.
        """
        self.flush()
        self.abandon()
        self._thread.stop()
        if self.failed is None:
            self._writer.write_clean_end()

    def abandon(self) -> None:
        """Stop background work before the files are closed."""
        self._closed = True
