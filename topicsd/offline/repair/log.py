"""The repair of a damaged log: good records move into segments, and an empty log follows.

This is the part of a repair that works like a checkpoint: load, replay, capture. It runs without the event
loop of a shard, because nothing else writes to the shard during a repair.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import NamedTuple

import msgspec

from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.capture import PendingRequests, capture
from topicsd.engine.checkpoint.job import debts_of
from topicsd.engine.checkpoint.load import load_snapshot
from topicsd.engine.checkpoint.segment_copy import Files, SegmentBounds, SegmentCopy, write_marks
from topicsd.engine.checkpoint.snapshot_format import (
    KeyGeneration,
    Snapshot,
    SnapshotTopic,
    epoch_floor_section,
)
from topicsd.engine.jobs import run_blocking
from topicsd.engine.ownership.departed import DEPARTED, TO_FORGET, departed_sections
from topicsd.engine.session_log import encode_session, session_section
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.log.current_file import read_current
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.files import LogFiles, LogPlace
from topicsd.log.walk import open_wal_files
from topicsd.log.writer import Identity
from topicsd.offline.check.segment_check import SegmentFiles
from topicsd.offline.empty_log import begin_empty_log
from topicsd.offline.repair.salvage import Salvage, file_bytes_max, heads_are_known
from topicsd.segment.data_file import Read
from topicsd.segment.reader import SegmentReader

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
        segments = SegmentReader(*self._segments)
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
            # Also departed ones: their files are kept.
            by_name = sorted(state.topics_by_id.values(), key=lambda topic: topic.name)
            topics = [self._capture(state, log, topic, ordinal) for topic in by_name]
        keys = [KeyGeneration(*columns) for columns in state.idempotency_keys.columns()]
        sections = session_section([encode_session(one) for one in state.watch_sessions.values()])
        sections |= epoch_floor_section(state.epoch_floor)
        sections |= {} if snapshot is None else debts_of(snapshot.head)
        sections = {name: data for name, data in sections.items() if name not in (DEPARTED, TO_FORGET)}
        sections |= departed_sections(state.departed, state.to_forget)
        place = begin_empty_log(fs, self._clock, self._paths, self._identity, ordinal)
        return Content(topics, keys, sections, place, ordinal, ordinal, FILE_HEADER_BYTES)

    def _capture(self, state: ShardData, log: LogFiles, topic: Topic, ordinal: int) -> SnapshotTopic:
        settings = state.settings
        bounds = SegmentBounds.of(settings)
        files = Files(self._fs, self._paths, self._identity, log)
        topic_capture = capture(topic, PendingRequests({}, {}, ordinal))
        copy = SegmentCopy(files, bounds, topic_capture, self._clock.now_ms())
        run_blocking(copy.run())
        for run, marks in topic_capture.changed:
            write_marks(files, run.name, marks, ordinal)
        return msgspec.structs.replace(topic_capture.entry, segments=copy.entries())


def _pread(fs: Fs, fd: int, offset: int, size: int) -> bytes:
    return fs.pread(fd, size, offset)
