"""The repair of a damaged log: good records move into segments, and an empty log follows.

This is the part of a repair that works like a checkpoint: load, replay, capture. It runs without the event
loop of a shard, because nothing else writes to the shard during a repair.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import msgspec

from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from topicsd.disk.atomic_replace import replace_file
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.capture import PendingRequests, capture
from topicsd.engine.checkpoint.load import load_snapshot
from topicsd.engine.checkpoint.segment_copy import Files, SegmentBounds, SegmentCopy, write_marks
from topicsd.engine.checkpoint.snapshot_format import KeyGeneration, Snapshot, SnapshotTopic
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.session_log import encode_session, session_section
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.log.current_file import Current, read_current, write_current
from topicsd.log.file_header import EPOCH_BYTES, FILE_HEADER_BYTES, FileHeader, encode_file_header
from topicsd.log.files import LogFiles, LogPlace
from topicsd.log.walk import open_wal_files
from topicsd.log.writer import Identity
from topicsd.offline.check.segment_check import SegmentFiles
from topicsd.offline.repair.salvage import Salvage, file_bytes_max, heads_are_known
from topicsd.segment.data_file import Read
from topicsd.segment.reader import SegmentReader

_CHAIN_BYTES = 8

CopyToQuarantine = Callable[[str, Read, int, int], None]
"""A function that copies a range of a file to quarantine/."""


class Content(NamedTuple):
    """The content of the snapshot that a repair writes."""

    topics: list[SnapshotTopic]
    keys: list[KeyGeneration]
    sections: dict[str, bytes]
    start: LogPlace
    end_ordinal: int
    end_file: int
    end_offset: int


class LogRepair:
    """The repair of one shard's log."""

    def __init__(
        self, fs: Fs, clock: Clock, paths: ShardPaths, identity: Identity, segments: SegmentFiles
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._paths = paths
        self._identity = identity
        self._segments = segments

    def run(self, snapshot: Snapshot | None, copy_to_quarantine: CopyToQuarantine) -> Content:
        """Return the content of a new snapshot, from the old one and the good part of the log.

        All segments and the new log are on the disk when this returns.
        """
        fs = self._fs
        current = read_current(fs, self._paths.current)
        is_distrusted = current is None or current.state == "sync_failed"
        files_found = open_wal_files(fs, self._paths, (lambda _: True) if is_distrusted else None)
        log = LogFiles(fs)
        segments = SegmentReader(self._segments.hot, self._segments.cold)
        state = ShardData(self._clock, Settings(), log, segments)
        start = None if snapshot is None else snapshot.head.start
        begin = 0 if start is None else start.file
        files = [file for file in files_found if file.first_ordinal >= begin]
        for file in files_found[: len(files_found) - len(files)]:
            fs.close(file.fd)
        with closing(log):
            if snapshot is not None:
                load_snapshot(state, snapshot, self._segments.hot)
            salvage = Salvage(fs, state, snapshot)
            salvage.run(files, current, file_bytes_max(files_found))
            salvage.finish(heads_are_known(fs, self._paths, files, current))
            fds = {file.name: file.fd for file in files}
            for gap in salvage.gaps:
                if gap.end > gap.offset:
                    copy_to_quarantine(gap.file, partial(_pread, fs, fds[gap.file]), gap.offset, gap.end)
            ordinal = max([salvage.ordinal, *(file.first_ordinal + 1 for file in files_found)])
            by_name = [state.topics[name] for name in sorted(state.topics)]
            topics = [self._capture(state, log, topic, ordinal) for topic in by_name]
        keys = [KeyGeneration(*columns) for columns in state.idempotency_keys.columns()]
        sections = session_section([encode_session(one) for one in state.watch_sessions.values()])
        place = self._begin_log(ordinal)
        return Content(topics, keys, sections, place, ordinal, ordinal, FILE_HEADER_BYTES)

    def _capture(self, state: ShardData, log: LogFiles, topic: Topic, ordinal: int) -> SnapshotTopic:
        settings = state.settings
        bounds = SegmentBounds.of(settings)
        files = Files(self._fs, self._paths, self._identity, log)
        topic_capture = capture(topic, PendingRequests({}, {}, ordinal))
        copy = SegmentCopy(files, bounds, topic_capture, self._clock.now_ms())
        _drive(copy.run())
        for run, marks in topic_capture.changed:
            write_marks(files, run.name, marks, ordinal)
        return msgspec.structs.replace(topic_capture.entry, segments=copy.entries())

    def _begin_log(self, ordinal: int) -> LogPlace:
        """Write an empty log file that no other file chains to, and a CURRENT that names it."""
        fs, paths, identity = self._fs, self._paths, self._identity
        chain = int.from_bytes(os.urandom(_CHAIN_BYTES), "little")
        epoch = os.urandom(EPOCH_BYTES)
        header = FileHeader(
            identity.shard, identity.instance, epoch, ordinal, chain, FILE_HEADER_BYTES, self._clock.now_ms()
        )
        path = paths.wal_file(ordinal)
        replace_file(fs, path, encode_file_header(header))
        stat = fs.stat(path)
        current = Current(
            state="clean",
            file=ordinal,
            end=FILE_HEADER_BYTES,
            boot_id=fs.boot_id(),
            device=stat.device,
            wal_inode=stat.inode,
        )
        write_current(fs, paths.current, current)
        return LogPlace(ordinal, FILE_HEADER_BYTES, ordinal, chain)


def _drive(job: BackgroundJob[Any]) -> None:
    """Run a job of the checkpoint to its end, without yielding to an event loop."""
    result: Any = None
    try:
        while True:
            step = job.send(result)
            result = step() if callable(step) else None
    except StopIteration:
        return


def _pread(fs: Fs, fd: int, offset: int, size: int) -> bytes:
    return fs.pread(fd, size, offset)
