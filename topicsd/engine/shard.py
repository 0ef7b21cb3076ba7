"""One shard, open: what can be asked of it, and how it begins and ends.

It is driven by one event loop and one disk thread, and every call is made on the loop. A write is answered
through the `reply` that comes with it, when its class is satisfied; reads answer at once.

The walk of a write: `append.py` checks and frames it, `wal/batch.py` gathers what joined in this turn of the
loop, `wal/group_commit.py` writes it and waits for the disk, and `PendingAppend.publish` makes it visible.

Must not know: HTTP, other shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shared.clock import Clock
from shared.config import Settings
from shared.contract import TopicConfigPatch
from shared.errors import Refusal
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.engine import append, delete, read, topic_admin
from topicsd.engine.ceilings import lower_all_ceilings, lower_quiet_ceilings, resume_ceiling
from topicsd.engine.replay import Replay, lose_range
from topicsd.engine.requests import (
    AppendRequest,
    DeleteRequest,
    ReadAnswer,
    ReadRequest,
    Reply,
    TopicState,
)
from topicsd.engine.resume_head import LossNotes, lost_tail, resume_ephemeral
from topicsd.engine.shard_state import ShardState
from topicsd.engine.trim_report import log_floors_again
from topicsd.engine.watch import Watch
from topicsd.wal import control_frame
from topicsd.wal.group_commit import BATCH_BYTES_MAX, Bounds, GroupCommit
from topicsd.wal.log_files import LogFiles
from topicsd.wal.log_walk import BatchRefused
from topicsd.wal.recovery import OnProgress, Recovered, Recovery, RecoveryRefused, tell_nobody
from topicsd.wal.sync_thread import DiskThread, Loop
from topicsd.wal.writer import Identity, LogWriter

logger = logging.getLogger("topicsd.engine")


class Shard:
    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        loop: Loop,
        thread: DiskThread,
        paths: ShardPaths,
        identity: Identity,
        settings: Settings,
        on_failure: Callable[[OSError], None],
        on_progress: OnProgress = tell_nobody,
    ) -> None:
        """Open the shard: recover its log, and be ready for the first request.

        `on_progress` is called while the log is read, and what it raises ends the start.

        Raises `DirectoryInUse`, `RecoveryRefused` or `UnreadableLog`; each says why in a sentence.
        """
        self._lock = DirLock(fs, paths.lock)
        self._files = LogFiles(fs)
        self.state = ShardState(clock, settings, self._files)
        self.state.watch = Watch(loop)
        recovery = Recovery(fs, paths, identity, self._files, on_progress)
        replay = Replay(self.state)
        bounds = Bounds(
            settings.sync_interval_ms / 1000, settings.max_waiting_bytes, settings.max_waiting_requests
        )
        try:
            recovered = recovery.run(replay.batch)
            end, size = recovered.end, settings.wal_file_bytes
            writer = LogWriter(fs, clock, paths, identity, self._files, end, size, recovered.heads_exact)
            self.log = self.state.log = GroupCommit(clock, loop, thread, writer, bounds, on_failure)
            self.log.on_tick = self._in_background
            self._resume_heads(recovered)
            writer.vouch()
            if not recovered.is_settled and not writer.has_file:
                recovery.settle()
        except BatchRefused as error:
            self._give_up()
            raise RecoveryRefused(f"{paths.wal}/{error.place}: {error}") from error
        except OSError as error:
            self._give_up()
            raise RecoveryRefused(f"{paths.wal}: {error}") from error
        except Exception:
            self._give_up()
            raise

    # -- what can be asked -------------------------------------------------------------------------------

    def append(self, topic: str, request: AppendRequest, reply: Reply) -> None:
        append.append(self.state, topic, request, reply)

    def read(self, topic: str, request: ReadRequest) -> ReadAnswer | Refusal:
        return read.read(self.state, topic, request)

    def delete_records(self, topic: str, request: DeleteRequest, reply: Reply) -> None:
        delete.delete_records(self.state, topic, request, reply)

    def put_topic(self, topic: str, patch: TopicConfigPatch, reply: Reply) -> None:
        topic_admin.put_topic(self.state, topic, patch, reply)

    def delete_topic(self, topic: str, reply: Reply, *, if_empty: bool = False) -> None:
        topic_admin.delete_topic(self.state, topic, if_empty, reply)

    def topic_state(self, topic: str) -> TopicState | Refusal:
        return topic_admin.topic_state(self.state, topic)

    def topic_names(self) -> list[str]:
        return [name for name in self.state.sorted_names() if self.state.topics[name].visible]

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the run: all that joined is synced and answered, and CURRENT says that this was the end.

        OSError when that cannot be had. The next start recovers, and this one lets go of the directory.
        """
        try:
            self.log.shut()
            if self.log.failed is None:
                lower_all_ceilings(self.state)
            self.log.close()
        finally:
            self._files.close()
            self._lock.release()

    # -- the beginning -----------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """The start was refused: the directory is free for whoever mends it."""
        if hasattr(self, "log"):
            self.log.abandon()
        self._files.close()
        self._lock.release()

    def _in_background(self) -> bool:
        clock = self.state.clock
        has_unlogged = log_floors_again(self.state, clock.now_ms())
        return lower_quiet_ceilings(self.state, clock.monotonic()) or has_unlogged

    def _resume_heads(self, recovered: Recovered) -> None:
        """Go on behind every seq that was ever given out, and say which of them lost their records."""
        log = self.log
        notes = LossNotes()
        for topic in self.state.topics.values():
            if topic.is_ephemeral:
                resume_ephemeral(topic)
            elif (lost := lost_tail(topic, recovered.heads_exact)) is not None:
                lose_range(topic, lost)
                frame = control_frame.LostRange(*lost)
                log.join_in_passing(
                    control_frame.encode_control(frame, topic_id=topic.topic_id, ts=topic.last_ts), notes
                )
                logger.warning('topic "%s": seqs %d to %d may be lost', topic.name, lost.first, lost.last)
                if log.batch.next_position - log.batch.first_position > BATCH_BYTES_MAX:
                    log.commit()
            topic.next_seq = topic.head + 1
            resume_ceiling(self.state, topic)
        log.settle()
        if notes.refusal is not None:
            raise RecoveryRefused(f"what may be lost could not be noted: {notes.refusal.message}")
