"""The body encoding `frames-v1`: the records of one topic as frames, with seqs relative to their slice.

A body is what `topicsd/log/frame.py` describes, one Append frame after the other. Two fields differ, since a
slice is written before its records have seqs:

    seq        the number of the record in its slice, from 1
    topic_id   the incarnation of the topic

    >>> records = [NewFrame(b'{"n":1}'), NewFrame(b'{"n":2}', tag="a")]
    >>> body = encode_frames(records, incarnation=7, first_number=1, ts=1000)
    >>> decoded = decode_frames(body, Rebase(7, first_seq=41, last_seq=42))
    >>> [(record.seq, record.data, record.tag) for record in decoded.records], decoded.damaged
    ([(41, b'{"n":1}', b''), (42, b'{"n":2}', b'a')], [])

F1  An extent is a part of a slice: its numbers follow each other, and the first one is that of `first_seq`.
F2  Damage is reported with exact seqs. Each frame that is intact has its number, so the seqs between two such
    frames are known. The first frame ties numbers to seqs; if it is damaged, the last one does. If neither
    is intact, no seq is known, and the whole extent is damaged. Frames inside a damaged record of bytes are
    no records, as far as their places show it: `topicsd/segment/frame_chains.py` names the case that is not
    excluded.
F3  A frame of another incarnation means that the extent is of another topic of the same name, which was
    deleted or made since it was looked up: `OtherTopic`, and not damage.

The times of the records of a slice never fall; those of different brokers follow their clocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from operator import add
from typing import Final, NamedTuple, Protocol

from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAG_BYTES,
    FLAG_META,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN_MIN,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    U32,
    U64,
    FrameDamage,
    FrameType,
    LogFrame,
    Record,
    damaged_frame_sizes,
    pack_body_head,
    pack_kind,
    pack_plain_head,
    pack_u32,
    pack_u64,
    parse_frame,
    payload_with_meta,
    record_of,
    xxh3,
)
from topicsd.segment.frame_chains import Chain, chains_of_records

FRAMES_V1: Final = "frames-v1"
SEGMENT_V1: Final = "segment-v1"
"""The frames of a compacted object (`segment_v1.py`), whose numbers are their seqs."""
_APPEND: Final = int(FrameType.APPEND)
_TOPIC_ID_AT: Final = 6
_NUMBER_AT: Final = 14
_pack_between: Final = struct.Struct("<QI").pack
TOPIC_ID_MASK: Final = (1 << 64) - 1
"""What a frame holds of an incarnation."""


class UnknownEncoding(Exception):
    """A body in an encoding that this program does not read."""


class OtherTopic(Exception):
    """The frames are of another incarnation of the topic (F3)."""


class ToEncode(Protocol):
    """A record to write; `data` is JSON unless `is_bytes`, and `meta` is JSON or empty."""

    @property
    def data(self) -> bytes: ...

    @property
    def tag(self) -> str | None: ...

    @property
    def node(self) -> str | None: ...

    @property
    def meta(self) -> bytes: ...

    @property
    def is_bytes(self) -> bool: ...


class NewFrame(NamedTuple):
    """The record of one frame that is to be written."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes = b""
    is_bytes: bool = False


class Texts(list[bytes]):
    """Records that are JSON strings and nothing else: an object for each would cost more than its frame."""


def data_bytes(records: Sequence[ToEncode] | Texts) -> int:
    """Return the bytes of the data of records."""
    if isinstance(records, Texts):
        return sum(map(len, records))
    return sum([len(record.data) for record in records])


class Rebase(NamedTuple):
    """The incarnation and the committed seqs of the records in some bytes."""

    incarnation: int
    first_seq: int
    last_seq: int


class DamagedSeqs(NamedTuple):
    first_seq: int
    last_seq: int
    what: str


class Decoded(NamedTuple):
    records: list[Record]
    damaged: list[DamagedSeqs]
    """The seqs whose records could not be read, in order; only of those that were wanted."""
    next_seq: int
    """The seq after the last one that is in `records` or in `damaged`."""
    byte_count: int
    """The size of the frames of `records`."""


def encode_frames(records: Sequence[ToEncode] | Texts, incarnation: int, first_number: int, ts: int) -> bytes:
    """Encode the records of one request, numbered from `first_number`."""
    if isinstance(records, Texts):
        return _encode_plain(records, incarnation, first_number, ts)
    plain = [one.data for one in records if not (one.tag or one.node or one.meta) and not one.is_bytes]
    if len(plain) == len(records):
        return _encode_plain(plain, incarnation, first_number, ts)
    parts: list[bytes] = []
    topic_id = incarnation & TOPIC_ID_MASK
    for number, record in enumerate(records, first_number):
        payload = record.data
        tag = record.tag.encode() if record.tag else b""
        node = record.node.encode() if record.node else b""
        flags = (FLAG_TAG if tag else 0) | (FLAG_NODE if node else 0)
        flags |= FLAG_BYTES if record.is_bytes else 0
        if record.meta:
            flags |= FLAG_META
            payload = payload_with_meta(payload, record.meta)
        lengths = len(node), len(tag), len(payload)
        body = pack_body_head(_APPEND, flags, topic_id, number, ts, *lengths) + node + tag + payload
        parts += (pack_u32(len(body) + CHECKSUM_BYTES), body, pack_u64(xxh3(body)))
    return b"".join(parts)


def _encode_plain(payloads: Sequence[bytes], incarnation: int, first_number: int, ts: int) -> bytes:
    """Encode records without tag, node, meta and flags.

    Columns instead of records: a loop takes half as long again. What is between two bodies, the checksum of
    one and the length of the next, is packed at once.
    """
    count = len(payloads)
    if not count:
        return b""
    kind = pack_kind(_APPEND, 0, incarnation & TOPIC_ID_MASK)
    lengths = list(map(len, payloads))
    numbers = range(first_number, first_number + count)
    heads = map(pack_plain_head, repeat(kind), numbers, repeat(ts), lengths)
    bodies = list(map(add, heads, payloads))
    frame_lens = [length + FRAME_LEN_MIN for length in lengths]
    checksums = list(map(xxh3, bodies))
    parts = [b""] * (2 * count + 1)
    parts[0] = pack_u32(frame_lens[0])
    parts[1::2] = bodies
    parts[2:-1:2] = map(_pack_between, checksums, frame_lens[1:])
    parts[-1] = pack_u64(checksums[-1])
    return b"".join(parts)


def renumber(body: bytes, first_number: int) -> bytes:
    """Return intact frames with other numbers, which follow each other from `first_number`."""
    frames = bytearray(body)
    view = memoryview(frames)
    at, number = 0, first_number
    while at < len(frames):
        (frame_len,) = U32.unpack_from(frames, at)
        stop = at + LEN_BYTES + frame_len
        U64.pack_into(frames, at + _NUMBER_AT, number)
        U64.pack_into(frames, stop - CHECKSUM_BYTES, xxh3(view[at + LEN_BYTES : stop - CHECKSUM_BYTES]))
        at, number = stop, number + 1
    return bytes(frames)


def decode_frames(
    body: bytes, rebase: Rebase, from_seq: int = 0, bytes_max: int | None = None, encoding: str = FRAMES_V1
) -> Decoded:
    """Decode records from `from_seq` on, at least one, and no more than fit `bytes_max`.

    Raises `UnknownEncoding`, or `OtherTopic`. After damage the whole body is searched, which takes long.
    """
    try:
        return decode_intact(body, rebase, from_seq, bytes_max, encoding)
    except FrameDamage as damage:
        base = _base_in(encoding)
        return _decode_damaged(body, rebase, max(from_seq, rebase.first_seq), bytes_max, damage, base)


def decode_intact(
    body: bytes, rebase: Rebase, from_seq: int = 0, bytes_max: int | None = None, encoding: str = FRAMES_V1
) -> Decoded:
    """Decode as `decode_frames` does, but raise FrameDamage when a frame up to the last one is damaged."""
    if encoding not in (FRAMES_V1, SEGMENT_V1):
        raise UnknownEncoding(
            f"body encoding {encoding}: this program reads {FRAMES_V1} and {SEGMENT_V1}; the layout of other "
            "encodings is not published"
        )
    return _decode_intact(body, rebase, max(from_seq, rebase.first_seq), bytes_max, _base_in(encoding))


def _base_in(encoding: str) -> int | None:
    """Return the difference of seqs and numbers; None when the first frame says it."""
    return 0 if encoding == SEGMENT_V1 else None


def _decode_intact(
    body: bytes, rebase: Rebase, start_seq: int, bytes_max: int | None, shift: int | None
) -> Decoded:
    """Decode frames one after the other; raises FrameDamage at the first surprise.

    The frames before `start_seq` are skipped by their lengths: a wrong one leads to another number. `shift`
    is the difference of seqs and numbers; None takes that of the first frame (F1).
    """
    view = memoryview(body)
    end = len(body)
    topic_id = rebase.incarnation & TOPIC_ID_MASK
    seq, last_seq = rebase.first_seq, rebase.last_seq
    unpack, header_bytes = HEADER.unpack_from, HEADER_BYTES
    at = size = 0
    records: list[Record] = []
    add = records.append
    while at < end and seq <= last_seq:
        if end - at < header_bytes:
            raise FrameDamage(at, "too few bytes for a frame")
        frame_len, kind, flags, frame_topic, number, ts, node_len, tag_len, data_len = unpack(body, at)
        if frame_topic != topic_id or kind != _APPEND:
            _check_topic(body, at, end, topic_id)
        stop = at + LEN_BYTES + frame_len
        if shift is None:
            shift = seq - number
        if stop > end or frame_len < FRAME_LEN_MIN or number + shift != seq:
            raise FrameDamage(at, f"no frame of seq {seq}")
        if seq < start_seq:
            at, seq = stop, seq + 1
            continue
        if bytes_max is not None and records and size + stop - at > bytes_max:
            break
        checksum_at = stop - CHECKSUM_BYTES
        if U64.unpack_from(body, checksum_at)[0] != xxh3(view[at + LEN_BYTES : checksum_at]):
            raise FrameDamage(at, "the checksum does not match the bytes")
        data_at = at + header_bytes + node_len + tag_len
        if flags == 0 and data_at + data_len == checksum_at:
            add(Record(seq, ts, body[data_at:checksum_at]))
        else:
            add(record_of(parse_frame(body, at, end)._replace(seq=seq)))
        size += stop - at
        at, seq = stop, seq + 1
    if at == end and seq <= last_seq:
        raise FrameDamage(at, "the frames end too early")
    return Decoded(records, [], seq, size)


def _check_topic(body: bytes, at: int, end: int, topic_id: int) -> None:
    frame = parse_frame(body, at, end)
    if frame.type == _APPEND and frame.topic_id != topic_id:
        raise OtherTopic(f"frames of incarnation {frame.topic_id} instead of {topic_id}")
    raise FrameDamage(at, f"holds type {frame.type} of topic id {frame.topic_id:016x}")


def _decode_damaged(
    body: bytes,
    rebase: Rebase,
    start_seq: int,
    bytes_max: int | None,
    damage: FrameDamage,
    base: int | None,
) -> Decoded:
    """Decode what is intact, and report the rest with exact seqs (F2)."""
    frames, base = _intact_frames(body, rebase, base)
    records: list[Record] = []
    damaged: list[DamagedSeqs] = []
    seq, size = start_seq, 0
    for frame in frames:
        frame_seq = base + frame.seq
        if not seq <= frame_seq <= rebase.last_seq:
            continue
        if bytes_max is not None and records and size + frame.size > bytes_max:
            return Decoded(records, damaged, seq, size)
        if frame_seq > seq:
            damaged.append(DamagedSeqs(seq, frame_seq - 1, damage.what))
        records.append(record_of(frame._replace(seq=frame_seq)))
        size += frame.size
        seq = frame_seq + 1
    if seq <= rebase.last_seq:
        damaged.append(DamagedSeqs(seq, rebase.last_seq, damage.what))
    return Decoded(records, damaged, max(seq, rebase.last_seq + 1), size)


def _intact_frames(body: bytes, rebase: Rebase, base: int | None) -> tuple[list[LogFrame], int]:
    """Return the frames of records, and the difference of seqs and numbers.

    `topicsd/segment/frame_chains.py` says which frames are records, and which are the content of one.
    """
    pairs = _chains(body, rebase.incarnation & TOPIC_ID_MASK)
    chains = [chain for chain, _ in pairs]
    if base is None:
        base = _base_of(chains, rebase, len(body))
    if base is None:
        return [], 0
    lengths = {
        at: tuple(at + size for size in damaged_frame_sizes(body, at))
        for at in (0, *(chain.end for chain in chains))
        if len(body) - at >= HEADER_BYTES
    }
    bounds = Chain(0, len(body), rebase.first_seq - base, rebase.last_seq - base)
    taken = set(chains_of_records(chains, bounds, lengths))
    return [frame for chain, frames in pairs if chain in taken for frame in frames], base


def _chains(body: bytes, topic_id: int) -> list[tuple[Chain, list[LogFrame]]]:
    """Find all chains of frames of a topic that are not inside an intact frame."""
    pairs: list[tuple[Chain, list[LogFrame]]] = []
    id_bytes = U64.pack(topic_id)
    at, end = 0, len(body)
    while True:
        start = at
        frames: list[LogFrame] = []
        while (frame := _frame_at(body, at, topic_id)) and (not frames or frame.seq == frames[-1].seq + 1):
            frames.append(frame)
            at += frame.size
        if frames:
            pairs.append((Chain(start, at, frames[0].seq, frames[-1].seq), frames))
            if frame is not None:
                continue
        hit = body.find(id_bytes, at + _TOPIC_ID_AT + (not frames))
        if hit < 0 or at >= end:
            return pairs
        at = hit - _TOPIC_ID_AT


def _frame_at(body: bytes, at: int, topic_id: int) -> LogFrame | None:
    if len(body) - at < HEADER_BYTES:
        return None
    sizes = damaged_frame_sizes(body, at)
    # Before the checksum, which reads the whole frame.
    if sizes[0] != sizes[1]:
        return None
    try:
        frame = parse_frame(body, at, len(body))
    except FrameDamage:
        return None
    return frame if frame.type == _APPEND and frame.topic_id == topic_id else None


def _base_of(chains: list[Chain], rebase: Rebase, end: int) -> int | None:
    """Return the difference of seqs and numbers, if the first or the last frame is intact."""
    if chains and chains[0].start == 0:
        return rebase.first_seq - chains[0].first_number
    if chains and chains[-1].end == end:
        return rebase.last_seq - chains[-1].last_number
    return None
