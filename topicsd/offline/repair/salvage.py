"""The salvage of a damaged log: its whole batches, and how many frames are missing.

A start stops at damage that is before synced data. The salvage continues after it, by these rules:

V1  A batch is taken whole or not at all, and only when its chain fits. After damage the log resumes after the
    next BatchEnd that is at the offset it records; the batch that this BatchEnd closes is lost with the
    damage.
V2  Batches with ordinals at or above the first ordinal of the next file are not taken: an earlier start cut
    them off.
V3  The ordinals of two good places give the number of missing frames between them. No topic misses more
    records than that, or than so many frames can name as copies. A missing last file held at most its maximum
    size, or the size that CURRENT records. Where a topic continues after the gap, its seqs say exactly which
    ones are lost. Where it does not, the maximum number of seqs is given up: a seq is never used twice.
    Copies depend on the present state of their originals, in a gap or not: when one original is no longer a
    whole record, all copies that the same frame names are lost.
V4  At the end of a log from which frames may be missing, a head resumes at its ceiling, as at any start.

All other content of a gap is lost without a trace: created topics, settings, deletes, keys. The plan of the
repair says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, wal_name
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.replay import Replay, ReplayError, lose_range
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.engine.write.seq_ceiling import lost_tail
from topicsd.log import control_frame
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.control_frame import COPIES_MAX, ForwardCursor, decode_control
from topicsd.log.current_file import Current
from topicsd.log.file_header import EPOCH_BYTES, FILE_HEADER_BYTES, FileHeader
from topicsd.log.files import LogFiles, LogPlace
from topicsd.log.frame import (
    FRAME_LEN_MAX,
    FRAME_LEN_MIN,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    FrameDamage,
    FrameType,
    LogFrame,
    parse_frame,
)
from topicsd.log.reader import WalBatch, WalBatchReader, batch_ends, survey
from topicsd.log.recovery import add_file, heads_are_exact, is_same_place
from topicsd.log.walk import FIRST_ORDINAL, OpenWalFile
from topicsd.segment.entry import SegmentDamage

REASON = "crash"
"""The API's reason for records lost to a crash or to damage."""

# Added to the ceiling of an ephemeral topic when a frame with a higher ceiling may be missing.
CEILING_MARGIN = 1_000_000
ROUTE_CREATE_FRAMES = 2
"""The frames of a new route before its first copy: its creation, and the BatchEnd after it."""
_FRAME_BYTES_MIN = LEN_BYTES + FRAME_LEN_MIN
# The least size of a copy in a frame: a place and a size, of at least one byte each.
_COPY_BYTES_MIN = 2
# The largest file size that can be configured, for a log without any file.
WAL_FILE_BYTES_MAX = 4 << 30
NO_LIMIT = 1 << 62
NO_CHAIN = -1
"""The chain after a gap at the end of a file: no next file continues it."""


class Gap(NamedTuple):
    """Bytes of a file that are not salvaged; the gap of a missing file has no bytes."""

    file: str
    offset: int
    end: int
    frames_max: int
    what: str


class LostSpan(NamedTuple):
    """A range of lost seqs of one topic."""

    topic: str
    first: int
    last: int
    is_bound: bool = False
    """Whether the number of records is not known and the range is an upper bound."""


class RaisedHead(NamedTuple):
    """An ephemeral topic whose ceiling, where a start resumes its head, was raised above the known one."""

    topic: str
    head: int


class Salvage:
    """One pass over the log files, from the file of the snapshot's place on."""

    def __init__(self, fs: Fs, state: ShardData, snapshot: Snapshot | None) -> None:
        """Begin with `state`, which was loaded from `snapshot`."""
        head = None if snapshot is None else snapshot.head
        start = None if head is None else head.start
        self._fs = fs
        self._state = state
        # A topic whose creation is missing has no name: its frames are skipped.
        self._replay = _Replay(state, NO_LIMIT, self._lose)
        self._captured_to = 0 if head is None else head.end_ordinal
        self._start = start
        self._missing: dict[int, int] = {}
        """The number of records that each topic may have lost in gaps since its last good frame."""
        self.gaps: list[Gap] = []
        self.lost: list[LostSpan] = []
        self.raised_heads: list[RaisedHead] = []
        self.ordinal = FIRST_ORDINAL if start is None else start.ordinal
        self.chain = 0 if start is None else start.chain
        self.ends_in_gap = False
        self.unnamed_records = 0
        """The number of records of topics whose names are lost."""

    def run(self, files: list[OpenWalFile], current: Current | None, file_bytes_max: int) -> None:
        """Salvage the files; `file_bytes_max` is the largest size that a missing file can have."""
        position = 0
        files = [file for file in files if not is_empty_by_repair(file)]
        add_positions(self._state.files, files)
        if self._start is not None and files and files[0].first_ordinal > self._start.file:
            self._skip_to(files[0])
        for number, file in enumerate(files):
            later = [one for one in files[number + 1 :] if one.header is not None]
            limit = later[0].first_ordinal if later else NO_LIMIT
            header = file.header or self._header_again(file)
            if header is None:
                # No epoch is known: only the end of the data is needed.
                end = survey(self._fs, file.fd, bytes(FILE_HEADER_BYTES), 0).data_end
                self._add_tail(file.name, 0, end, file.damage, limit)
            else:
                if number and (header.first_ordinal, header.chain_seed) != (self.ordinal, self.chain):
                    self._skip_to(file)
                self._read_file(file, header, position, limit, _clean_end(file, current))
            position += max(0, file.size_bytes - FILE_HEADER_BYTES)
        self._add_missing_end(files, current, file_bytes_max)

    def _add_missing_end(
        self, files: list[OpenWalFile], current: Current | None, file_bytes_max: int
    ) -> None:
        """Add a gap for a missing last file, of its size if CURRENT records it, else of the maximum."""
        named = 0 if current is None else current.file
        if not files and self._start is not None:
            named = max(named, self._start.file)
        if named <= (files[-1].first_ordinal if files else 0):
            return
        is_start = self._start is not None and self._start.file == named
        begin = self._start.offset if self._start is not None and is_start else FILE_HEADER_BYTES
        is_known = current is not None and current.state == "clean" and current.file == named
        end = current.end if current is not None and is_known else file_bytes_max
        frames = max(0, end - begin) // _FRAME_BYTES_MIN
        before = max(named, self.ordinal) - self.ordinal
        size = None if before else end - begin
        self._add_gap(wal_name(named), 0, 0, "the file is missing", before + frames, size)
        self.ordinal += before + frames
        self.chain = NO_CHAIN

    def finish(self, heads_exact: bool) -> None:
        """Set all heads and ceilings, as a start does."""
        for topic in self._state.topics_by_id.values():
            count = self._missing.pop(topic.topic_id, 0)
            if topic.is_ephemeral:
                if count:
                    topic.ceiling += CEILING_MARGIN
                    self.raised_heads.append(RaisedHead(topic.name, topic.ceiling))
                continue
            if count:
                self._lose(topic, topic.head + count, is_bound=True)
            if (lost := lost_tail(topic, heads_exact and not self.ends_in_gap)) is not None:
                self._lose(topic, lost.last, is_bound=True)
            topic.ceiling = max(topic.ceiling, topic.head)

    def _skip_to(self, file: OpenWalFile) -> None:
        count = max(0, file.first_ordinal - self.ordinal)
        if count:
            what = f"the frames of ordinals {self.ordinal} to {file.first_ordinal - 1} are missing"
            self._add_gap(file.name, 0, 0, what, count)

    def _header_again(self, file: OpenWalFile) -> FileHeader | None:
        """Return the header of a file whose header is damaged, or None when it cannot be known.

        Each BatchEnd repeats the epoch, and the chain proves that the file belongs here.
        """
        start = self._start
        if start is not None and start.file == file.first_ordinal:
            at = start.offset
        elif self.ordinal == file.first_ordinal:
            at = FILE_HEADER_BYTES
        else:
            return None
        while len(head := self._fs.pread(file.fd, HEADER_BYTES, at)) == HEADER_BYTES:
            frame_len, frame_type = HEADER.unpack(head)[:2]
            if frame_type == FrameType.BATCH_END:
                epoch = self._fs.pread(file.fd, EPOCH_BYTES, at + HEADER_BYTES)
                self._add_gap(file.name, 0, FILE_HEADER_BYTES, file.damage, 0)
                return FileHeader(0, b"", epoch, file.first_ordinal, self.chain, file.size_bytes, 0)
            if not FRAME_LEN_MIN <= frame_len <= FRAME_LEN_MAX:
                return None
            at += LEN_BYTES + frame_len
        return None

    def _read_file(
        self, file: OpenWalFile, header: FileHeader, position: int, limit: int, ends_at: int
    ) -> None:
        fs = self._fs
        is_first = self._start is not None and file.first_ordinal == self._start.file
        reader = WalBatchReader(fs, file.fd, header, self._start if is_first else None)
        while True:
            while reader.ordinal < limit and (batch := reader.next()) is not None:
                if batch.closing.ordinal >= limit:
                    return  # V2
                self._replay_batch(batch, file.name, position + batch.offset - FILE_HEADER_BYTES)
                self.ordinal, self.chain = reader.ordinal, reader.chain
            if reader.ordinal >= limit:
                return
            resume = self._next_whole(file, header, reader.offset, limit)
            if resume is None:
                end = max(survey(fs, file.fd, header.epoch, reader.offset).data_end, ends_at)
                if end > reader.offset:
                    what = "no whole batch begins here or later"
                    self._add_tail(file.name, reader.offset, end, what, limit)
                return
            end, ordinal, chain = resume
            self._add_gap(
                file.name, reader.offset, end, "no whole batch begins here", ordinal - reader.ordinal
            )
            self.ordinal, self.chain = ordinal + 1, chain
            reader = WalBatchReader(
                fs, file.fd, header, LogPlace(file.first_ordinal, end, self.ordinal, self.chain)
            )

    def _next_whole(
        self, file: OpenWalFile, header: FileHeader, offset: int, limit: int
    ) -> tuple[int, int, int] | None:
        """Return where the log resumes after damage (V1): offset, previous ordinal and chain."""
        for at, closing in batch_ends(self._fs, file.fd, header.epoch, offset):
            fits = closing.offset + closing.length == at and closing.ordinal >= self.ordinal
            if fits and closing.ordinal < limit:
                return at + BATCH_END_BYTES, closing.ordinal, closing.chain
        return None

    def _add_tail(self, file: str, offset: int, end: int, what: str, limit: int) -> None:
        """Add the rest of a file as a gap; `limit` is the first ordinal of the next file."""
        if limit == NO_LIMIT:
            self._add_gap(file, offset, end, what, (end - offset) // _FRAME_BYTES_MIN + 1)
            self.ordinal += self.gaps[-1].frames_max
        else:
            self._add_gap(file, offset, end, what, max(0, limit - self.ordinal))
            self.ordinal = limit
        self.chain = NO_CHAIN

    def _add_gap(
        self, file: str, offset: int, end: int, what: str, count: int, size: int | None = None
    ) -> None:
        """Record that at most `count` frames are missing, of `size` bytes in all if known."""
        self.gaps.append(Gap(file, offset, end, count, what))
        if not count:
            return
        self.ends_in_gap = True
        # A route may also have been created in the gap, in a batch before the one with its first copies.
        copied = count * COPIES_MAX
        copied_by_new = max(count, (count - ROUTE_CREATE_FRAMES) * COPIES_MAX)
        if size is not None:
            named_max = max(count, size // _COPY_BYTES_MIN)
            copied, copied_by_new = min(copied, named_max), min(copied_by_new, named_max)
        for topic_id, topic in self._state.topics_by_id.items():
            records = copied if topic.routes else copied_by_new
            self._missing[topic_id] = self._missing.get(topic_id, 0) + records

    def _replay_batch(self, batch: WalBatch, file: str, position: int) -> None:
        self.ends_in_gap = False
        try:
            self._bridge(batch)
            self._replay.batch(batch, position)
        except (ReplayError, FrameDamage, SegmentDamage) as error:
            end = batch.offset + batch.closing.length + BATCH_END_BYTES
            self._add_gap(file, batch.offset, end, f"replay failed: {error}", batch.frame_count)

    # -- V3 ----------------------------------------------------------------------------------------------

    def _bridge(self, batch: WalBatch) -> None:
        """Mark as lost the seqs between the known head of each topic and the batch (V3)."""
        at, ordinal = batch.start, batch.first_ordinal
        heads: dict[int, int] = {}
        while at < batch.end:
            frame_len, frame_type, _, topic_id, seq = HEADER.unpack_from(batch.buffer, at)[:5]
            size = LEN_BYTES + frame_len
            topic = self._state.topics_by_id.get(topic_id)
            if topic is None:
                if ordinal >= self._captured_to:
                    self.unnamed_records += _record_count(parse_frame(batch.buffer, at, at + size))
            elif ordinal >= topic.complete_to and topic_id in self._missing:
                if frame_type == FrameType.APPEND:
                    if topic_id not in heads:
                        self._lose(topic, seq - 1)
                    heads[topic_id] = seq
                    del self._missing[topic_id]
                else:
                    frame = parse_frame(batch.buffer, at, at + size)
                    self._bridge_control(topic, decode_control(frame))
            at += size
            ordinal += 1

    def _bridge_control(self, topic: Topic, control: control_frame.ControlPayload) -> None:
        match control:
            case control_frame.TopicCreate() | control_frame.Adopt():
                # The frame that deleted the topic is missing.
                self._state.remove_topic(topic)
                del self._missing[topic.topic_id]
            case control_frame.LostRangeFrame():
                self._lose(topic, control.first - 1)
                del self._missing[topic.topic_id]
            case control_frame.Idempotency() | control_frame.ProducerFrame():
                self._lose(topic, control.first_seq - 1)
                del self._missing[topic.topic_id]
            case ForwardCursor():
                if control.offsets:
                    self._lose(topic, control.first_seq - 1)
                    del self._missing[topic.topic_id]
            case control_frame.Cursor():
                self._lose(topic, control.from_seq)
            case control_frame.Schedule():
                # The jobs of a tick follow its frame.
                self._lose(topic, 0 if control.rule is None else control.last_seq)
            case control_frame.Delete():
                self._lose(topic, max([control.below - 1, control.last, *control.seqs]))
            case control_frame.Lease():
                self._lose(topic, max(control.seqs, default=0))
            case control_frame.EvictWatermark():
                self._lose(topic, max(control.evicted_to.values(), default=0))

    def _lose(self, topic: Topic, last: int, is_bound: bool = False) -> None:
        if last > topic.head:
            self.lost.append(LostSpan(topic.name, topic.head + 1, last, is_bound))
            lose_range(topic, LostRange(topic.head + 1, last, REASON))


def _record_count(frame: LogFrame) -> int:
    """Return the number of records that a frame holds or names."""
    if frame.type == FrameType.FORWARD_CURSOR:
        control = decode_control(frame)
        return control.count if isinstance(control, ForwardCursor) and control.offsets else 0
    return int(frame.type == FrameType.APPEND)


class _Replay(Replay):
    def __init__(self, state: ShardData, captured_to: int, lose: Callable[[Topic, int], None]) -> None:
        super().__init__(state, captured_to)
        self._lose = lose

    def cannot_copy(self, topic: Topic, control: ForwardCursor, ordinal: int, what: str) -> None:
        self._lose(topic, topic.head + control.count)


def add_positions(log: LogFiles, files: list[OpenWalFile]) -> None:
    """Add the files one after the other, each without its header."""
    position = 0
    for file in files:
        add_file(log, file, position)
        position += max(0, file.size_bytes - FILE_HEADER_BYTES)


def file_bytes_max(files: list[OpenWalFile]) -> int:
    """Return the largest size that a file of this log can have, judged by the present files."""
    return max((file.size_bytes for file in files), default=WAL_FILE_BYTES_MAX)


def _clean_end(file: OpenWalFile, current: Current | None) -> int:
    """Return the end of the file that CURRENT records, or 0 when it records none."""
    is_recorded = current is not None and current.state == "clean" and current.file == file.first_ordinal
    return current.end if current is not None and is_recorded else 0


def heads_are_known(fs: Fs, paths: ShardPaths, files: list[OpenWalFile], current: Current | None) -> bool:
    """Whether nothing can be missing from the end of the log.

    The CURRENT of an unfinished repair is no proof.
    """
    if any(is_empty_by_repair(file) for file in files):
        return False
    if any(file.header is not None and file.size_bytes < file.header.file_bytes for file in files):
        return False
    return heads_are_exact(current, bool(files), is_same_place(fs, paths, current, files))


def is_empty_by_repair(file: OpenWalFile) -> bool:
    """Whether the file is the empty one that a repair writes after a damaged log (R4).

    Without a snapshot that names the file, the repair was not finished.
    """
    header = file.header
    return header is not None and header.file_bytes == file.size_bytes == FILE_HEADER_BYTES
