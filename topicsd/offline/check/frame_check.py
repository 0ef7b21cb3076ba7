"""The check of each frame of a batch by itself: its checksum, its parts, its content.

The chain has already proved that the batch is whole. A fault found here was therefore written by a server: it
is a bug of the writer and not a fault of the disk, and replay would stop at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shared.contract.names import topic_id
from topicsd.log.control_frame import (
    COPIES_MAX,
    Adopt,
    ForwardCursor,
    LostRangeFrame,
    TopicCreate,
    decode_control,
)
from topicsd.log.frame import FrameDamage, FrameType, LogFrame, parse_frame, record_of
from topicsd.log.reader import WalBatch

_APPEND = FrameType.APPEND


class Complaint(NamedTuple):
    """A fault at an offset of the file; `topic_id` 0 and `seq` 0 mean none."""

    offset: int
    what: str
    topic_id: int = 0
    seq: int = 0


class FrameCheck:
    """The check of the batches of one shard, which have to be passed in order."""

    def __init__(self, names: dict[int, str] | None = None) -> None:
        """Begin with `names`, those of the topics created before the first batch."""
        self.frames = 0
        self.records = 0
        self.names: dict[int, str] = dict(names or {})
        self.heads: dict[int, int] = {}
        """The newest seq of each topic so far."""
        self._times_ms: dict[int, int] = {}
        """The time of the newest record of each topic; times never decrease."""

    def batch(self, batch: WalBatch) -> Iterator[Complaint]:
        """Check the next batch and yield its faults."""
        at, count = batch.start, 0
        to_offset = batch.offset - batch.start
        while at < batch.end:
            try:
                frame = parse_frame(batch.buffer, at, batch.end)
            except FrameDamage as error:
                yield Complaint(to_offset + at, error.what)
                return
            for what in self._check_frame(frame):
                yield Complaint(to_offset + at, what, frame.topic_id, frame.seq)
            at += frame.size
            count += 1
        self.frames += count
        closing = batch.closing
        if count != batch.frame_count:
            what = f"the batch has {count} frames, but its BatchEnd records {batch.frame_count}"
            yield Complaint(batch.offset, what)
        if closing.synced > batch.offset:
            what = f"the batch records a synced offset of {closing.synced}, which is after its own start"
            yield Complaint(batch.offset, what)

    def _check_frame(self, frame: LogFrame) -> Iterator[str]:
        try:
            if frame.type == _APPEND:
                self.records += 1
                record_of(frame)
                yield from self._check_time(frame)
                self.heads[frame.topic_id] = frame.seq
                return
            control = decode_control(frame)
        except FrameDamage as error:
            yield error.what
            return
        if frame.seq:
            yield f"a {FrameType(frame.type).name} frame has the seq {frame.seq}"
        if isinstance(control, LostRangeFrame):
            self.heads[frame.topic_id] = control.last
        if isinstance(control, ForwardCursor) and control.offsets:
            self.records += control.count
            self.heads[frame.topic_id] = control.last_seq
            yield from self._check_time(frame)
            if control.count > COPIES_MAX:
                yield f"it names {control.count} copies; at most {COPIES_MAX} are allowed"
        if isinstance(control, Adopt):
            if topic_id(control.name) != frame.topic_id:
                yield f'the topic "{control.name}" is adopted with an id that does not match its name'
            self.names[frame.topic_id] = control.name
            self.heads.pop(frame.topic_id, None)
            self._times_ms.pop(frame.topic_id, None)
        if isinstance(control, TopicCreate):
            if topic_id(control.name) != frame.topic_id:
                yield f'the topic "{control.name}" is created with an id that does not match its name'
            self.names[frame.topic_id] = control.name
            self.heads[frame.topic_id] = 0
            self._times_ms.pop(frame.topic_id, None)

    def _check_time(self, frame: LogFrame) -> Iterator[str]:
        if frame.ts < self._times_ms.get(frame.topic_id, 0):
            yield f"its time {frame.ts} is before the time of the previous record"
        self._times_ms[frame.topic_id] = frame.ts
