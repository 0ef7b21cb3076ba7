"""The schedule of checkpoints, and the removal of files after each.

A checkpoint runs when the log has begun another file, or would have if copies were not by reference; an
interval after the first new frame; and at a clean stop. Dropped data is removed once no kept snapshot names
it: for that another checkpoint runs after an interval even if nothing was written. One runs at a time. A
failed one is retried after `RETRY_SECONDS`, and the log keeps everything meanwhile.

With an object store, a checkpoint that meets a full disk is followed by snapshots that copy no record and
name what was exported since (`repeat_snapshot.py`), so that its local records can be dropped. A reserve gives
them room.

Other jobs that copy records into segments run in an exclusive section: no checkpoint runs beside them, and
nothing else exchanges runs, since upkeep waits for both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from shared.runtime.disk_thread import Loop
from shared.settings.store_url import store_url_of
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, parse_wal_name, topic_dir_name
from topicsd.engine.checkpoint.job import (
    CheckpointJob,
    FilesToDrop,
    files_to_drop_of,
    files_to_drop_section,
    unused_files,
    without_files_to_drop,
)
from topicsd.engine.checkpoint.manifest import write_manifest
from topicsd.engine.checkpoint.reader_lock import readers_held
from topicsd.engine.checkpoint.repeat_snapshot import encode_again, exported_entries, note_named, read_again
from topicsd.engine.checkpoint.reserve import Reserve
from topicsd.engine.checkpoint.segment_copy import Files, SegmentBounds
from topicsd.engine.checkpoint.snapshot_files import (
    KEPT_COUNT,
    drop_old_snapshots,
    snapshot_numbers,
    write_snapshot,
)
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.checkpoint.trash import empty_deleted, mark_deleted, move_to_trash, purge
from topicsd.engine.jobs import Background, BackgroundJob, Operation
from topicsd.engine.state import ShardState
from topicsd.engine.upkeep.tiering import delete_copy
from topicsd.log.current_file import read_current
from topicsd.log.files import LogPlace
from topicsd.log.writer import NO_SPACE
from topicsd.segment.entry import COLD, DATA, SUFFIXES, SegmentName, parse_object_stem
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.store import SegmentStore

logger = logging.getLogger("topicsd.engine")

T = TypeVar("T")

RETRY_SECONDS = 5.0
DELETES_AT_ONCE = 64
"""Objects of this many segments are deleted before readers and backups are looked for again."""


class Checkpointer:
    """The checkpoints of one shard."""

    def __init__(
        self,
        shard: ShardState,
        loop: Loop,
        background: Background,
        files: Files,
        hot: SegmentStore,
        cold: SegmentStore | None,
        snapshot: Snapshot | None,
        has_more: bool,
        has_store: bool,
        on_end: Callable[[], None],
    ) -> None:
        """Continue from a start with `snapshot`, after which the log held more if `has_more`.

        With `has_store` there is an object store. `on_end` is called when a checkpoint has ended.
        """
        settings = shard.settings
        self._shard = shard
        self._loop = loop
        self._background = background
        self._files = files
        self._hot = hot
        self._cold = cold
        self._reserve = Reserve(files.fs, files.paths) if has_store else None
        self._bounds = SegmentBounds.of(settings)
        self._on_end = on_end
        self._interval_seconds = settings.checkpoint_interval_ms / 1000
        numbers = snapshot_numbers(files.fs, files.paths)
        self._next_number = numbers[0] + 1 if numbers else 1
        self._starts: dict[int, LogPlace] = {}
        """For each kept snapshot, where replay would begin."""
        self._damaged = set(numbers)
        self._files_to_drop: list[FilesToDrop] = []
        self._job: CheckpointJob | None = None
        """The checkpoint in progress, until the files that it lists are in `_files_to_drop`."""
        if snapshot is not None:
            self._files_to_drop = unused_files(shard, files_to_drop_of(snapshot.head))
            self._starts[snapshot.head.number] = snapshot.head.start
            self._damaged = {number for number in numbers if number > snapshot.head.number}
        self._file = place.file if (place := shard.log.place) is not None else 0
        self._frames_done = -1 if has_more else shard.log.frame_count
        self._is_needed = False
        """True from the start of a checkpoint until one succeeds: a failed one is retried even if nothing is
        written."""
        self.is_running = False
        """Whether a checkpoint or an exclusive section runs."""
        self.failure: Exception | None = None
        """The error of the last checkpoint."""
        self.count = 0
        """The number of successful checkpoints."""
        self._callbacks: list[Callable[[Exception | None], object]] = []
        self._sections: list[Callable[[None], object]] = []
        """Jobs that wait for their exclusive section."""
        self._is_timer_set = False
        self._is_retry_set = False
        self._is_disk_full = False
        self._room_at = 0.0
        if self._files_to_drop:
            self._start_timer()

    def tick(self) -> None:
        """Start a checkpoint if one is due; called at each background sync of the log."""
        place = self._shard.log.place
        if self._shard.log.is_disk_full:
            self._make_room()
        if self.is_running or place is None or not self._has_work:
            return
        is_large = self._shard.referred_bytes >= self._shard.settings.wal_file_bytes
        if (is_large and not self._is_retry_set) or (self._file and place.file != self._file):
            self.start()
        else:
            self._start_timer()
        self._file = self._file or place.file

    def _start_timer(self) -> None:
        if not self._is_timer_set:
            self._is_timer_set = True
            self._loop.call_later(self._interval_seconds, self._on_interval)

    def _make_room(self) -> None:
        """Free space, since writes are refused for lack of it: first the trash, then the log."""
        now = self._shard.clock.monotonic()
        if not self.is_running and now >= self._room_at:
            self._room_at = now + RETRY_SECONDS
            self._is_disk_full = True
            self.start()

    @property
    def _has_work(self) -> bool:
        return self._is_needed or self._shard.log.frame_count > self._frames_done

    def _on_interval(self) -> None:
        self._is_timer_set = False
        self._start_if_due()

    def _start_if_due(self) -> None:
        is_due = self._has_work or self._files_to_drop
        if is_due and not self.is_running and self._shard.log.failed is None:
            self.start()

    def start(self, on_end: Callable[[Exception | None], object] = lambda outcome: None) -> None:
        """Begin a checkpoint unless one is running; call `on_end` at its end."""
        self._callbacks.append(on_end)
        if self.is_running:
            return
        self.is_running = self._is_needed = True
        self._background.start(self._run(), self._on_job_end)

    def exclusive(self, job: BackgroundJob[T]) -> BackgroundJob[T]:
        """Run a job while no checkpoint runs; a checkpoint that is requested meanwhile follows."""
        while self.is_running:
            yield Operation(self._sections.append)
        self.is_running = True
        try:
            return (yield from job)
        finally:
            self.is_running = False
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Start what waited for the end of a checkpoint or of an exclusive section: sections first."""
        if self._sections:
            sections, self._sections = self._sections, []
            for resume in sections:
                self._loop.call_soon(resume, None)
        elif self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                self.start(callback)
        elif self._has_work or self._files_to_drop:
            self._start_timer()  # It may have run out during a section.

    def _on_job_end(self, outcome: Exception | None) -> None:
        self.is_running = False
        self._is_needed = outcome is not None
        self.failure = outcome
        self._on_end()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(outcome)
        if isinstance(outcome, Exception):
            logger.error("checkpoint: failed, the log keeps its records: %s", outcome)
            self._is_disk_full = isinstance(outcome, OSError) and outcome.errno in NO_SPACE
            self._schedule_retry()
        elif self._files_to_drop:
            self._start_timer()
        if self._sections:
            self._start_waiting()

    def _schedule_retry(self) -> None:
        """Schedule one retry, however many attempts have failed: those to free space fail too."""
        if not self._is_retry_set:
            self._is_retry_set = True
            self._loop.call_later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._is_retry_set = False
        self._start_if_due()

    def run_now(self) -> None:
        """Run a checkpoint at a clean stop, blocking the event loop.

        OSError when it failed, which costs the next start a replay.
        """
        if self._has_work and self._shard.log.place is not None:
            self._background.run_now(self._run())

    def close(self) -> None:
        if self._reserve is not None:
            self._reserve.release()

    def _run(self) -> BackgroundJob[None]:
        if self._is_disk_full:
            yield from self.purge()
        if self._reserve is None:
            yield from self._checkpoint()
            return
        yield self._reserve.keep
        try:
            yield from self._checkpoint()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._is_disk_full = True
            yield from self._drop_exported(self._reserve)
            raise

    def _drop_exported(self, reserve: Reserve) -> BackgroundJob[None]:
        """Drop local records of exported segments although the disk has no room for a checkpoint."""
        for _ in range(KEPT_COUNT):
            if not (self._starts and (yield from self._repeat_snapshot(reserve))):
                break
            yield from self._drop()
        yield from self.purge()
        yield reserve.keep

    def _repeat_snapshot(self, reserve: Reserve) -> BackgroundJob[bool]:
        """Write the newest snapshot again, with what was exported since; return False if that is no use."""
        fs, paths, shard = self._files.fs, self._files.paths, self._shard
        last = max(self._starts)
        exported = yield from exported_entries(shard)
        if not (exported or self._files_to_drop):
            return False
        repeated = yield partial(read_again, fs, paths, last, exported)
        files_to_drop = self._files_to_drop
        number, self._next_number = self._next_number, self._next_number + 1
        if repeated.exported:
            files_to_drop = [*files_to_drop, FilesToDrop(number, [], [], repeated.exported)]
        if not files_to_drop:
            return False
        sections = without_files_to_drop(repeated.snapshot.head)
        sections |= files_to_drop_section(files_to_drop, shard.objects_to_delete)
        head = msgspec.structs.replace(repeated.snapshot.head, number=number, sections=sections)
        snapshot = repeated.snapshot._replace(head=head)
        written = yield from encode_again(snapshot, store_url_of(shard.settings))
        yield reserve.release
        yield partial(write_snapshot, fs, paths, number, written.snapshot)
        self._starts[number] = head.start
        self._files_to_drop = files_to_drop
        note_named(shard, repeated.exported)
        yield partial(write_manifest, fs, paths, written.manifest)
        if repeated.exported:
            count = len(repeated.exported)
            logger.warning("checkpoint: disk full: local records of %d exported segments are dropped", count)
        return True

    def _checkpoint(self) -> BackgroundJob[None]:
        frames = self._shard.log.frame_count
        place = self._shard.log.place
        self._file = 0 if place is None else place.file
        job = CheckpointJob(
            self._shard, self._files, self._hot, self._bounds, self._next_number, self._files_to_drop
        )
        self._next_number += 1
        self._job = job
        try:
            result = yield from job.run()
            if result is not None:
                self._starts[result.head.number] = result.head.start
                self._files_to_drop = result.files_to_drop
        finally:
            self._job = None
        if result is not None:
            yield partial(job.write_manifest, result.head)
        self._frames_done = frames + job.frame_count
        self.count += 1
        self._is_disk_full = False
        if self._starts:
            yield from self._drop()
            yield from self.purge()

    def is_to_drop(self, topic_id: int, epoch: int) -> bool:
        """Return whether the files of this incarnation are still to be dropped."""
        incarnation = (topic_id, epoch)
        if self._job is not None and incarnation in self._job.deleted:
            return True
        deleted = [(topic.topic_id, topic.epoch) for topic in self._shard.deleted_topics]
        return incarnation in deleted or any(incarnation in one.topics for one in self._files_to_drop)

    # -- removal of files that are not needed ----------------------------------------------------------------

    def _drop(self) -> BackgroundJob[None]:
        fs, paths = self._files.fs, self._files.paths
        kept = yield partial(drop_old_snapshots, fs, paths, damaged=self._damaged)
        self._starts = {number: start for number, start in self._starts.items() if number in kept}
        if len(self._starts) == len(kept):
            oldest = min(start.file for start in self._starts.values())
            self._shard.files.drop_before(oldest)
            yield partial(drop_log_files, fs, paths, oldest, self._shard.clock.now_ms())
        while self._files_to_drop and self._files_to_drop[0].number <= min(kept):
            yield from self._remove_files(self._files_to_drop[0])
            self._files_to_drop = self._files_to_drop[1:]

    def _remove_files(self, files_to_drop: FilesToDrop) -> BackgroundJob[None]:
        fs, paths = self._files.fs, self._files.paths
        for name in files_to_drop.exported:
            self._shard.segments.forget(name)
            # The other files stay: nothing but .data is read from the object store (`upkeep/tiering.py`).
            yield partial(self._trash, name, (DATA,))
        for one in files_to_drop.segments:
            self._shard.segments.forget(one.name)
            if one.object_stem:
                # Upkeep deletes them: the store may be away, and no checkpoint waits for it.
                self._shard.objects_to_delete.setdefault(one.object_stem, self._shard.clock.now_ms())
            elif one.tier == COLD and self._cold is not None:
                yield partial(delete_copy, self._cold, one.name)
            yield partial(self._trash, one.name, SUFFIXES)
        for topic_id, epoch in files_to_drop.topics:
            yield partial(mark_deleted, fs, paths, topic_id, epoch)
            if self._cold is not None:
                yield partial(delete_topic_files, self._cold, topic_id, epoch)
        if files_to_drop.adopted:
            yield partial(self._trash_bundles, files_to_drop.adopted)
        while files_to_drop.topics and (yield partial(empty_deleted, fs, paths, self._shard.clock.now_ms())):
            pass

    def _trash(self, name: SegmentName, suffixes: Iterable[str]) -> None:
        paths = self._files.paths
        files = [os.path.join(paths.root, name.key(suffix)) for suffix in suffixes]
        move_to_trash(self._files.fs, paths, files, self._shard.clock.now_ms())

    def _trash_bundles(self, adopted: Iterable[tuple[int, int]]) -> None:
        paths = self._files.paths
        files = [paths.bundle(*incarnation) for incarnation in adopted]
        move_to_trash(self._files.fs, paths, files, self._shard.clock.now_ms())

    def delete_objects(self, objects: SegmentObjects) -> BackgroundJob[None]:
        """Delete objects whose grace time has ended; what fails stays listed. Called by upkeep (R3).

        What a backup refers to stays listed too.
        """
        listed, grace_ms = self._shard.objects_to_delete, self._shard.settings.reader_grace_ms
        due = [stem for stem, at in listed.items() if self._shard.clock.now_ms() >= at + grace_ms]
        if self._shard.released_stems is not None:
            due = [stem for stem in due if stem in self._shard.released_stems]
        for at in range(0, len(due), DELETES_AT_ONCE):
            if (yield partial(readers_held, self._files.fs, self._files.paths)):
                return
            some = due[at : at + DELETES_AT_ONCE]
            # No backup refers to a state object, and each export replaces one.
            free = [stem for stem in some if not parse_object_stem(stem)[2]]
            if segments := [stem for stem in some if parse_object_stem(stem)[2]]:
                now = self._shard.clock.monotonic()
                free += yield partial(objects.referred.without, segments, now)
            for stem in free:
                yield partial(objects.delete, stem)
                del listed[stem]

    def purge(self) -> BackgroundJob[None]:
        """Unlink files whose grace time in the trash has ended; also called between checkpoints."""
        fs, paths = self._files.fs, self._files.paths
        grace_ms = self._shard.settings.reader_grace_ms
        are_held = yield partial(readers_held, fs, paths)
        while True:
            now_ms = self._shard.clock.now_ms()
            if not (yield partial(purge, fs, paths, now_ms, grace_ms, are_held, self._is_disk_full)):
                return


def drop_log_files(fs: Fs, paths: ShardPaths, oldest: int, now_ms: int) -> None:
    """Drop the WAL files before `oldest`, where replay of the older snapshot begins.

    On a full disk CURRENT may lag, and the file that it names has to be kept.
    """
    current = read_current(fs, paths.current)
    if current is not None:
        oldest = min(oldest, current.file)
    ordinals = (parse_wal_name(name) for name in fs.list_dir(paths.wal))
    files = [paths.wal_file(ordinal) for ordinal in ordinals if ordinal is not None and ordinal < oldest]
    if not files:
        return
    if readers_held(fs, paths):
        move_to_trash(fs, paths, files, now_ms)
        return
    # The oldest first, without a sync: files that a power cut restores precede the snapshots.
    for file in files:
        fs.unlink(file)


def delete_topic_files(store: SegmentStore, topic_id: int, epoch: int) -> None:
    """Delete a removed topic's files in the cold directory, which has no trash."""
    for key in store.list(f"topics/{topic_dir_name(topic_id, epoch)}/"):
        store.delete(key)
