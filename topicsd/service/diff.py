"""Reads after a position over HTTP, which may wait for something to deliver: of local and of shared topics.

A read that finds nothing subscribes to the topic at its position in the same turn of the event loop, with a
subscription as streams use (`stream/subscription.py`), until that delivers. All reads that wait at one
position therefore share one chunk. Records that are skipped on purpose while a read waits advance its
position and do not end the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from shared.contract.errors import Refusal
from shared.contract.reader_options import LIMIT_DEFAULT, NO_NODES, ReaderOptions
from shared.contract.seek import Seek
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from shared.runtime.histogram import Histogram
from shared.settings.settings import Settings
from topicsd.engine.read.read import Missing, read, try_read
from topicsd.engine.read.seek import seek
from topicsd.engine.requests import ReadAnswer, ReadRequest, Reply
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import topic_not_found
from topicsd.service.call import Call, reply_of
from topicsd.service.input.bodies import DiffBody, decode_diff
from topicsd.service.input.clamped import clamped_to, with_member
from topicsd.service.records.read_lines import lines_of, position_fields, wants_lines
from topicsd.service.render import encode, render_chunk, render_read
from topicsd.service.request_counts import RequestCounts
from topicsd.stream.chunks import Chunk, FeedSpec, chunk_of
from topicsd.stream.feed import Feed
from topicsd.stream.feeds import Feeds
from topicsd.stream.subscription import Subscription

WAIT_MS_MAX = 30_000


M = TypeVar("M")


class TopicReads(Protocol[M]):
    """The reads of topics of one kind. `M` is what a read that has to wait is waiting for."""

    @property
    def try_read(self) -> Callable[[str, ReadRequest], ReadAnswer | Refusal | M]:
        """Return the function that reads without waiting."""
        ...

    def read(self, name: str, request: ReadRequest, reply: Reply[ReadAnswer], missing: M) -> None:
        """Continue a read that has to wait; `missing` is the result of `try_read`."""
        ...

    def seek(self, name: str, position: Seek, reply: Reply[int]) -> None: ...

    def feed(self, spec: FeedSpec) -> Feed: ...

    def note_read(self, name: str) -> None: ...

    def evict_floor(self, name: str) -> int:
        """Return the seq after the last one that was evicted, of a topic that was just read."""
        ...


class ShardReads:
    """The reads of topics of this shard."""

    def __init__(self, shard: ShardState, feeds: Feeds) -> None:
        self._shard = shard
        self.try_read: Callable[[str, ReadRequest], ReadAnswer | Refusal | Missing] = partial(try_read, shard)
        self.feed = feeds.feed

    def read(self, name: str, request: ReadRequest, reply: Reply[ReadAnswer], missing: Missing) -> None:
        read(self._shard, name, request, reply, missing)

    def seek(self, name: str, position: Seek, reply: Reply[int]) -> None:
        seek(self._shard, name, position, reply)

    def note_read(self, name: str) -> None:
        self._shard.topics[name].last_read_ms = self._shard.clock.now_ms()

    def evict_floor(self, name: str) -> int:
        topic = self._shard.topics.get(name)
        return 1 if topic is None else topic.evict_floor


class Diff(Generic[M]):
    def __init__(
        self, reads: TopicReads[M], settings: Settings, loop: Loop, clock: Clock, counts: RequestCounts
    ) -> None:
        self.loop = loop
        self.reads = reads
        self._counts = counts
        self._settings = settings
        self._clock = clock
        self._monotonic = clock.monotonic
        self._try_read = reads.try_read

    def start(self, call: Call) -> None:
        body = decode_diff(call.body, self._clock)
        if isinstance(body, Refusal):
            call.refuse(body)
        elif body.from_ts is not None or body.last is not None:
            assert not isinstance(body.from_ts, str), "decode_diff resolves it"
            # A larger `last` means the newest records that the limit allows.
            position = Seek(body.from_ts, None if body.last is None else min(body.last, self._limit(body)))
            self.reads.seek(call.name, position, reply_of(call, partial(self._read_from, call, body)))
        else:
            self._read(call, body)

    def _read_from(self, call: Call, body: DiffBody, cursor: int) -> None:
        body.from_seq = cursor
        self._read(call, body)

    def _read(self, call: Call, body: DiffBody) -> None:
        # As `_limit`, inlined: hot path.
        limit, limit_max = body.limit or LIMIT_DEFAULT, self._settings.max_limit
        if body.last is not None or limit > limit_max:
            limit = self._limit(body)
        options = ReaderOptions(
            NO_NODES if body.node is None else body.nodes,
            limit,
            self._settings.max_response_bytes,
            body.include_tags,
            body.include_meta,
        )
        if body.match is not None:
            match = body.tag_filter
            if isinstance(match, Refusal):
                call.refuse(match)
                return
            options = msgspec.structs.replace(options, match=match)
        request = ReadRequest(body.from_seq or 0, options, body.epoch)
        # Without a reply while nothing has to wait: hot path.
        answer = self._try_read(call.name, request)
        if isinstance(answer, ReadAnswer):
            self._answer(call, body, request, answer)
        elif isinstance(answer, Refusal):
            call.refuse(answer)
        else:
            reply = reply_of(call, partial(self._answer, call, body, request))
            self.reads.read(call.name, request, reply, answer)

    def _limit(self, body: DiffBody) -> int:
        return min(body.limit or max(LIMIT_DEFAULT, body.last or 0), self._settings.max_limit)

    def _answer(self, call: Call, body: DiffBody, request: ReadRequest, answer: ReadAnswer) -> None:
        self.reads.note_read(call.name)
        if body.wait_ms and not answer.count and answer.tombstone is None:
            waiting = WaitingDiff(self, call, body, request, answer)
            waiting.wait(min(_wait_ms(body), WAIT_MS_MAX))
        else:
            elapsed_us = self._elapsed_us(call, answer, self._counts.reads)
            if call.fields.accept and wants_lines(call.fields):
                records, next_from_seq = answer.parts, answer.next_from_seq
                if records:
                    records[-1] = records[-1][:-1]
                self._send_lines(call, body, request.options.limit, answer, next_from_seq, records)
                return
            parts = render_read(answer, request.from_seq, elapsed_us)
            if body.limit > request.options.limit or body.wait_ms or body.last is not None:
                clamped = _clamped(body, request.options.limit)
                parts[-1] = with_member(bytes(parts[-1]), clamped)
            call.send_parts(parts, sum(map(len, parts)))

    def send_chunk(self, call: Call, body: DiffBody, limit: int, chunk: Chunk) -> None:
        """Answer a read that waited."""
        elapsed_us = self._elapsed_us(call, chunk, self._counts.waited_reads)
        if call.fields.accept and wants_lines(call.fields):
            self._send_lines(call, body, limit, chunk, chunk.to_seq, [chunk.records])
            return
        parts = render_chunk(chunk, elapsed_us)
        parts[-1] = with_member(bytes(parts[-1]), _clamped(body, limit))
        call.send_parts(parts, sum(map(len, parts)))

    def _send_lines(
        self,
        call: Call,
        body: DiffBody,
        limit: int,
        result: ReadAnswer | Chunk,
        next_from_seq: int,
        records: Sequence[bytes | memoryview],
    ) -> None:
        fields = position_fields(result, next_from_seq)
        if clamped := _clamped(body, limit):
            fields += b"topics-clamped: %b\r\n" % encode(clamped)
        lines = lines_of(records)
        call.send_parts([lines], len(lines), 200, fields)

    def _elapsed_us(self, call: Call, result: ReadAnswer | Chunk, histogram: Histogram) -> int:
        elapsed_us = int((self._monotonic() - call.started) * 1e6)
        histogram.counts[elapsed_us.bit_length()] += 1
        histogram.total += elapsed_us
        if result.tombstone is not None:
            self._counts.tombstones += 1
        return elapsed_us


def _wait_ms(body: DiffBody) -> int:
    assert isinstance(body.wait_ms, int), "decode_diff resolves it"
    return body.wait_ms


def _clamped(body: DiffBody, limit: int) -> dict[str, int]:
    """Return the values used for the request's values that exceed their bounds."""
    wait_ms = _wait_ms(body)
    if body.limit <= limit and wait_ms <= WAIT_MS_MAX and (body.last or 0) <= limit:
        return {}
    return clamped_to(
        limit=(body.limit or limit, limit),
        wait_ms=(wait_ms, min(wait_ms, WAIT_MS_MAX)),
        last=(body.last, min(body.last or 0, limit)),
    )


class WaitingDiff:
    """A read that waits for records."""

    is_paused = False

    def __init__(
        self, diff: Diff[Any], call: Call, body: DiffBody, request: ReadRequest, answer: ReadAnswer
    ) -> None:
        self._diff = diff
        self._call = call
        self._body = body
        spec = FeedSpec(call.name, request.options)
        self._limit = request.options.limit
        self._chunk = chunk_of(answer, spec, request.from_seq)
        """Result of the last read."""
        self._subscription = Subscription(diff.reads.feed(spec), self._chunk.to_seq, answer.epoch, self)

    def wait(self, wait_ms: int) -> None:
        self._timer = self._diff.loop.call_later(wait_ms / 1000, self._finish)
        self._call.cancel_wait = self._finish
        self._subscription.resume_after(self._chunk)

    def hold(self, subscription: Subscription) -> None:
        raise AssertionError("a single response never pauses")

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        self._chunk = chunk
        if not chunk.is_empty:
            self._finish()

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        self._stop()
        self._call.refuse(refusal)

    def ended(self, subscription: Subscription) -> None:
        self.interrupted(subscription, topic_not_found(self._call.name))

    def _finish(self) -> None:
        """Answer with the last result."""
        self._stop()
        try:
            self._diff.send_chunk(self._call, self._body, self._limit, self._chunk)
        except Exception as error:
            self._call.fail("diff", error)

    def _stop(self) -> None:
        self._timer.cancel()
        self._call.cancel_wait = None
        self._subscription.close()
        # Break the reference cycle: one is created for every waiting read.
        del self._subscription
