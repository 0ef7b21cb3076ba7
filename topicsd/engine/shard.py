"""One open shard: its start, its background jobs and its end. Programs that embed the log begin here.

One event loop drives the shard, and every call must be made on it; disk threads wait for the disk. A write is
answered through its `reply` when its durability class is satisfied; a read is answered at once, or when a
thread has read a sealed segment.

The operations are functions on its `state`, in the folder of their subject. The path of a write:
`write/append.py` checks and frames it, `log/batch.py` collects everything that joins in one turn of the loop,
`log/group_commit.py` writes it and waits for the disk, and `PendingAppend.publish` makes it visible.

`open_shard` opens a shard of a data directory on the real disk, and creates a directory that does not exist.
Placement of topics on shards is up to the caller (`shared/ipc/placement.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shared.contract.errors import Refusal, shutting_down
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.disk_thread import Loop, Threads, start_threads
from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from shared.settings.store_url import store_folder, store_url_of
from topicsd.disk.access import os_error_sentence
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import (
    INSTANCE_BYTES,
    Layout,
    LayoutError,
    ShardPaths,
    create_data_dir,
    make_segment_dirs,
    parse_topic_dir_name,
    parse_wal_name,
    read_layout,
    restore_empty_dirs,
    shard_paths,
)
from topicsd.engine.bundle.adopt import Adopter, drop_unfinished
from topicsd.engine.bundle.gather import Gatherer, refuse_deferred
from topicsd.engine.bundle.segment_source import DirectorySource, SegmentSource, TailSource
from topicsd.engine.bundle.staged_topic import StagedTopics
from topicsd.engine.checkpoint.checkpointer import Checkpointer
from topicsd.engine.checkpoint.job import files_to_drop_of
from topicsd.engine.checkpoint.load import (
    choose_loadable_snapshot,
    load_snapshot,
    log_missing_segments,
    log_unreachable_segments,
)
from topicsd.engine.checkpoint.segment_copy import Files
from topicsd.engine.checkpoint.snapshot_files import drop_leftovers, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import Snapshot, SnapshotDamage
from topicsd.engine.jobs import Background
from topicsd.engine.ownership.catalog_work import Node
from topicsd.engine.ownership.exporter import Exporter
from topicsd.engine.ownership.hand_on import HandOn
from topicsd.engine.ownership.rounds import CatalogRounds
from topicsd.engine.pending import PendingFrame
from topicsd.engine.replay import Replay, lose_range
from topicsd.engine.retention.eviction_log import log_floors_again
from topicsd.engine.schedules.runner import ScheduleRunner
from topicsd.engine.shard_data import DeletedTopic
from topicsd.engine.spool import Spool
from topicsd.engine.state import ShardState
from topicsd.engine.upkeep.upkeep import Upkeep
from topicsd.engine.wakeups.pressure import PressureGauge
from topicsd.engine.write.seq_ceiling import (
    lost_tail,
    lower_all_ceilings,
    lower_quiet_ceilings,
    resume_ceiling,
    resume_ephemeral,
)
from topicsd.log import control_frame
from topicsd.log.batch import Bounds
from topicsd.log.file_header import UnknownVersion
from topicsd.log.files import LogFiles
from topicsd.log.group_commit import BATCH_BYTES_MAX, GroupCommit
from topicsd.log.recovery import OnProgress, Recovery, RecoveryRefused, RecoveryResult, noop
from topicsd.log.walk import BatchRefused, SnapshotLogState, UnreadableLog
from topicsd.log.writer import Identity, LogEnd, LogWriter
from topicsd.segment.dead_file import DeadDamage
from topicsd.segment.entry import SegmentDamage
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore, SegmentStore
from topicsd.store.metered import MeteredStore
from topicsd.store.open_store import open_store

logger = logging.getLogger("topicsd.engine")


class Shard:
    """A shard that is open for requests."""

    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        loop: Loop,
        threads: Threads,
        paths: ShardPaths,
        identity: Identity,
        settings: Settings,
        on_failure: Callable[[OSError], None],
        on_progress: OnProgress = noop,
        store: MeteredStore | None = None,
        node: Node | None = None,
    ) -> None:
        """Open the shard and recover its log; `store` replaces the object store of the settings.

        With a `node`, the shard takes part in a catalog.

        `on_progress` is called while the log is read; an exception that it raises aborts the start.

        Raise `DirectoryInUse`, `RecoveryRefused` or `UnreadableLog`, with the cause as a sentence.
        """
        self.identity = identity
        self._lock = DirLock(fs, paths.lock)
        self._files = LogFiles(fs)
        self.stores = _stores(fs, paths, identity.shard, settings, store)
        segments = SegmentReader(*self.stores)
        self.state = state = ShardState(clock, settings, self._files, segments, loop, threads, identity.shard)
        self._threads = threads
        self.spool = Spool(fs, paths, settings)
        bounds = Bounds(
            settings.sync_interval_ms / 1000, settings.max_waiting_bytes, settings.max_waiting_requests
        )
        try:
            make_segment_dirs(fs, paths)
            snapshot = self._load(fs, paths, identity)
            known = None if snapshot is None else _known(snapshot)
            recovery = Recovery(fs, paths, identity, self._files, known, on_progress)
            replay = Replay(state, 0 if snapshot is None else snapshot.head.end_ordinal)
            recovered = recovery.run(replay.batch)
            end, size = _start_of_log(recovered.end, clock, settings), settings.wal_file_bytes
            exact, place = recovered.heads_exact, recovered.place
            writer = LogWriter(fs, clock, paths, identity, self._files, end, size, exact, place)
            self.log = GroupCommit(clock, loop, threads.sync, writer, bounds, on_failure, self._on_tick)
            self._background = Background(loop, threads.copy, self.log)
            state.open(self.log, self._background)
            self.pressure = PressureGauge(clock, loop, state.wake_queue, self.log)
            self._resume_heads(recovered)
            writer.record_boot_id()
            if not recovered.is_finished and not writer.has_file:
                recovery.finish()
            self._drop_unfinished(fs, paths, snapshot, replay)
            files = Files(fs, paths, identity, self._files)
            self._start_jobs(loop, files, snapshot, replay.frames > 0, exports=node is None)
            self._start_catalog(fs, loop, node)
        except BatchRefused as error:
            self._release()
            raise RecoveryRefused(f"{paths.wal}/{error.place}: {error}") from error
        except OSError as error:
            self._release()
            raise RecoveryRefused(_describe_failed_call(paths, error)) from error
        except (SnapshotDamage, SegmentDamage, DeadDamage, UnknownVersion) as error:
            self._release()
            raise RecoveryRefused(f"{paths.root}: {error}") from error
        except Exception:
            self._release()
            raise

    # -- operations --------------------------------------------------------------------------------------

    def topic_names(self) -> list[str]:
        return [name for name in self.state.sorted_names() if self.state.topics[name].visible]

    def start_checkpoint(self, done: Callable[[Exception | None], object] = lambda outcome: None) -> None:
        """Start a checkpoint now, which copies records from the log into segments.

        `done` is called when the checkpoint ends; a checkpoint that is already running counts.
        """
        self.checkpoints.start(done)

    # -- the end -----------------------------------------------------------------------------------------

    def prepare_to_close(self, done: Callable[[Exception | None], object]) -> None:
        """Run the checkpoint for which `close` would block the loop; `done` is called at its end."""
        lower_all_ceilings(self.state)
        self.checkpoints.start(done)

    def close(self, checkpoint: bool = True) -> None:
        """Sync and answer everything that joined, and record a clean end in CURRENT.

        Raise OSError when that fails; the next start then runs a recovery. The directory is released either
        way.
        """
        try:
            self.pressure.stop()
            self.schedules.stop()
            self.upkeep.stop()
            self._upkeep_jobs.stop()
            if self.exporter is not None:
                self.exporter.stop()
            if self.catalog is not None:
                self.catalog.stop()
                self.catalog.close()
            self._background.stop()
            for topic in self.state.frozen:
                refuse_deferred(topic, shutting_down())
            self.log.refuse_and_flush()
            if self.log.failed is None:
                lower_all_ceilings(self.state)
                if checkpoint:
                    self._checkpoint_now()
            self.log.close()
        finally:
            self._end()

    def _checkpoint_now(self) -> None:
        try:
            self.checkpoints.run_now()
        except OSError as error:
            # Nothing is lost: all records are in the log, from which the next start reads them.
            logger.error("checkpoint: failed at shutdown, the next start replays the log: %s", error)

    def _end(self) -> None:
        for thread in self._threads:
            thread.stop()
        self.checkpoints.close()
        self.state.segments.close()
        self._files.close()
        self._lock.release()

    # -- the start ---------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Release the lock and the files, so that the directory can be repaired."""
        if hasattr(self, "log"):
            self.log.abandon()
        self.state.segments.close()
        self._files.close()
        self._lock.release()

    def _start_jobs(
        self,
        loop: Loop,
        files: Files,
        snapshot: Snapshot | None,
        has_more: bool,
        exports: bool,
    ) -> None:
        """Start the background jobs: checkpoints, schedules, and the upkeep of segments."""
        state = self.state
        hot, cold, objects = self.stores
        self._directory = files
        self.checkpoints = Checkpointer(
            state,
            loop,
            self._background,
            files,
            hot,
            cold,
            snapshot,
            has_more,
            objects is not None,
            self._on_checkpoint_end,
        )
        self.schedules = ScheduleRunner(state)
        self.gatherer = Gatherer(state, self.checkpoints, files, hot)
        self.adopter = Adopter(state, self.checkpoints, files)
        self.staged_topics = StagedTopics(state, self.adopter, files, has_catalog=not exports)
        self._upkeep_jobs = Background(loop, self._threads.keep, self.log)
        self.upkeep = Upkeep(
            state, loop, self._upkeep_jobs, self.checkpoints, hot, objects, cold, exports=exports
        )
        self.upkeep.check_store()
        if state.objects_to_delete or any(topic.has_files for topic in state.topics.values()):
            self.upkeep.wake()

    def segments_of(self, shard: int, tail: Mapping[str, bytes]) -> SegmentSource:
        """Return the segment files of another shard of the directory, and a tail that has none."""
        data_dir = os.path.dirname(os.path.dirname(self._directory.paths.root))
        folders = [data_dir, store_folder(store_url_of(self.state.settings))]
        roots = [shard_paths(folder, shard).root for folder in folders if folder]
        fs = self._directory.fs
        return TailSource(fs, tail, DirectorySource(fs, *roots))

    def _start_catalog(self, fs: Fs, loop: Loop, node: Node | None) -> None:
        self.catalog: CatalogRounds | None = None
        self.exporter: Exporter | None = None
        self.hand_on: HandOn | None = None
        if node is None:
            return
        state, hot, objects = self.state, self.stores.hot, self.stores.objects
        self.catalog = CatalogRounds(state, loop, node)
        self.catalog.start()
        if objects is not None:
            state.released_stems = set()
            self.exporter = Exporter(state, loop, self.catalog, self.checkpoints, hot, objects.store)
            self.exporter.start()
            self.hand_on = HandOn(
                state, self.catalog, self.exporter, self.gatherer, self.adopter, objects.store, fs
            )
            self.hand_on.start()

    def _load(
        self,
        fs: Fs,
        paths: ShardPaths,
        identity: Identity,
    ) -> Snapshot | None:
        drop_leftovers(fs, paths)
        snapshot, complaints, dead = choose_loadable_snapshot(fs, paths, self.state.segments)
        for complaint in complaints:
            logger.error("%s", complaint)
        if snapshot is None:
            _refuse_loss(fs, paths)
            return None
        owner = Identity(snapshot.head.instance, snapshot.head.shard)
        if owner != identity:
            raise UnreadableLog(
                f"{paths.meta}: the snapshot belongs to shard {owner.shard} of instance "
                f"{owner.instance.hex()}, not to shard {identity.shard} of {identity.instance.hex()}"
            )
        log_missing_segments(self.state, snapshot, self.stores.hot)
        load_snapshot(self.state, snapshot, self.stores.hot, dead)
        log_unreachable_segments(self.state, self.stores.cold)
        return snapshot

    def _drop_unfinished(self, fs: Fs, paths: ShardPaths, snapshot: Snapshot | None, replay: Replay) -> None:
        """Drop what a crash left: files of an unfinished adopt, or of a topic deleted before any snapshot."""
        state = self.state
        if replay.deleted:
            directories = set(map(parse_topic_dir_name, fs.list_dir(paths.topics)))
            left = sorted(replay.deleted & directories)
            state.deleted_topics += [DeletedTopic(*incarnation, []) for incarnation in left]
        known = {(topic.topic_id, topic.epoch) for topic in state.topics_by_id.values()}
        known.update((topic.topic_id, topic.epoch) for topic in state.deleted_topics)
        for files_to_drop in [] if snapshot is None else files_to_drop_of(snapshot.head):
            known.update(files_to_drop.topics)
        count = drop_unfinished(fs, paths, known, state.clock.now_ms())
        if count:
            logger.warning("adopt: dropped the files of %d topics whose adopt was not finished", count)

    def _on_checkpoint_end(self) -> None:
        self.upkeep.wake()  # There may be segments now.

    def _on_tick(self) -> bool:
        clock = self.state.clock
        self.checkpoints.tick()
        has_more = self.state.totals.free_some()
        has_more = log_floors_again(self.state, clock.now_ms()) or has_more
        return lower_quiet_ceilings(self.state, clock.monotonic()) or has_more

    def _resume_heads(self, recovered: RecoveryResult) -> None:
        """Resume each head after every seq ever given out; log what may be lost."""
        log = self.log
        refusals: list[Refusal] = []
        pending = PendingFrame(None, refuse=refusals.append)  # `topic.lost` already has the ranges.
        for topic in self.state.topics.values():
            if topic.is_ephemeral:
                resume_ephemeral(topic)
            elif (lost := lost_tail(topic, recovered.heads_exact)) is not None:
                lose_range(topic, lost)
                frame = control_frame.LostRangeFrame(*lost)
                log.join_control_frame(
                    control_frame.encode_control(frame, topic_id=topic.topic_id, ts=topic.last_ts), pending
                )
                logger.warning(
                    'topic "%s": seqs %d to %d may be lost: after a machine crash, or in a copied '
                    "directory, it is unknown whether they were used; readers get a tombstone",
                    topic.name,
                    lost.first,
                    lost.last,
                )
                if log.batch.next_position - log.batch.first_position > BATCH_BYTES_MAX:
                    log.commit()
            topic.next_seq = topic.head + 1
            resume_ceiling(self.state, topic)
        log.flush()
        if refusals:
            raise RecoveryRefused(f"cannot log the lost ranges: {refusals[0].message}")


class Stores(NamedTuple):
    """Where a shard's segments are: the data directory, a cold one of earlier versions, the object store."""

    hot: SegmentStore
    cold: SegmentStore | None
    objects: SegmentObjects | None


def _stores(fs: Fs, paths: ShardPaths, shard: int, settings: Settings, store: MeteredStore | None) -> Stores:
    url = store_url_of(settings)
    folder = store_folder(url)
    cold = LocalStore(fs, shard_paths(folder, shard).root) if folder else None
    if store is None and url:
        store = open_store(url, fs)
    objects = None if store is None else SegmentObjects(store, settings.store_cache_bytes)
    return Stores(LocalStore(fs, paths.root), cold, objects)


def _refuse_loss(fs: Fs, paths: ShardPaths) -> None:
    """Refuse to start with segments or snapshots but neither a good snapshot nor a log.

    Both were lost then, and an empty shard must not take the place of the old one. Without a snapshot the
    log must be complete from its start.
    """
    has_log = any(parse_wal_name(name) is not None for name in fs.list_dir(paths.wal))
    if not has_log and (snapshot_numbers(fs, paths) or fs.list_dir(paths.topics)):
        raise UnreadableLog(f"{paths.root}: segments exist, but no good snapshot and no log")


def _known(snapshot: Snapshot) -> SnapshotLogState:
    head = snapshot.head
    return SnapshotLogState(head.start, head.end_file, head.end_offset)


def _start_of_log(end: LogEnd, clock: Clock, settings: Settings) -> LogEnd:
    """Return the log place at which to resume.

    In memory mode each start begins a new log. Its ordinals, and with them the epochs of its topics, must
    differ from the ordinals of the previous run, so they begin at the current time.
    """
    return end._replace(ordinal=clock.now_ms() * 1000) if settings.memory else end


def _describe_failed_call(paths: ShardPaths, error: OSError) -> str:
    """Describe a failed call with its path, or the shard's path where the error has none."""
    sentence = os_error_sentence(error)
    return sentence if error.filename is not None else f"{paths.root}: {sentence}"


ONE_SHARD = Settings(shards=1)


def open_shard(
    data_dir: str,
    shard: int = 0,
    *,
    settings: Settings = ONE_SHARD,
    loop: Loop | None = None,
    on_failure: Callable[[OSError], None] = lambda error: None,
    node: Node | None = None,
) -> Shard:
    """Open a shard on a loop, by default the running one; all calls must be made on that loop.

    `settings.data_dir` is ignored. With a `node` the shard takes part in a catalog. `on_failure` is called
    once, when the disk fails: from then on the shard refuses writes, and closing and opening it again
    recovers the data on the disk. Raise the exceptions of `Shard`, and `LayoutError` when the directory
    cannot be used.
    """
    fs = RealFs()
    layout = open_layout(fs, data_dir, settings.shards)
    if not 0 <= shard < layout.shards:
        raise LayoutError(
            f"shard: must be from 0 to {layout.shards - 1}, the shards of {data_dir}, got {shard}"
        )
    used_loop = asyncio.get_running_loop() if loop is None else loop
    threads = start_threads(used_loop, shard)
    identity = Identity(layout.instance_bytes, shard)
    paths = shard_paths(data_dir, shard)
    try:
        clock = SystemClock()
        return Shard(fs, clock, used_loop, threads, paths, identity, settings, on_failure, node=node)
    except BaseException:
        for thread in threads:
            thread.stop()
        raise


def open_layout(fs: Fs, data_dir: str, shard_count: int) -> Layout:
    """Return the layout of a data directory; create a new directory with `shard_count` shards.

    With `AUTO` a new directory gets one shard for each core.
    """
    layout = read_layout(fs, data_dir)
    if layout is not None:
        created = restore_empty_dirs(fs, data_dir, layout)
        if created:
            logger.warning(
                "data directory: created %d missing empty directories, which copy tools often omit: %s",
                len(created),
                ", ".join(os.path.relpath(path, data_dir) for path in created),
            )
        return layout
    return create_data_dir(fs, data_dir, new_shard_count(shard_count), os.urandom(INSTANCE_BYTES))


def new_shard_count(shard_count: int) -> int:
    """Return the number of shards of a new directory: one for each core if `shard_count` is `AUTO`."""
    return len(os.sched_getaffinity(0)) if shard_count == AUTO else shard_count
