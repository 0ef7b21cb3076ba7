"""Reads after a position over HTTP, which may wait for something to deliver.

A read that finds nothing subscribes to the topic at its position in the same turn of the event loop, with a
subscription as streams use (`stream/subscription.py`), until that delivers. All reads that wait at one
position therefore share one chunk. Records that are skipped on purpose while a read waits advance its
position and do not end the wait.
"""

from __future__ import annotations

from functools import partial

from shared.contract.errors import Refusal
from shared.contract.seek import Seek
from shared.runtime.disk_thread import Loop
from shared.runtime.histogram import Histogram
from shared.settings.settings import Settings
from topicsd.engine.read.fetch import read_after_fetch
from topicsd.engine.read.fill_page import Unfetched
from topicsd.engine.read.read import read
from topicsd.engine.read.seek import seek
from topicsd.engine.requests import ReadAnswer, ReadRequest
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import topic_not_found
from topicsd.service.call import Call
from topicsd.service.input.bodies import DiffBody, decode_diff
from topicsd.service.input.clamped import clamped_to, with_member
from topicsd.service.render import render_chunk, render_read
from topicsd.service.request_counts import RequestCounts
from topicsd.stream.chunks import Chunk, FeedSpec, chunk_of
from topicsd.stream.feeds import Feeds
from topicsd.stream.subscription import Subscription

LIMIT_DEFAULT = 256
NO_NODES: frozenset[str] = frozenset()
WAIT_MS_MAX = 30_000


class Diff:
    def __init__(
        self, shard: ShardState, settings: Settings, loop: Loop, counts: RequestCounts, feeds: Feeds
    ) -> None:
        self.loop = loop
        self.feeds = feeds
        self._counts = counts
        self._shard = shard
        self._settings = settings
        self._clock = shard.clock
        self._monotonic = shard.clock.monotonic

    def start(self, call: Call) -> None:
        body = decode_diff(call.body, self._clock)
        if isinstance(body, Refusal):
            call.refuse(body)
            return
        if body.from_ts is not None or body.last is not None:
            assert not isinstance(body.from_ts, str), "decode_diff resolves it"
            # A larger `last` means the newest records that the limit allows.
            position = Seek(body.from_ts, None if body.last is None else min(body.last, self._limit(body)))
            seek(self._shard, call.name, position, partial(self._read_from, call, body))
            return
        self._read(call, body)

    def _read_from(self, call: Call, body: DiffBody, cursor: int | Refusal) -> None:
        try:
            if isinstance(cursor, Refusal):
                call.refuse(cursor)
            else:
                body.from_seq = cursor
                self._read(call, body)
        except Exception as error:
            call.fail("diff", error)

    def _read(self, call: Call, body: DiffBody) -> None:
        node = body.node
        # As `_limit`, inlined: hot path.
        limit, limit_max = body.limit or LIMIT_DEFAULT, self._settings.max_limit
        if body.last is not None or limit > limit_max:
            limit = self._limit(body)
        request = ReadRequest(
            body.from_seq or 0,
            limit,
            NO_NODES if node is None else frozenset([node] if isinstance(node, str) else node),
            body.epoch,
            self._settings.max_response_bytes,
            body.include_tags,
            body.include_meta,
        )
        answer = read(self._shard, call.name, request)
        if isinstance(answer, Unfetched):
            reply = partial(self._read_later, call, body, request)
            read_after_fetch(self._shard, call.name, request, answer, reply)
        else:
            self._answer(call, body, request, answer)

    def _limit(self, body: DiffBody) -> int:
        return min(body.limit or max(LIMIT_DEFAULT, body.last or 0), self._settings.max_limit)

    def _read_later(
        self, call: Call, body: DiffBody, request: ReadRequest, answer: ReadAnswer | Refusal
    ) -> None:
        """Answer in a later turn, where no other code catches unexpected errors."""
        try:
            self._answer(call, body, request, answer)
        except Exception as error:
            call.fail("diff", error)

    def _answer(self, call: Call, body: DiffBody, request: ReadRequest, answer: ReadAnswer | Refusal) -> None:
        if isinstance(answer, Refusal):
            call.refuse(answer)
            return
        self._shard.topics[call.name].last_read_ms = self._shard.clock.now_ms()
        if body.wait_ms and not answer.count and answer.tombstone is None:
            waiting = WaitingDiff(self, call, body, request, answer)
            waiting.wait(min(_wait_ms(body), WAIT_MS_MAX))
        else:
            elapsed_us = self._elapsed_us(call, answer, self._counts.reads)
            parts = render_read(answer, request.from_seq, elapsed_us)
            if body.limit > request.limit or body.wait_ms or body.last is not None:
                _name_clamped(parts, body, request.limit)
            call.send_parts(parts, sum(map(len, parts)))

    def send_chunk(self, call: Call, body: DiffBody, limit: int, chunk: Chunk) -> None:
        """Answer a read that waited."""
        parts = render_chunk(chunk, self._elapsed_us(call, chunk, self._counts.waited_reads))
        _name_clamped(parts, body, limit)
        call.send_parts(parts, sum(map(len, parts)))

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


def _name_clamped(parts: list[bytes | memoryview], body: DiffBody, limit: int) -> None:
    """Add the values used for the request's values that exceed their bounds."""
    wait_ms = _wait_ms(body)
    if body.limit > limit or wait_ms > WAIT_MS_MAX or (body.last or 0) > limit:
        clamped = clamped_to(
            limit=(body.limit or limit, limit),
            wait_ms=(wait_ms, min(wait_ms, WAIT_MS_MAX)),
            last=(body.last, min(body.last or 0, limit)),
        )
        parts[-1] = with_member(bytes(parts[-1]), clamped)


class WaitingDiff:
    """A read that waits for records."""

    is_paused = False

    def __init__(
        self, diff: Diff, call: Call, body: DiffBody, request: ReadRequest, answer: ReadAnswer
    ) -> None:
        self._diff = diff
        self._call = call
        self._body = body
        selection = FeedSpec(
            call.name,
            request.nodes,
            request.limit,
            request.bytes_max,
            request.with_tags,
            request.with_meta,
            with_data=True,
            is_strong=False,
        )
        self._limit = request.limit
        self._chunk = chunk_of(answer, selection, request.from_seq)
        """Result of the last read."""
        self._subscription = Subscription(diff.feeds.feed(selection), self._chunk.to_seq, answer.epoch, self)

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
