"""The search after damage in a log file: the damaged bytes, and where the log resumes.

The log is whole again after the next BatchEnd that is at the offset it records. The frames before that
BatchEnd are parsed one by one, as far as their lengths lead, to find the first damaged frame. The frame
before it identifies the damaged record, and so does its own header where that is plausible: the header is
part of the damaged bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from topicsd.disk.fs import Fs
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.control_frame import Adopt, ForwardCursor, TopicCreate, decode_control
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
from topicsd.log.reader import WalBatch, WalBatchReader, batch_ends
from topicsd.log.walk import OpenWalFile


class DamagedFrame(NamedTuple):
    """The first damaged frame of a damaged range."""

    offset: int
    what: str
    header: LogFrame | None
    """The content of its header, without the parts; None when the header is incomplete."""
    names: dict[int, str]
    """The names of the topics created before it in the same range, by topic id."""
    heads: dict[int, int]
    """The newest seq of each topic before it in the same range."""
    before: int | None
    """The topic of the record directly before it."""


class DamagedRange(NamedTuple):
    """A damaged range: the bytes from `offset` to `end`, where the log is whole again."""

    offset: int
    end: int
    frame: DamagedFrame | None
    """The first damaged frame; None when every frame is whole but the batch does not belong here."""


class ResumePoint(NamedTuple):
    """The place in a file where reading resumes."""

    offset: int
    ordinal: int
    chain: int


def find_damage(
    fs: Fs,
    file: OpenWalFile,
    resume_point: ResumePoint,
    data_end: int,
    on_batch: Callable[[WalBatch], None],
) -> Iterator[DamagedRange]:
    """Yield the damaged ranges from `resume_point` to `data_end`; pass whole batches to `on_batch`."""
    assert file.header is not None
    reader = WalBatchReader(fs, file.fd, file.header)
    reader.offset, reader.ordinal, reader.chain = resume_point
    _read_whole(reader, on_batch)
    for at, closing in batch_ends(fs, file.fd, file.header.epoch, resume_point.offset):
        # A BatchEnd inside the payload of a record is not at the offset that it records.
        if at < reader.offset or closing.offset + closing.length != at:
            continue
        end = at + BATCH_END_BYTES
        yield DamagedRange(reader.offset, end, first_damage(fs, file.fd, reader.offset, end))
        reader = WalBatchReader(fs, file.fd, file.header)
        reader.offset, reader.ordinal, reader.chain = end, closing.ordinal + 1, closing.chain
        _read_whole(reader, on_batch)
    if data_end > reader.offset:
        yield DamagedRange(reader.offset, data_end, first_damage(fs, file.fd, reader.offset, data_end))


def first_damage(fs: Fs, fd: int, offset: int, end: int) -> DamagedFrame | None:
    """Return the first damaged frame from `offset` to `end`, or None when all are whole."""
    names: dict[int, str] = {}
    heads: dict[int, int] = {}
    before: int | None = None
    at = offset
    while at < end:
        head = fs.pread(fd, HEADER_BYTES, at)
        header = _header(head)
        try:
            frame = parse_frame(head, 0, len(head)) if header is None else _frame_at(fs, fd, at, end, header)
        except FrameDamage as error:
            return DamagedFrame(at, error.what, header, names, heads, before)
        seq = _last_seq(frame)
        before = frame.topic_id if seq else None
        if before is not None:
            heads[before] = seq
        elif frame.type == FrameType.TOPIC_CREATE:
            names[frame.topic_id] = _name_in(frame)
            heads[frame.topic_id] = 0
        elif frame.type == FrameType.ADOPT:
            names[frame.topic_id] = _name_in(frame)
        at += frame.size
    return None


def _read_whole(reader: WalBatchReader, on_batch: Callable[[WalBatch], None]) -> None:
    while (batch := reader.next()) is not None:
        on_batch(batch)


def _frame_at(fs: Fs, fd: int, at: int, end: int, header: LogFrame) -> LogFrame:
    # With an impossible length only the header is read.
    size = header.size if FRAME_LEN_MIN <= header.size - LEN_BYTES <= FRAME_LEN_MAX else HEADER_BYTES
    buffer = fs.pread(fd, min(size, end - at), at)
    return parse_frame(buffer, 0, len(buffer))


def _last_seq(frame: LogFrame) -> int:
    """Return the last seq of the records that a frame holds or names, or 0 without records."""
    if frame.type == FrameType.APPEND:
        return frame.seq
    if frame.type == FrameType.FORWARD_CURSOR:
        control = decode_control(frame)
        return control.last_seq if isinstance(control, ForwardCursor) else 0
    return 0


def _name_in(frame: LogFrame) -> str:
    control = decode_control(frame)
    assert isinstance(control, TopicCreate | Adopt)
    return control.name


def _header(head: bytes) -> LogFrame | None:
    """Return the frame that a header announces, without its parts; None when it is too short."""
    if len(head) < HEADER_BYTES:
        return None
    frame_len, frame_type, flags, topic_id, seq, ts, _, _, _ = HEADER.unpack(head)
    return LogFrame(frame_type, flags, topic_id, seq, ts, b"", b"", b"", LEN_BYTES + frame_len)
