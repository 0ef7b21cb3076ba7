"""What the engine is asked and what it answers: plain structs, the same for every way in.

`data` and `meta` are raw JSON and stay it: they are never built into objects. Whoever decodes a request has
checked that they are well-formed; sizes are checked here, against the limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from shared.contract.topic_config import TopicConfig, TopicConfigPatch
from topicsd.engine.queue.job import Claimed, Counts
from topicsd.log.frame import Record

# What a record without meta has: a union with None would keep the decoder from taking meta as it is.
NO_META = msgspec.Raw(b"")


class NewRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = NO_META


class CopiedRecord(NewRecord, forbid_unknown_fields=False, gc=False):
    """One as a page has it, on its way into another topic."""

    seq: int = msgspec.field(name="$seq", default=0)
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)


class Producer(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Who writes, and the number that this write has there."""

    id: str
    seq: int


class AppendRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """`node` is for the records that name none; `create` is the topic's own `auto_create` unless given.

    With `disable_backpressure` it is refused at the bounds, but not before. `expected_head` is the highest
    seq that may have been given out before it.
    """

    records: list[NewRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfigPatch | None = None
    disable_backpressure: bool = False
    expected_head: int | None = None
    producer: Producer | None = None
    delay_ms: int | str | None = None
    not_before: int | str | None = None
    """Of a write to a queue: when its jobs are ready, as the client wrote it; at most one of the two."""
    is_stamped: ClassVar[bool] = False
    """It is ours: what was added to the meta does not count against its limits."""


class Move(Producer, gc=False):
    """Records on their way from another topic: who moves them, the highest of their seqs there, and that of
    those before them."""

    after: int | None = None
    seqs: list[int] = []
    """Of all of them, in their order; of a single one it need not be said."""


class StampedAppend(AppendRequest, gc=False):
    producer: Move | None = None
    is_stamped: ClassVar[bool] = True


class Appended(msgspec.Struct, gc=False, frozen=True):
    """Of a producer's write before its last one it is not known where its records are: its seqs are 0."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    created: bool
    deduped: bool
    durability: str


class DeleteRequest(msgspec.Struct, frozen=True):
    """At least one of `before_seq` and `tag`; with both, both must hold. `tag` may be a prefix. Or the very
    ones of `seqs`, and nothing else."""

    before_seq: int | None = None
    tag: str | None = None
    is_prefix: bool = False
    seqs: list[int] | None = None


class Deleted(msgspec.Struct, frozen=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class ClaimRequest(msgspec.Struct, frozen=True):
    """For how long is the queue's own unless given."""

    node: str
    count: int = 1
    lease_ms: int | None = None


class ClaimAnswer(msgspec.Struct, frozen=True):
    topic: str
    jobs: dict[int, bytes]
    """Each as JSON, by its seq, in the order in which they were handed out."""
    claimed: list[Claimed]
    """Also of those whose record is gone already, or cannot be read."""
    ready: int


class SettleRequest(msgspec.Struct, frozen=True):
    """What becomes of jobs that the node holds; `leases` says by which numbers, one for each seq."""

    node: str
    seqs: list[int]
    leases: list[int] | None = None
    ms: int = 0
    """The delay, or for how long they are held from now on."""
    reason: str = ""


class Settled(msgspec.Struct, frozen=True):
    topic: str
    done: list[int]
    skipped: list[int]
    """Seqs that the node did not hold."""
    reasons: dict[int, str]
    """Why, by seq."""
    counts: Counts
    deadline: int = 0


class TopicPut(msgspec.Struct, frozen=True):
    topic: str
    created: bool
    config: TopicConfig


class TopicDeleted(msgspec.Struct, frozen=True):
    topic: str
    deleted: bool
    forwards: list[str] = []
    """Those that copied into it, which are gone with it."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
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
    """How long the oldest job that is ready has been in the queue."""


class ReadRequest(msgspec.Struct, frozen=True):
    """Records behind `from_seq`, but for those of the nodes; `epoch` is that of an earlier answer. With
    `is_strong` only what is synced, where the topic's class has a sync."""

    from_seq: int = 0
    limit: int = 256
    nodes: frozenset[str] = frozenset()
    epoch: int | None = None
    bytes_max: int = 1 << 20
    with_tags: bool = True
    with_meta: bool = True
    is_strong: bool = False


class Tombstone(msgspec.Struct, frozen=True):
    """The report of involuntary loss: nobody will ever see `gap_from` to `gap_to`."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class RenderedRecord(msgspec.Struct, frozen=True):
    """A record as a page has it."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    node: str = msgspec.field(name="$node", default="")
    tag: str = msgspec.field(name="$tag", default="")
    meta: msgspec.Raw = msgspec.Raw(b"")

    def record(self) -> Record:
        meta = bytes(self.meta) or None
        return Record(self.seq, self.ts, bytes(self.data), self.tag.encode(), self.node.encode(), meta)


_decode_records = msgspec.json.Decoder(list[RenderedRecord]).decode


class ReadAnswer(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    parts: list[bytes | memoryview]
    """The records as JSON, in their order, each with a comma behind it."""
    count: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None = None

    @property
    def records(self) -> list[Record]:
        """The records as objects, for whoever looks at them one by one."""
        text = b"".join(self.parts)
        return [one.record() for one in _decode_records(b"[%b]" % text[:-1])]

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq


Reply = Callable[[Any], Any]
"""Called once, with the answer or a `Refusal`. Only a refusal may come before the call has returned."""
