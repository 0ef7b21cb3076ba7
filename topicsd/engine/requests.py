"""Requests to the engine and its answers: plain structs, the same for every protocol.

`data` and `meta` stay raw JSON and are never decoded into objects. The decoder of the request has checked
that they are well-formed; the engine checks their sizes against the limits. The data of a record of bytes is
raw too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec

from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.topic_config import TopicConfig, TopicConfigPatch
from topicsd.engine.queue.job import ClaimedJob, Counts
from topicsd.log.frame import Record

# The meta of a record without meta. A union with None would keep the decoder from taking meta as raw JSON.
NO_META = msgspec.Raw(b"")
# The data of a record in the form of a page that has `data_base64` instead.
NO_DATA = msgspec.Raw(b"")


class NewRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record to append."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = NO_META

    is_bytes: ClassVar[bool] = False


class BytesRecord(NewRecord, gc=False):
    """A record to append whose `data` is any bytes."""

    is_bytes: ClassVar[bool] = True


class CopiedRecord(NewRecord, forbid_unknown_fields=False, gc=False):
    """A record in the form of a page, to be written to another topic.

    A record of bytes has `data_base64`, decoded, and empty `data`, which JSON never is.
    """

    data: msgspec.Raw = NO_DATA
    seq: int = msgspec.field(name="$seq", default=0)
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    data_base64: bytes = b""


class ProducerSeq(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The id of a producer and the producer's number for this write."""

    id: str
    seq: int


class AppendRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A request to append records to a topic.

    `node` applies to records without a node. A missing topic is created unless `create` is false. With
    `disable_backpressure` the request is refused only at the hard bounds, not before. `expected_head` is the
    highest seq that may have been given out before this request.
    """

    records: list[NewRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfigPatch | None = None
    disable_backpressure: bool = False
    expected_head: int | None = None
    producer: ProducerSeq | None = None
    delay_ms: int | str | None = None
    not_before: int | str | None = None
    """The time at which the jobs of a write to a queue become ready, as the client sent it.

    `delay_ms` is the same as a delay; at most one of the two is given.
    """
    priority: int | None = None
    """The priority of the jobs of a write to a queue."""
    is_stamped: ClassVar[bool] = False
    """True for writes by the server itself, whose additions to the meta do not count against the limits."""


class TransferSeq(ProducerSeq, gc=False):
    """The numbering of records that are moved from another topic (P4 of `producer_write.py`).

    `id` is the mover, `seq` the highest seq of the records in their source, and `after` the `seq` of the
    mover's previous write.
    """

    after: int | None = None
    seqs: list[int] = []
    """The seqs of all records in their source, in order; may be empty for a single record."""


class StampedAppend(AppendRequest, gc=False):
    """An append by the server itself, which has added a stamp to the meta of the records."""

    producer: TransferSeq | None = None
    is_stamped: ClassVar[bool] = True


class AppendAnswer(msgspec.Struct, gc=False, frozen=True):
    """The answer to an append.

    The seqs are 0 for a repeat of a producer's write before its last one: the topic does not keep them.
    """

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    created: bool
    deduped: bool
    durability: str


class DeleteRequest(msgspec.Struct, frozen=True):
    """A request to delete records by condition or by seq.

    It has at least one of `before_seq` and `tag`; with both, a record must match both. `tag` may be a prefix.
    Or it has `seqs`, and exactly those records are deleted. Or it has `after_seq`, which truncates the topic:
    all later records are deleted, or those before `before_seq` of them.
    """

    before_seq: int | None = None
    tag: str | None = None
    is_prefix: bool = False
    seqs: list[int] | None = None
    after_seq: int | None = None


class DeleteAnswer(msgspec.Struct, frozen=True):
    """The answer to a delete of records, with the state of the topic after it."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class ClaimRequest(msgspec.Struct, frozen=True):
    """A request to lease jobs to a node. `lease_ms` defaults to the lease time of the queue."""

    node: str
    count: int = 1
    lease_ms: int | None = None
    wait_ms: int = 0
    """How long `claim_with_wait` waits for a job."""


class ClaimAnswer(msgspec.Struct, frozen=True):
    """The answer to a claim."""

    topic: str
    jobs: dict[int, bytes]
    """The claimed jobs as JSON, by seq, in the order in which they were leased."""
    claimed: list[ClaimedJob]
    """All leases, including jobs whose record no longer exists or cannot be read."""
    ready: int
    has_waited: bool = False


class SettleRequest(msgspec.Struct, frozen=True):
    """A request to ack, nack or extend jobs held by the node.

    `leases`, if given, has one lease number for each seq.
    """

    node: str
    seqs: list[int]
    leases: list[int] | None = None
    ms: int | None = 0
    """The delay of a nack, None for that of `retry`, or the new remaining lease time of an extend."""
    reason: str = ""


class SettleAnswer(msgspec.Struct, frozen=True):
    """The answer to a `SettleRequest`."""

    topic: str
    done: list[int]
    skipped: list[int]
    """The seqs that the node did not hold."""
    reasons: dict[int, str]
    """The reason of each skipped seq."""
    counts: Counts
    deadline: int = 0


class TopicPut(msgspec.Struct, frozen=True):
    """The answer to the creation or configuration of a topic."""

    topic: str
    created: bool
    config: TopicConfig


class TopicDeleted(msgspec.Struct, frozen=True):
    """The answer to the deletion of a topic; `deleted` is false if it did not exist."""

    topic: str
    deleted: bool
    routes: list[str] = []
    """The routes into the topic, which were deleted with it."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers and the configuration of one topic."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    durable_seq: int
    count: int
    bytes: int
    last_write_ts: int
    last_read_ts: int
    effective_priority: int
    config: TopicConfig
    queue: Counts | None = None
    oldest_ready_ms: int = 0
    """The time that the oldest ready job has been in the queue."""


class ReadRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for records after `from_seq`. `epoch` is the epoch of an earlier answer."""

    from_seq: int = 0
    options: ReaderOptions = ReaderOptions()
    epoch: int | None = None


class Tombstone(msgspec.Struct, frozen=True):
    """The report of involuntary loss: the seqs `gap_from` to `gap_to` will never be readable."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class RenderedRecord(msgspec.Struct, frozen=True):
    """A record in the form of a page."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw = NO_DATA
    node: str = msgspec.field(name="$node", default="")
    tag: str = msgspec.field(name="$tag", default="")
    meta: msgspec.Raw = msgspec.Raw(b"")
    data_base64: bytes | None = None

    @property
    def is_bytes(self) -> bool:
        return self.data_base64 is not None

    @property
    def content(self) -> bytes:
        """Return the data as it was appended: JSON, or bytes."""
        return bytes(self.data) if self.data_base64 is None else self.data_base64

    def record(self) -> Record:
        meta = bytes(self.meta) or None
        tag, node = self.tag.encode(), self.node.encode()
        return Record(self.seq, self.ts, self.content, tag, node, meta, self.is_bytes)


_decode_records = msgspec.json.Decoder(list[RenderedRecord]).decode


class ReadAnswer(msgspec.Struct, frozen=True):
    """The answer to a read."""

    topic: str
    epoch: int
    parts: list[bytes | memoryview]
    """The records as JSON, in order, each followed by a comma."""
    count: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None = None

    @property
    def records(self) -> list[Record]:
        """Return the records as objects, for callers that handle them one by one."""
        return [one.record() for one in self.rendered()]

    def rendered(self) -> list[RenderedRecord]:
        """Return the records in the form of a page."""
        return _decode_records(b"[%b]" % b"".join(self.parts)[:-1])

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq


T = TypeVar("T")
Reply = Callable[[T | Refusal], object]
"""Called once, with the answer or a `Refusal`. Only a refusal may be passed before the request returns."""
