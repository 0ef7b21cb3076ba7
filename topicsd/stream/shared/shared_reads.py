"""Reads of shared topics, with the answers that reads of local topics have (`topicsd/engine/read/read.py`).

E1  The epoch of a shared topic is its incarnation, which grows with each creation of the name. So a position
    of a former topic of the name gets the tombstone `recreated`, as in a local topic.
E2  A position past the known head is compared with the catalog before it is refused or taken for one of a
    former topic: another broker may just have committed the records.
E3  Seqs that retention removed are one tombstone. Seqs that a client deleted are passed over in silence, also
    those in front of evicted ones.
E4  Times of records are those of the brokers that took them. They never fall within one blob, and follow the
    clocks of the brokers from blob to blob. A position by time is exact for one broker; with several, records
    whose times differ by less than the clocks and the batching do may be on either side of it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from shared.contract.errors import CORRUPT_SEGMENT, GONE, Refusal, invalid
from shared.contract.seek import Seek
from shared.runtime.clock import Clock
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.broker.broker import Broker
from topicsd.broker.frames_v1 import Decoded
from topicsd.broker.read.reader import ROW_SECONDS, SharedRead, TopicRead, refusal_of
from topicsd.broker.read.tail_cache import TailChunk
from topicsd.broker.refusals import no_such_topic, store_failed
from topicsd.broker.shared_config import decode_shared_config
from topicsd.broker.steps import Steps, run
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.engine.read.page import VARIANTS
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.read.position import position_past_head
from topicsd.engine.requests import ReadAnswer, ReadRequest, Reply, Tombstone
from topicsd.stream.chunks import RECREATED
from topicsd.stream.shared.chunk_pages import ChunkSlices, DamagedChunks, cache_key, decode_damaged

T = TypeVar("T")

logger = logging.getLogger("topicsd.stream")

ROUNDS_MAX: Final = 64
"""Reads of the broker for one answer; each returns records, unless they vanish meanwhile."""
FILTERED_ROUNDS_MAX: Final = 8
"""The same for a filter, which may select none of them: then the answer has the new position only."""
FETCH_BYTES_MIN: Final = 64 << 10
CURRENT: Final = -1.0
"""The age of a row that is looked up now."""
DAMAGED_KEYS_MAX: Final = 1000


class SharedPosition(NamedTuple):
    """The state of a shared topic, and the position that a seek found."""

    head_seq: int
    earliest_seq: int
    epoch: int
    from_seq: int | None


class _Missing(NamedTuple):
    """What a read needs before it can be answered: `undecoded`, the chunk of `seq`, or the present head."""

    seq: int = 0
    bytes_wanted: int = 0
    undecoded: TailChunk | None = None
    """A damaged chunk that has to be decoded."""


class SharedReads:
    def __init__(self, broker: Broker, pages: PageCache, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._pages = pages
        self._decoded: OrderedDict[Any, Decoded] = OrderedDict()
        self._damaged_keys: dict[str, None] = {}
        """Objects whose damage was logged."""

    def try_read(
        self, name: str, request: ReadRequest, *, is_follower: bool = False
    ) -> ReadAnswer | Refusal | None:
        """Read without waiting, from memory; None when that is not possible.

        A follower waits at the head that this broker knows. For others, a read that reaches the head reaches
        that of the catalog, which may be older by the time of a poll.
        """
        if self._broker.read_refusal is not None:
            return self._broker.read_refusal
        topic = self._broker.topics.known(name, ROW_SECONDS)
        if topic is None:
            return None
        try:
            answer = self._assemble(topic, request, (), DamagedChunks(self._decoded), False, is_follower)
        except Exception as error:
            return _unexpected(error)
        return None if isinstance(answer, _Missing) else answer

    def read(
        self, name: str, request: ReadRequest, reply: Reply[ReadAnswer], *, is_follower: bool = False
    ) -> None:
        """Read, at once or later; `reply` gets a `ReadAnswer` or a `Refusal`."""
        run(_guarded(self._read(name, request, is_follower)), partial(_end, reply))

    def evict_floor(self, name: str) -> int:
        """Return the seq after the last one that was evicted, of a topic that was just read."""
        topic = self._broker.topics.known(name)
        return 1 if topic is None else topic.evicted_to + 1

    def _read(self, name: str, request: ReadRequest, is_follower: bool) -> Steps[ReadAnswer | Refusal]:
        broker, chunks = self._broker, list[TailChunk]()
        if broker.read_refusal is not None:
            return broker.read_refusal
        damaged = DamagedChunks(self._decoded)
        is_checked = False
        row_seconds = ROW_SECONDS
        for number in range(ROUNDS_MAX):
            asked_at = self._clock.monotonic()
            topic: SharedTopic | None = yield broker.topics.find(name, row_seconds)
            if topic is None:
                return no_such_topic(name)
            is_checked = is_checked or row_seconds == CURRENT
            broker.heads.advance(
                name, topic.incarnation, topic.head, asked_at if row_seconds == CURRENT else None
            )
            row_seconds = ROW_SECONDS
            answer = self._assemble(topic, request, chunks, damaged, is_checked, is_follower)
            if not isinstance(answer, _Missing):
                return answer
            if number >= FILTERED_ROUNDS_MAX and request.options.match is not None:
                partly = self._assemble(topic, request, chunks, damaged, True, is_follower, is_final=True)
                if isinstance(partly, ReadAnswer) and partly.next_from_seq > request.from_seq:
                    return partly
            if answer.undecoded is not None:
                try:
                    decoded = yield broker.laggard_reads.call(partial(decode_damaged, answer.undecoded))
                except OSError as error:
                    return store_failed(error)
                damaged.add(answer.undecoded, decoded)
                continue
            if not answer.seq:
                row_seconds = CURRENT
                continue
            one = TopicRead(name, answer.seq, answer.bytes_wanted, topic.incarnation, as_chunks=True)
            (records,) = yield from broker.reader.steps(SharedRead([one], 0, answer.bytes_wanted))
            chunks = [*chunks, *records.chunks]
            if records.refusal is not None and records.refusal.code != GONE:
                partly = self._assemble(topic, request, chunks, damaged, True, is_follower, is_final=True)
                return partly if isinstance(partly, ReadAnswer) and partly.count else records.refusal
        return store_failed(OSError(f'topic "{name}": the records after {request.from_seq} cannot be read'))

    # -- one answer from what is in memory

    def _assemble(
        self,
        topic: SharedTopic,
        request: ReadRequest,
        chunks: Sequence[TailChunk],
        damaged: DamagedChunks,
        is_checked: bool,
        is_follower: bool,
        is_final: bool = False,
    ) -> ReadAnswer | Refusal | _Missing:
        """Answer from pages and chunks. `is_checked`: the head was compared with the catalog.

        A final answer has what is there.
        """
        name, incarnation, heads = topic.name, topic.incarnation, self._broker.heads
        head = max(topic.head, heads.head(name, incarnation))
        cursor, epoch, options = request.from_seq, request.epoch, request.options
        floor = topic.first_seq - 1
        tombstone = None
        if cursor < floor or cursor > head or (epoch is not None and epoch != incarnation):
            if cursor < 0:
                return invalid("from_seq", f"must be at least 0, got {cursor}")
            if cursor > head and not is_checked:
                return _Missing()
            if cursor > head and epoch == incarnation:
                return position_past_head(name, cursor, head, incarnation)
            tombstone = _tombstone(topic, request, head)
            cursor = floor
        reach = cursor if is_follower else cursor + options.limit
        if reach >= head and not is_checked and not heads.is_current(name, incarnation):
            return _Missing()
        key = cache_key(name, incarnation)
        if not options.nodes and options.match is None and cursor < head:
            # All records are in cached pages: hot path.
            last = min(head, cursor + options.limit)
            variant = VARIANTS[options.with_tags, options.with_meta]
            parts = self._pages.slices(key, cursor + 1, last, variant, options.bytes_max)
            if parts is not None:
                return ReadAnswer(
                    name, incarnation, parts, last - cursor, last, head, topic.first_seq, tombstone
                )
        slices = ChunkSlices(self._pages, key, self._finder(topic, chunks), damaged, options, cursor)
        slices.collect(head)
        if slices.undecoded is not None and not is_final:
            return _Missing(undecoded=slices.undecoded)
        if slices.missing_seq and not is_final:
            return _Missing(slices.missing_seq, min(options.bytes_max, max(FETCH_BYTES_MIN, slices.room)))
        if slices.damaged_seq and not slices.parts and tombstone is None:
            return self._corrupt(topic, slices)
        return ReadAnswer(
            name, incarnation, slices.parts, slices.count, slices.cursor, head, topic.first_seq, tombstone
        )

    def _finder(self, topic: SharedTopic, chunks: Sequence[TailChunk]) -> Callable[[int], TailChunk | None]:
        name, incarnation, cache = topic.name, topic.incarnation, self._broker.cache

        def find(seq: int) -> TailChunk | None:
            for chunk in reversed(chunks):
                rebase = chunk.rebase
                if (
                    rebase.first_seq <= seq <= rebase.last_seq
                    and rebase.incarnation == incarnation
                    and not chunk.is_dropped
                ):
                    return chunk
            return cache.find(name, incarnation, seq)

        return find

    def _corrupt(self, topic: SharedTopic, slices: ChunkSlices) -> Refusal:
        damage, chunk = slices.damage_at(slices.damaged_seq), slices.damaged_chunk
        assert chunk is not None
        place = chunk.key or "memory"
        seqs = f"seqs {damage.first_seq} to {damage.last_seq}"
        message = f'{seqs} of topic "{topic.name}" are damaged in {place}: {damage.what}'
        if place not in self._damaged_keys and len(self._damaged_keys) < DAMAGED_KEYS_MAX:
            self._damaged_keys[place] = None
            logger.error("object: damaged: %s", message)
        detail: dict[str, object] = {
            "segment": place,
            "first_seq": damage.first_seq,
            "last_seq": damage.last_seq,
            "next_from_seq": damage.last_seq,
        }
        return Refusal(CORRUPT_SEGMENT, message, detail)

    # -- positions

    def locate(self, name: str, seek: Seek | None, reply: Reply[SharedPosition]) -> None:
        """Look up the present head of a topic, and the position of a seek."""
        run(_guarded(self._locate(name, seek)), partial(_end, reply))

    def seek(self, name: str, seek: Seek, reply: Reply[int]) -> None:
        """Find the position of a seek."""

        def end(position: SharedPosition | Refusal) -> None:
            if isinstance(position, Refusal):
                reply(position)
            else:
                assert position.from_seq is not None
                reply(position.from_seq)

        self.locate(name, seek, end)

    def _locate(self, name: str, seek: Seek | None) -> Steps[SharedPosition | Refusal]:
        broker = self._broker
        if broker.read_refusal is not None:
            return broker.read_refusal
        topic: SharedTopic | None = yield broker.topics.find(name, CURRENT)
        if topic is None:
            return no_such_topic(name)
        broker.heads.advance(name, topic.incarnation, topic.head)
        head = max(topic.head, broker.heads.head(name, topic.incarnation))
        from_seq = None
        if seek is not None and seek.last is not None:
            from_seq = max(head - seek.last, topic.first_seq - 1)
        elif seek is not None:
            assert seek.from_ts is not None
            from_seq = yield broker.times.position_at(topic, head, seek.from_ts)
        return SharedPosition(head, topic.first_seq, topic.incarnation, from_seq)


def _guarded(steps: Steps[T | Refusal]) -> Steps[T | Refusal]:
    """Answer an unexpected error as one: who called a reply would report it again."""
    try:
        return (yield from steps)
    except OSError:
        raise
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> Refusal:
    return refuse_unexpected_error(logger, "a read of a shared topic", error)


def _end(reply: Reply[T], outcome: T | Refusal | OSError) -> None:
    reply(refusal_of(outcome) if isinstance(outcome, OSError) else outcome)


def _tombstone(topic: SharedTopic, request: ReadRequest, head: int) -> Tombstone | None:
    """Return the tombstone of a read that begins before the first record, or in a former topic (E3)."""
    if request.from_seq > head or request.epoch not in (None, topic.incarnation):
        return Tombstone(1, head, RECREATED, head, topic.first_seq, head)
    first, last = max(request.from_seq, topic.deleted_to) + 1, topic.evicted_to
    if first > last:
        return None
    config = decode_shared_config(topic.config)
    has_caps = config.cap_records or config.cap_bytes
    reason = "mixed" if has_caps and config.ttl_ms else "ttl" if config.ttl_ms else "cap"
    return Tombstone(first, last, reason, last - first + 1, topic.first_seq, head)
