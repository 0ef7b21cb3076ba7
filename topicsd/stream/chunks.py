"""A chunk: the result of one read after a cursor, shared by all followers at that cursor.

The records of a chunk are JSON that was rendered once, in a page. The chunk joins the slices, and each
protocol (`sse_frames.py`, `websocket/frames.py`) renders its bytes of a chunk once, for any number of
clients.

A chunk crosses the link as msgpack of its fields in their order, with the tombstone as an array or nil.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from shared.contract.reader_options import ReaderOptions
from topicsd.engine.requests import ReadAnswer, ReadRequest, Tombstone

RECREATED: Final = "recreated"


class FeedSpec(NamedTuple):
    """A topic, and the options of its followers. Followers with equal values share chunks."""

    topic: str
    options: ReaderOptions
    is_for_routes: bool = False
    """Whether the followers are routes. Chunks then end where `limit` divides the seq, so that followers
    with different cursors soon have the same ones, and new records are gathered for a moment (F4 of
    `feed.py`). For topics of this shard only."""

    def request(self, seq: int, epoch: int | None) -> ReadRequest:
        options = self.options
        if self.is_for_routes:
            limit = options.limit - seq % options.limit
            options = msgspec.structs.replace(options, limit=limit)
        return ReadRequest(seq, options, epoch)


class Chunk:
    __slots__ = (
        "count",
        "earliest_seq",
        "epoch",
        "from_seq",
        "head_seq",
        "lines",
        "records",
        "sse",
        "sse_with_ids",
        "to_seq",
        "tombstone",
        "topic",
        "ws",
    )

    def __init__(
        self,
        topic: str,
        epoch: int,
        from_seq: int,
        to_seq: int,
        head_seq: int,
        earliest_seq: int,
        count: int,
        records: bytes,
        tombstone: Tombstone | None,
    ) -> None:
        self.topic = topic
        self.epoch = epoch
        self.from_seq = from_seq
        """The cursor before the chunk."""
        self.to_seq = to_seq
        """The cursor after the chunk."""
        self.head_seq = head_seq
        self.earliest_seq = earliest_seq
        self.count = count
        self.records = records
        """JSON objects, separated by commas."""
        self.tombstone = tombstone
        self.sse: list[tuple[int, bytes]] | None = None
        self.sse_with_ids: bytes | None = None
        self.ws: bytes | None = None
        self.lines: list[bytes] | None = None
        """`sse`, `sse_with_ids`, `ws` and `lines` are the rendered bytes of each protocol, or None."""

    @property
    def is_at_head(self) -> bool:
        return self.to_seq >= self.head_seq

    @property
    def records_from(self) -> int:
        """Return the cursor before the first record, which is after the lost records."""
        tombstone = self.tombstone
        if tombstone is None:
            return self.from_seq
        if not self.count:
            return self.to_seq
        return tombstone.earliest_seq - 1 if tombstone.reason == RECREATED else tombstone.gap_to

    def cut(self, count: int) -> Chunk:
        """Return the chunk up to its record number `count`, which it has."""
        assert 0 < count <= self.count
        records = split_records(self.records)[:count]
        last_seq = _decode_bare_one(records[-1]).seq
        return Chunk(
            self.topic,
            self.epoch,
            self.from_seq,
            last_seq,
            self.head_seq,
            self.earliest_seq,
            count,
            b",".join(records),
            self.tombstone,
        )

    @property
    def is_empty(self) -> bool:
        """Return whether the chunk has no record and no tombstone. Its cursor may have moved."""
        return not self.count and self.tombstone is None


def split_records(records: bytes) -> list[bytes]:
    """Return the records of a chunk one by one.

    >>> split_records(b'{"$seq":1,"data":[1,2]},{"$seq":2,"data":"},{"}')
    [b'{"$seq":1,"data":[1,2]}', b'{"$seq":2,"data":"},{"}']
    """
    return [bytes(record) for record in _decode_raw(b"[%b]" % records)]


def chunk_of(answer: ReadAnswer, spec: FeedSpec, from_seq: int) -> Chunk:
    records = b"".join(answer.parts)[:-1]
    return Chunk(
        answer.topic,
        answer.epoch,
        from_seq,
        answer.next_from_seq,
        answer.head_seq,
        answer.earliest_seq,
        answer.count,
        records if spec.options.with_data else _without_data(records),
        answer.tombstone,
    )


class _BareRecord(msgspec.Struct, gc=False, omit_defaults=True):
    """A record without its data."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str = msgspec.field(name="$node", default="")
    tag: str = msgspec.field(name="$tag", default="")
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_bare = msgspec.json.Decoder(list[_BareRecord]).decode
_decode_bare_one = msgspec.json.Decoder(_BareRecord).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode_json = msgspec.json.Encoder().encode


def _without_data(records: bytes) -> bytes:
    return _encode_json(_decode_bare(b"[%b]" % records))[1:-1]


_Wire = tuple[str, int, int, int, int, int, int, bytes, tuple[int, int, str, int, int, int] | None]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Wire).decode


def encode_chunk(chunk: Chunk) -> bytes:
    tombstone = chunk.tombstone
    return _encode(
        (
            chunk.topic,
            chunk.epoch,
            chunk.from_seq,
            chunk.to_seq,
            chunk.head_seq,
            chunk.earliest_seq,
            chunk.count,
            chunk.records,
            None if tombstone is None else msgspec.structs.astuple(tombstone),
        )
    )


def decode_chunk(payload: bytes) -> Chunk:
    topic, epoch, from_seq, to_seq, head_seq, earliest_seq, count, records, tombstone_fields = _decode(
        payload
    )
    tombstone = None if tombstone_fields is None else Tombstone(*tombstone_fields)
    return Chunk(topic, epoch, from_seq, to_seq, head_seq, earliest_seq, count, records, tombstone)
