"""What control frames say: one msgpack struct a type, as the frame's payload.

The structs are arrays on the wire; a field is only ever added at the end, with a default that means what
logs without it meant, so that every log that was ever written stays readable.

    >>> frame = encode_control(HeadWatermark(ceiling=300), topic_id=7, ts=0)
    >>> from topicsd.log.frame import parse_frame
    >>> decode_control(parse_frame(frame, 0, len(frame)))
    HeadWatermark(ceiling=300)
"""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.route_rule import ForwardRule
from shared.contract.topic_config import TopicConfig
from topicsd.log.frame import Frame, FrameDamage, FrameType, encode_frame


class TopicCreate(msgspec.Struct, frozen=True, array_like=True):
    """The ordinal of this frame is the topic's epoch."""

    name: str
    config: TopicConfig
    ceiling: int


class TopicDelete(msgspec.Struct, frozen=True, array_like=True):
    epoch: int


class ConfigUpdate(msgspec.Struct, frozen=True, array_like=True):
    config: TopicConfig
    ceiling: int


class Delete(msgspec.Struct, frozen=True, array_like=True):
    """Deletes what is below `below`, which is at most the seq behind the head at the call; with `seqs` those
    and nothing else, and `below` is 0."""

    below: int
    tag: str | None
    is_prefix: bool
    seqs: list[int] = []
    is_dead_letter: bool = False
    """They are in the dead-letter topic."""
    is_asked: bool = False
    """Somebody wanted just these gone, also where they were jobs that nobody had done."""


class EvictWatermark(msgspec.Struct, frozen=True, array_like=True):
    """How far records were lost, by reason; replay takes the maximum of each."""

    evicted_to: dict[str, int]


class HeadWatermark(msgspec.Struct, frozen=True, array_like=True):
    """No seq above the ceiling was ever given out; the latest one counts."""

    ceiling: int


class Idempotency(msgspec.Struct, frozen=True, array_like=True):
    """The key of the Append frames behind it in the same batch."""

    key: bytes
    records: bytes
    first_seq: int
    count: int


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """The producer's own seq of the Append frames behind it in the same batch."""

    producer: str
    producer_seq: int
    first_seq: int
    count: int
    moved: tuple[int, ...] = ()
    """The seqs that records had where they were moved from; empty for one, whose seq is the producer's."""


class LostRange(msgspec.Struct, frozen=True, array_like=True):
    """Seqs that were given out and whose records are gone; the head is at least `last`."""

    first: int
    last: int
    reason: str


class Cursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a reader of the topic has come; the last frame of a name counts."""

    name: str
    from_seq: int
    set_ms: int
    is_gone: bool


class WatchSession(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session of this shard, which no topic owns: the frame's topic id is 0. One without topics is gone.

    `names`, `from_seqs` and `epochs` are columns: entry i of each is of the same topic.
    """

    session: bytes
    key_id: str = ""
    """Of the key that made it; empty when there were no keys."""
    names: list[str] = []
    from_seqs: list[int] = []
    epochs: list[int] = []
    nodes: list[str] = []
    limit: int = 0
    bytes_max: int = 0
    heartbeat_ms: int = 0
    with_tags: bool = False
    with_meta: bool = True
    with_data: bool = True
    is_strong: bool = False


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """What jobs of a queue are from here on. `seqs`, `deliveries` and `leases` are columns; the last one is
    empty where nobody has them. `state` is one of those in `engine/queue/lease_queue.py`."""

    state: int
    seqs: list[int]
    deliveries: list[int]
    leases: list[int] = []
    deadline: int = 0
    node: str = ""
    reason: str = ""


class ForwardCreate(msgspec.Struct, frozen=True, array_like=True):
    """A rule of the topic that it copies into, or what it is from here on. It begins behind `seq` of that
    incarnation of the source, whose head was `source_head`; one that is there stays where it is."""

    rule: ForwardRule
    source_epoch: int
    seq: int
    source_head: int


class ForwardDelete(msgspec.Struct, frozen=True, array_like=True):
    name: str


class ForwardCursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The source was looked at up to `seq`, and so many copies were made of what was found.

    Without `offsets` they are Append frames, behind it in the same batch. Else nothing but this frame says
    that they are there: they have the seqs from `first_seq` on and the time of this frame, and what they hold
    stands in the log already, in the file that begins with the ordinal `file`. `offsets` and `sizes` are
    columns: at each offset so many bytes of Append frames, one behind the other, each of which is one copy.
    """

    name: str
    seq: int
    count: int
    first_seq: int = 0
    file: int = 0
    offsets: list[int] = []
    sizes: list[int] = []

    @property
    def last_seq(self) -> int:
        """Of the copies that it names; 0 when it names none."""
        return self.first_seq + self.count - 1 if self.offsets else 0


COPIES_MAX: Final = 256
"""How many copies one ForwardCursor names at most."""


Control = (
    TopicCreate
    | TopicDelete
    | ConfigUpdate
    | Delete
    | EvictWatermark
    | HeadWatermark
    | Idempotency
    | Producer
    | LostRange
    | WatchSession
    | Cursor
    | Lease
    | ForwardCreate
    | ForwardDelete
    | ForwardCursor
)

_TYPES: dict[type[Control], FrameType] = {
    TopicCreate: FrameType.TOPIC_CREATE,
    TopicDelete: FrameType.TOPIC_DELETE,
    ConfigUpdate: FrameType.CONFIG_UPDATE,
    Delete: FrameType.DELETE,
    EvictWatermark: FrameType.EVICT_WATERMARK,
    HeadWatermark: FrameType.HEAD_WATERMARK,
    Idempotency: FrameType.IDEMPOTENCY,
    Producer: FrameType.PRODUCER,
    LostRange: FrameType.LOST_RANGE,
    WatchSession: FrameType.WATCH_SESSION,
    Cursor: FrameType.CURSOR,
    Lease: FrameType.LEASE,
    ForwardCreate: FrameType.FORWARD_CREATE,
    ForwardDelete: FrameType.FORWARD_DELETE,
    ForwardCursor: FrameType.FORWARD_CURSOR,
}
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[int, msgspec.msgpack.Decoder[Control]] = {
    int(frame_type): msgspec.msgpack.Decoder(struct) for struct, frame_type in _TYPES.items()
}


def encode_control(control: Control, *, topic_id: int, ts: int, durable: bool = False) -> bytes:
    payload = _encoder.encode(control)
    return encode_frame(_TYPES[type(control)], topic_id=topic_id, ts=ts, payload=payload, durable=durable)


def decode_control(frame: Frame) -> Control:
    """The struct of a control frame; FrameDamage when its payload is none."""
    decoder = _decoders.get(frame.type)
    if decoder is None:
        raise FrameDamage(0, f"frame type {frame.type} has no control payload in this version")
    try:
        return decoder.decode(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameDamage(
            0, f"the payload of a {FrameType(frame.type).name} frame is damaged: {error}"
        ) from None


def frame_type_of(control: type[Control]) -> FrameType:
    return _TYPES[control]
