"""A copy as a record of its own topic, made of the frame of its original.

A copy that the log has by reference is framed for whoever wants its bytes: its seq and time, and the rest as
in the original. The checksum tells what it told: a frame that was damaged makes one that is.

    >>> from topicsd.wal.frame import FrameType, encode_frame, parse_frame
    >>> original = encode_frame(FrameType.APPEND, topic_id=7, seq=3, ts=1000, tag=b"a", payload=b"1")
    >>> copy = parse_frame(frame_copy(original, 9, 1, 1004, 0), 0, len(original))
    >>> copy.topic_id, copy.seq, copy.ts, copy.tag, copy.payload
    (9, 1, 1004, b'a', b'1')

Must not know: where frames stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from topicsd.engine.page import Frames
from topicsd.engine.tail_run import TailRun
from topicsd.engine.topic import Topic
from topicsd.wal.frame import CHECKSUM_BYTES, FLAG_DURABLE, LEN_BYTES, U64, pack_u64, xxh3

# Behind the length: type, flags, and what each copy has of its own: topic, seq and time.
OWN: Final = Struct("<BBQQQ")
_own = OWN.pack
_u64_at = U64.unpack_from


def frame_copy(original: bytes, topic_id: int, seq: int, ts: int, class_flag: int) -> bytes:
    body = original[LEN_BYTES:-CHECKSUM_BYTES]
    flags = body[1] & ~FLAG_DURABLE | class_flag
    copied = _own(body[0], flags, topic_id, seq, ts) + body[OWN.size :]
    (checksum,) = _u64_at(original, len(original) - CHECKSUM_BYTES)
    return original[:LEN_BYTES] + copied + pack_u64(checksum ^ xxh3(body) ^ xxh3(copied))


def own_frames(run: TailRun, found: Frames, topic: Topic) -> Frames:
    """Frames of the run as they were read; those of originals as the copies that they stand for."""
    at = found.first_seq - run.first_seq
    upto = at + len(found.starts)
    marks = run.copies(at, upto)
    if marks is None:
        return found
    return frame_copies(found, run.stamps[at:upto], marks, topic.topic_id, topic.is_durable)


def frame_copies(
    stretch: Frames, stamps: Sequence[int], marks: bytes, topic_id: int, is_durable: bool
) -> Frames:
    """Records of a topic as they were read, those that are marked as copies framed as such, each in the place
    of its original. What is not there whole stays as it is."""
    class_flag = FLAG_DURABLE if is_durable else 0
    data, framed = stretch.data, bytearray(stretch.data)
    columns = zip(stretch.starts, stretch.lengths, stamps, marks, strict=True)
    for seq, (start, length, ts, is_copy) in enumerate(columns, stretch.first_seq):
        end = start + length
        if is_copy and end <= len(data):
            framed[start:end] = frame_copy(data[start:end], topic_id, seq, ts, class_flag)
    return stretch._replace(data=bytes(framed))
