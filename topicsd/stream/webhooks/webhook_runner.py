"""A webhook at work: it follows its source and sends each chunk to a URL, one at a time.

H1  The position moves when the receiver answered 2xx, or the batch is in the dead-letter topic, and in no
    other way. So each record is delivered at least once, in the order of the topic. After a crash the chunk
    that was on its way is sent again, perhaps with records that were appended meanwhile.
H2  Only synced records are sent, if the durability class of the source has a sync: no crash takes back what a
    receiver has.
H3  One chunk is on its way at a time. While it is, new records are not read: a receiver that accepts nothing
    costs one chunk of memory.
H4  Nothing is sent while the source is frozen or being deleted: another shard may run the route already.
H5  A changed rule gets a new runner, which begins without a pause and without failures.
"""

from __future__ import annotations

import logging
import random
from functools import partial
from typing import Final, NamedTuple

from shared.contract.errors import CORRUPT_SEGMENT, POSITION_PAST_HEAD, Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.tag_filter import TagFilter
from shared.runtime.disk_thread import Loop
from topicsd.engine.damage import next_from_seq
from topicsd.engine.requests import Tombstone
from topicsd.engine.routes.route import RouteState, delete_route
from topicsd.engine.routes.step import note_delivered, skip_records
from topicsd.engine.state import ShardState
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.feeds import Feeds
from topicsd.stream.subscription import Subscription
from topicsd.stream.webhooks.breaker import CircuitBreaker
from topicsd.stream.webhooks.dead_batch import DeadBatch, StoreDeadBatch, append_body
from topicsd.stream.webhooks.webhook_client import Cancellable, SendWebhook, WebhookAnswer
from topicsd.stream.webhooks.webhook_request import request_id, signed_request

logger = logging.getLogger("topicsd.stream")

CHUNK_BYTES_MAX: Final = 1 << 20
RETRY_SECONDS: Final = 0.05
"""The pause before a step that the log or a frozen topic refused is tried again."""
STORE_SECONDS: Final = 1.0
DAMAGED: Final = "damaged"


class WebhookCounts:
    """The counts of all webhooks of a shard, for its metrics."""

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        self.dead_batches = 0
        self.open_breakers = 0


class WebhookTools(NamedTuple):
    """What all webhooks of a shard use."""

    feeds: Feeds
    send: SendWebhook
    store: StoreDeadBatch
    counts: WebhookCounts


class WebhookRunner:
    def __init__(self, shard: ShardState, loop: Loop, tools: WebhookTools, route: RouteState) -> None:
        webhook, status = route.rule.webhook, route.webhook
        assert webhook is not None
        assert status is not None
        self.rule = route.rule
        self._shard = shard
        self._loop = loop
        self._tools = tools
        self._route = route
        self._webhook = webhook
        self._status = status
        self._breaker = CircuitBreaker(random.random)
        self._chunk: Chunk | None = None
        """The chunk that is not delivered yet."""
        self._in_flight: Cancellable | None = None
        self._is_held = False
        self._is_over = False
        status.attempts = 0
        status.open_until = 0
        limit = min(webhook.batch, shard.settings.max_batch_records)
        options = ReaderOptions(limit=limit, bytes_max=CHUNK_BYTES_MAX, is_strong=True, match=_match(route))
        feed = tools.feeds.feed(FeedSpec(route.rule.source, options))
        self._subscription = Subscription(feed, route.seq, route.source_epoch, self)

    def begin(self) -> None:
        self._loop.call_soon(self._subscription.resume)

    def close(self) -> None:
        self._is_over = True
        self._set_open_until(0)
        self._subscription.close()
        if self._in_flight is not None:
            self._in_flight.cancel()

    # -- results of the subscription -----------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._chunk is not None

    def hold(self, subscription: Subscription) -> None:
        self._is_held = True

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        if chunk.epoch != self._route.source_epoch:
            self._end_route()
        elif chunk.is_empty:
            skip_records(self._shard, self._route, chunk.to_seq)
        else:
            self._chunk = chunk
            self._loop.call_soon(self._send)

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        """Deliver a damaged range as a tombstone; end the route when the source was set back."""
        if refusal.code == POSITION_PAST_HEAD:
            self._end_route()
        elif refusal.code == CORRUPT_SEGMENT:
            first, last = self._route.seq + 1, next_from_seq(refusal)
            logger.error(
                'route "%s": skipping damaged records %d..%d: %s',
                self.rule.name,
                first,
                last,
                refusal.message,
            )
            topic = self._route.topic
            loss = Tombstone(first, last, DAMAGED, last - first + 1, topic.earliest_seq, topic.head)
            ends = (first - 1, last, topic.head, topic.earliest_seq)
            self._chunk = Chunk(topic.name, topic.epoch, *ends, 0, b"", loss)
            self._loop.call_soon(self._send)

    def ended(self, subscription: Subscription) -> None:
        """Do nothing: the route is part of its source, and was deleted with it."""

    # -- one chunk -----------------------------------------------------------------------------------------

    def _send(self) -> None:
        chunk, topic = self._chunk, self._route.topic
        if self._is_over or chunk is None:
            return
        if topic.deferred_requests is not None:
            self._loop.call_later(RETRY_SECONDS, self._send)
            return
        self._in_flight = self._tools.send(
            signed_request(self.rule, chunk, self._shard.clock.now_ms()), partial(self._on_answer, chunk)
        )

    def _on_answer(self, chunk: Chunk, answer: WebhookAnswer) -> None:
        if self._is_over:
            return
        self._in_flight = None
        status, webhook, counts = self._status, self._webhook, self._tools.counts
        counts.requests += 1
        status.last_status, status.last_error = answer.status, answer.error
        if not answer.error:
            self._breaker.on_success()
            self._set_open_until(0)
            self._note(chunk, chunk.count)
            return
        status.attempts += 1
        counts.failures += 1
        wait_ms = self._breaker.wait_ms_after_failure(self._shard.clock.now_ms(), answer.retry_after_ms)
        self._set_open_until(self._breaker.open_until)
        logger.warning(
            'webhook: request failed, next one in %g s: route "%s": %s',
            wait_ms / 1000,
            self.rule.name,
            answer.error,
        )
        if webhook.dead_letter and status.attempts >= webhook.max_attempts:
            self._store_chunk(chunk, wait_ms)
        else:
            self._loop.call_later(wait_ms / 1000, self._send)

    def _set_open_until(self, time_ms: int) -> None:
        status = self._status
        self._tools.counts.open_breakers += (time_ms > 0) - (status.open_until > 0)
        status.open_until = time_ms

    def _note(self, chunk: Chunk, count: int, wait_ms: int = 0) -> None:
        """Move the position to the end of a chunk, and accept the next one after a pause."""
        if self._is_over:
            return
        if note_delivered(self._shard, self._route, count, chunk.to_seq) is not None:
            self._loop.call_later(RETRY_SECONDS, self._note, chunk, count, wait_ms)
            return
        self._status.attempts = 0
        self._loop.call_later(wait_ms / 1000, self._accept_next)

    def _accept_next(self) -> None:
        self._chunk = None
        if self._is_held and not self._is_over:
            self._is_held = False
            self._subscription.resume()

    # -- batches that were not delivered -------------------------------------------------------------------

    def _store_chunk(self, chunk: Chunk, wait_ms: int) -> None:
        if not chunk.count:
            self._note(chunk, 0, wait_ms)
            return
        settings = self._shard.settings
        limits = settings.max_meta_bytes, settings.max_record_bytes
        body = append_body(self.rule, chunk, self._status, *limits)
        batch = DeadBatch(self._webhook.dead_letter, request_id(self.rule, chunk), body)
        self._store(batch, chunk, wait_ms)

    def _store(self, batch: DeadBatch, chunk: Chunk, wait_ms: int) -> None:
        if not self._is_over:
            self._tools.store(batch, partial(self._on_stored, batch, chunk, wait_ms))

    def _on_stored(self, batch: DeadBatch, chunk: Chunk, wait_ms: int, refusal: Refusal | None) -> None:
        if self._is_over:
            return
        if refusal is not None:
            self._status.last_error = f"dead_letter: {refusal.message}"
            self._loop.call_later(STORE_SECONDS, self._store, batch, chunk, wait_ms)
            return
        logger.error(
            'webhook: batch not delivered, now in topic "%s": route "%s": seqs %d to %d',
            self._webhook.dead_letter,
            self.rule.name,
            chunk.from_seq + 1,
            chunk.to_seq,
        )
        self._tools.counts.dead_batches += 1
        self._note(chunk, 0, wait_ms)

    # -- the end -------------------------------------------------------------------------------------------

    def _end_route(self) -> None:
        """Delete the route: its source was set back to before the position."""
        if self._is_over:
            return
        logger.warning('route "%s": deleted: its source "%s" was set back', self.rule.name, self.rule.source)
        delete_route(self._shard, self.rule.name, self._on_route_deleted)

    def _on_route_deleted(self, answer: object) -> None:
        if isinstance(answer, Refusal) and not self._is_over:
            self._loop.call_later(STORE_SECONDS, self._end_route)


def _match(route: RouteState) -> TagFilter | None:
    """Return the filter of a rule, as readers have it."""
    if route.rule.tags is None:
        return None
    _, operator, tag = route.rule.tags
    if operator == "Glob":
        return TagFilter(prefixes=(tag[:-1],))
    return TagFilter(frozenset([tag]))
