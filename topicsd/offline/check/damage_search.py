"""What stands behind a place where the log stopped making sense: how much is damaged, and where it goes on.

The log is whole again behind the next BatchEnd that stands where it says. In front of it the frames are
taken one by one, as far as their lengths lead, to name the first that is damaged. Which record that is
follows from the frame in front of it, and from its own header where that can be believed: the header is a
part of what is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from topicsd.disk.fs import Fs
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.control_frame import ForwardCursor, TopicCreate, decode_control
from topicsd.log.frame import (
    FRAME_LEN_MAX,
    FRAME_LEN_MIN,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    Frame,
    FrameDamage,
    FrameType,
    parse_frame,
)
from topicsd.log.reader import BatchReader, FoundBatch, batch_ends
from topicsd.log.walk import LogFileFound


class DamagedFrame(NamedTuple):
    """The first frame of a damaged stretch that is not what was written."""

    offset: int
    what: str
    claims: Frame | None
    """What its header says, without the parts; None when not even that is there."""
    names: dict[int, str]
    """Of the topics that were created in front of it, in the same stretch."""
    heads: dict[int, int]
    """The newest seq of each topic in front of it, in the same stretch."""
    before: int | None
    """The topic of the record right in front of it."""


class Stretch(NamedTuple):
    """Bytes from `offset` to `end` that are no whole batch; `end` is where the log is whole again."""

    offset: int
    end: int
    frame: DamagedFrame | None
    """None when every frame in it is whole, and yet they are not the batch that belongs here."""


class Place(NamedTuple):
    """Where reading goes on in a file."""

    offset: int
    ordinal: int
    chain: int


def read_on(
    fs: Fs, file: LogFileFound, place: Place, data_end: int, on_batch: Callable[[FoundBatch], None]
) -> Iterator[Stretch]:
    """Every whole batch from `place` to the end of the file, and the stretches between them."""
    assert file.header is not None
    reader = BatchReader(fs, file.fd, file.header)
    reader.offset, reader.ordinal, reader.chain = place
    _read_whole(reader, on_batch)
    for at, closing in batch_ends(fs, file.fd, file.header.epoch, place.offset):
        # A copy in somebody's payload does not stand where it says.
        if at < reader.offset or closing.offset + closing.length != at:
            continue
        end = at + BATCH_END_BYTES
        yield Stretch(reader.offset, end, first_damage(fs, file.fd, reader.offset, end))
        reader = BatchReader(fs, file.fd, file.header)
        reader.offset, reader.ordinal, reader.chain = end, closing.ordinal + 1, closing.chain
        _read_whole(reader, on_batch)
    if data_end > reader.offset:
        yield Stretch(reader.offset, data_end, first_damage(fs, file.fd, reader.offset, data_end))


def first_damage(fs: Fs, fd: int, offset: int, end: int) -> DamagedFrame | None:
    """The first frame from `offset` on that is not whole; None when all are."""
    names: dict[int, str] = {}
    heads: dict[int, int] = {}
    before: int | None = None
    at = offset
    while at < end:
        head = fs.pread(fd, HEADER_BYTES, at)
        claims = _claims(head)
        try:
            frame = parse_frame(head, 0, len(head)) if claims is None else _frame_at(fs, fd, at, end, claims)
        except FrameDamage as error:
            return DamagedFrame(at, error.what, claims, names, heads, before)
        seq = _last_seq(frame)
        before = frame.topic_id if seq else None
        if before is not None:
            heads[before] = seq
        elif frame.type == FrameType.TOPIC_CREATE:
            names[frame.topic_id] = _created(frame)
            heads[frame.topic_id] = 0
        at += frame.size
    return None


def _read_whole(reader: BatchReader, on_batch: Callable[[FoundBatch], None]) -> None:
    while (batch := reader.next()) is not None:
        on_batch(batch)


def _frame_at(fs: Fs, fd: int, at: int, end: int, claims: Frame) -> Frame:
    # A length that cannot be is not believed, and no byte is read for it.
    size = claims.size if FRAME_LEN_MIN <= claims.size - LEN_BYTES <= FRAME_LEN_MAX else HEADER_BYTES
    buffer = fs.pread(fd, min(size, end - at), at)
    return parse_frame(buffer, 0, len(buffer))


def _last_seq(frame: Frame) -> int:
    """Of the records that a frame is or names; 0 when there is none."""
    if frame.type == FrameType.APPEND:
        return frame.seq
    if frame.type == FrameType.FORWARD_CURSOR:
        control = decode_control(frame)
        return control.last_seq if isinstance(control, ForwardCursor) else 0
    return 0


def _created(frame: Frame) -> str:
    control = decode_control(frame)
    assert isinstance(control, TopicCreate)
    return control.name


def _claims(head: bytes) -> Frame | None:
    if len(head) < HEADER_BYTES:
        return None
    frame_len, frame_type, flags, topic_id, seq, ts, _, _, _ = HEADER.unpack(head)
    return Frame(frame_type, flags, topic_id, seq, ts, b"", b"", b"", LEN_BYTES + frame_len)
