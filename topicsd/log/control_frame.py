"""The payloads of control frames: one msgpack struct for each frame type.

The structs are encoded as arrays. New fields are added only at the end, with a default that keeps the
meaning of logs without the field, so that every log ever written stays readable.

    >>> frame = encode_control(HeadWatermark(ceiling=300), topic_id=7, ts=0)
    >>> from topicsd.log.frame import parse_frame
    >>> decode_control(parse_frame(frame, 0, len(frame)))
    HeadWatermark(ceiling=300)
"""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.reader_options import ReaderOptions
from shared.contract.route_rule import RouteRule
from shared.contract.schedule_rule import ScheduleRule
from shared.contract.tag_filter import TagFilter, TopicSelection
from shared.contract.topic_config import TopicConfig
from topicsd.log.frame import FrameDamage, FrameType, LogFrame, encode_frame


class TopicCreate(msgspec.Struct, frozen=True, array_like=True):
    """The creation of a topic; the ordinal of this frame is the topic's epoch, or `epoch`."""

    name: str
    config: TopicConfig
    ceiling: int
    epoch: int = 0
    """The epoch, if the ordinal might be the epoch of an adopted topic; 0 for the ordinal."""


class TopicDelete(msgspec.Struct, frozen=True, array_like=True):
    """The deletion of a topic, or with `has_moved` its departure: its objects and its row are in use."""

    epoch: int
    has_moved: bool = False


class Adopt(msgspec.Struct, frozen=True, array_like=True):
    """The arrival of a topic from another shard; its state is in the bundle file of its directory."""

    name: str
    epoch: int
    checksum: int
    """The xxh3_64 of the bundle file."""


class ConfigUpdate(msgspec.Struct, frozen=True, array_like=True):
    config: TopicConfig
    ceiling: int


class Delete(msgspec.Struct, frozen=True, array_like=True):
    """A delete of the records below `below`; with `below` 0 of exactly `seqs`, or of a range.

    `below` is at most head + 1 at the time of the call.
    """

    below: int
    tag: str | None
    is_prefix: bool
    seqs: list[int] = []
    is_dead_letter: bool = False
    """The jobs were moved to the dead-letter topic."""
    is_asked: bool = False
    """A client asked for this delete, which may include jobs that were not done."""
    after: int = 0
    last: int = 0
    """The records after seq `after`, up to `last`, which is at most the head at the time of the call.

    `last` is 0 when the delete is of no range.
    """


class EvictWatermark(msgspec.Struct, frozen=True, array_like=True):
    """The last seq lost to eviction, by reason; replay takes the maximum of each."""

    evicted_to: dict[str, int]


class HeadWatermark(msgspec.Struct, frozen=True, array_like=True):
    """The ceiling, above which no seq was given out; the latest frame applies."""

    ceiling: int


class Idempotency(msgspec.Struct, frozen=True, array_like=True):
    """The idempotency key of the Append frames that follow in the same batch."""

    key: bytes
    records: bytes
    first_seq: int
    count: int


class ProducerFrame(msgspec.Struct, frozen=True, array_like=True):
    """The producer's own seq of the Append frames that follow in the same batch."""

    producer: str
    producer_seq: int
    first_seq: int
    count: int
    moved: tuple[int, ...] = ()
    """The records' seqs in the topic they were moved from; empty for one, whose seq is the producer's."""


class LostRangeFrame(msgspec.Struct, frozen=True, array_like=True):
    """Seqs that were given out and whose records are lost; the head is at least `last`."""

    first: int
    last: int
    reason: str


class Cursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The position of a named cursor in the topic; the last frame of a name applies."""

    name: str
    from_seq: int
    set_ms: int
    is_gone: bool


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule is put, deleted, or has reached a tick, whose jobs are Append frames in the same batch."""

    name: str
    reached_ms: int = 0
    """The newest tick with a job, or when the schedule began: only later ticks get jobs."""
    last_seq: int = 0
    """The seq of the newest job; 0 when it has none."""
    rule: ScheduleRule | None = None
    """The rule from now on; None if it is unchanged."""
    is_gone: bool = False


class SessionFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A watch session of this shard; it belongs to no topic, so the frame's topic id is 0.

    A session without topics is deleted. `names`, `from_seqs` and `epochs` are columns: entry i of each
    belongs to the same topic. With a `topic_filter` they are the topics that existed at its creation.
    """

    session: bytes
    key_id: str = ""
    """Id of the API key that created the session; empty when the server had no keys."""
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
    match: TagFilter | None = None
    topic_filter: TagFilter | None = None
    """Names and patterns of the topics that the session looks for, or None if it has its names only."""
    within: tuple[str, ...] = ()
    """Prefixes of names, of which each topic that it finds has one; empty for all names."""

    @property
    def is_end(self) -> bool:
        """Return whether the frame is the end of its session."""
        return not self.names and self.topic_filter is None

    @property
    def selection(self) -> TopicSelection | None:
        return None if self.topic_filter is None else TopicSelection(self.topic_filter, self.within)

    @property
    def options(self) -> ReaderOptions:
        return ReaderOptions(
            frozenset(self.nodes),
            self.limit,
            self.bytes_max,
            self.with_tags,
            self.with_meta,
            self.with_data,
            self.is_strong,
            self.match,
        )


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The state of jobs of a queue from this frame on.

    `seqs`, `deliveries`, `leases` and `reasons` are columns; `leases` is empty when the jobs have no holder.
    `state` is one of the states in `engine/queue/lease_queue.py`.
    """

    state: int
    seqs: list[int]
    deliveries: list[int]
    leases: list[int] = []
    deadline: int = 0
    node: str = ""
    reason: str = ""
    reasons: list[str] = []
    """Those of parked jobs, one for each seq."""
    priority: int = 0
    """Of new jobs; later frames of these jobs do not repeat it."""


class OwnershipFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the catalog says of the topic, as far as this node knows; the last frame applies."""

    owner_epoch: int
    """0 until the catalog has answered that it has a row of the topic."""
    ceiling: int
    """The highest seq that this node may give out: the ceiling of the row, or of the request to create it."""
    seal_key: str = ""
    """The object of a seal that was sent, and whose answer is unknown."""
    exported_state: int = 0
    """A digest of the state that the newest state object has, without what comes with records."""


class DepartedFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of service of a topic that this node does not own any more; its files are kept."""

    state: str
    """One of the states in `engine/ownership/departed.py`."""
    node: str
    """The owner, or the node that sealed the topic; empty when there is none."""
    owner_epoch: int


class ForwardCreate(msgspec.Struct, frozen=True, array_like=True):
    """The creation or the change of a route; the frame belongs to the topic that keeps the route.

    A new route begins after `seq` of that incarnation of the source, whose head was `source_head`; an
    existing route keeps its position.
    """

    rule: RouteRule
    source_epoch: int
    seq: int
    source_head: int


class ForwardDelete(msgspec.Struct, frozen=True, array_like=True):
    name: str


class ForwardCursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A route step: the source was read up to `seq`, and `count` copies were made.

    A step of a webhook has neither offsets nor copies: `count` records were delivered. Otherwise, without
    `offsets` the copies are Append frames that follow in the same batch. With `offsets` this frame is
    the only entry of the copies in the log: their seqs begin at `first_seq`, their time is that of this
    frame, and their content is already in the log, in the file that begins with the ordinal `file`. `offsets`
    and `sizes` are columns: each pair is a range of consecutive Append frames, each of which is one copy.
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
        """Last seq of the copies that the frame names; 0 when it names none."""
        return self.first_seq + self.count - 1 if self.offsets else 0


COPIES_MAX: Final = 256
"""Maximum number of copies that one ForwardCursor names."""


ControlPayload = (
    TopicCreate
    | TopicDelete
    | ConfigUpdate
    | Delete
    | EvictWatermark
    | HeadWatermark
    | Idempotency
    | ProducerFrame
    | LostRangeFrame
    | SessionFrame
    | Cursor
    | Schedule
    | Lease
    | ForwardCreate
    | ForwardDelete
    | ForwardCursor
    | Adopt
    | OwnershipFrame
    | DepartedFrame
)

_TYPES: dict[type[ControlPayload], FrameType] = {
    TopicCreate: FrameType.TOPIC_CREATE,
    TopicDelete: FrameType.TOPIC_DELETE,
    ConfigUpdate: FrameType.CONFIG_UPDATE,
    Delete: FrameType.DELETE,
    EvictWatermark: FrameType.EVICT_WATERMARK,
    HeadWatermark: FrameType.HEAD_WATERMARK,
    Idempotency: FrameType.IDEMPOTENCY,
    ProducerFrame: FrameType.PRODUCER,
    LostRangeFrame: FrameType.LOST_RANGE,
    SessionFrame: FrameType.WATCH_SESSION,
    Cursor: FrameType.CURSOR,
    Schedule: FrameType.SCHEDULE,
    Lease: FrameType.LEASE,
    ForwardCreate: FrameType.FORWARD_CREATE,
    ForwardDelete: FrameType.FORWARD_DELETE,
    ForwardCursor: FrameType.FORWARD_CURSOR,
    Adopt: FrameType.ADOPT,
    OwnershipFrame: FrameType.OWNERSHIP,
    DepartedFrame: FrameType.DEPARTED,
}
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[int, msgspec.msgpack.Decoder[ControlPayload]] = {
    int(frame_type): msgspec.msgpack.Decoder(struct) for struct, frame_type in _TYPES.items()
}


def encode_control(control: ControlPayload, *, topic_id: int, ts: int, durable: bool = False) -> bytes:
    payload = _encoder.encode(control)
    return encode_frame(_TYPES[type(control)], topic_id=topic_id, ts=ts, payload=payload, durable=durable)


def decode_control(frame: LogFrame) -> ControlPayload:
    """Return the struct of a control frame; raise FrameDamage when the payload is invalid."""
    decoder = _decoders.get(frame.type)
    if decoder is None:
        raise FrameDamage(0, f"frame type {frame.type} has no control payload in this version")
    try:
        return decoder.decode(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameDamage(
            0, f"the payload of a {FrameType(frame.type).name} frame is damaged: {error}"
        ) from None


def frame_type_of(control: type[ControlPayload]) -> FrameType:
    return _TYPES[control]
