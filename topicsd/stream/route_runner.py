"""A route at work: it follows its source and has each chunk copied, one at a time.

W1  The cursor that counts is the engine's, which moves with the copies and in no other way. A chunk that
    could not be copied is dropped and read again from there: a destination that accepts nothing costs no
    memory.
W2  No record is skipped. A refused copy is retried, with fewer records if there were too many at once, and
    else after longer and longer waits; while a destination is full, its source is not even read. So a copy
    that breaks the destination's schema waits until the schema or the source changes.
W3  A source that was deleted, created again, or set back to before the cursor, ends the route.
W4  From a source of another shard only synced records are copied, if the source's durability class has a
    sync. So no copy exists of a record that a crash of that shard loses. For a source of this shard the
    log ensures the same: the copy is after the record in the log.
W5  If each record must have only one copy, and the route begins before records that another route may have
    copied, the destination is read first, to find the copies it already holds. No other case can duplicate
    a copy, by W1.
W6  Each chunk has its turn among all ready work, at the priority of the destination; under pressure one
    band lower.

`RouteRunners` runs all routes into topics of this shard, each from its creation until its deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    POSITION_PAST_HEAD,
    RECORD_TOO_LARGE,
    SCHEMA_MISMATCH,
    TOPIC_FULL,
    TOPIC_NOT_FOUND,
    Refusal,
)
from shared.contract.reader_options import ReaderOptions
from shared.contract.topic_config import NUMBER_MAX
from shared.runtime.disk_thread import Loop
from topicsd.engine.damage import next_from_seq
from topicsd.engine.requests import Tombstone
from topicsd.engine.routes.copies import NO_COPIES
from topicsd.engine.routes.route import RouteState, delete_route
from topicsd.engine.routes.step import append_copies, append_lost_range, destination_is_full, skip_records
from topicsd.engine.state import ShardState
from topicsd.engine.wakeups.priority import one_band_lower
from topicsd.engine.wakeups.wake_queue import Waiters
from topicsd.log.control_frame import COPIES_MAX
from topicsd.stream.chunks import RECREATED, Chunk, FeedSpec
from topicsd.stream.feed import Feed, is_perhaps_shared
from topicsd.stream.feeds import Feeds
from topicsd.stream.route_selection import SourceChunk, original_seqs
from topicsd.stream.subscription import Subscription
from topicsd.stream.webhooks.webhook_runner import WebhookRunner, WebhookTools

logger = logging.getLogger("topicsd.stream")

CHUNK_RECORDS_MAX: Final = COPIES_MAX
CHUNK_BYTES_MAX: Final = 256 << 10
# For a read that asks for the state of a topic only.
STATE_OPTIONS: Final = ReaderOptions(limit=1, bytes_max=1, with_tags=False, with_meta=False, with_data=False)
RETRY_SECONDS: Final = 0.02
RETRY_SECONDS_MAX: Final = 1.0

# The reasons of a loss, as readers of the destination receive them. A crash of the source is a crash for them
# too.
_SOURCE_TRIM: Final = "source_trim"
_CRASH: Final = "crash"

_NONE: Final[frozenset[int]] = frozenset()


class SharedSources(Protocol):
    """The feeds and decoded chunks that the routes of one shard share."""

    def feed_of(self, topic: str) -> Feed: ...

    def source(self, chunk: Chunk) -> SourceChunk: ...

    def read_state(self, topic: str, on_state: Callable[[Chunk | Refusal], None]) -> None:
        """Read the state of a topic without records, which costs almost nothing."""
        ...


class RouteRunner:
    def __init__(self, shard: ShardState, loop: Loop, sources: SharedSources, route: RouteState) -> None:
        self.route = route
        self.waiters: Waiters | None = None
        """The route itself, while it waits for its turn."""
        self._shard = shard
        self._loop = loop
        self._sources = sources
        self._is_over = False
        self._is_busy = False
        self._is_subscription_waiting = False
        self._is_ending = False
        self._has_turn = False
        self._part_size = CHUNK_RECORDS_MAX
        self._retry_seconds = RETRY_SECONDS
        self._copies = NO_COPIES
        self._loss: tuple[int, str, int] | None = None
        """The number of lost records, the reason, and the last lost seq."""
        self._to_seq = 0
        self._copied_seqs: set[int] | None = None
        """Seqs of the source of which the destination holds a copy (W5)."""
        self._scan: CopyScan | None = None
        feed = sources.feed_of(route.rule.source)
        self._subscription = Subscription(feed, route.seq, route.source_epoch, self)

    def begin(self) -> None:
        self._request_turn()

    def close(self) -> None:
        self._is_over = True
        self._copies = NO_COPIES
        self._subscription.close()
        if self._scan is not None:
            self._scan.close()
        self._shard.wake_queue.remove(self, self._take_turn)

    # -- results of the subscription -----------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._is_busy or (self._shard.wake_queue.ready.is_paused and not self._has_turn)

    def hold(self, subscription: Subscription) -> None:
        if self._is_busy:
            self._is_subscription_waiting = True
        else:
            self._request_turn()

    def _request_turn(self) -> None:
        watch = self._shard.wake_queue
        watch.add(self, self._take_turn)
        watch.wake(self)

    def base_priority(self, now_ms: int) -> float:
        base = self.route.topic.base_priority(now_ms)
        return one_band_lower(base) if self._shard.wake_queue.ready.is_paused else base

    def _take_turn(self) -> None:
        self._has_turn = True
        try:
            self._subscription.resume()
        finally:
            self._has_turn = False

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        route = self.route
        tombstone = chunk.tombstone
        if chunk.epoch != route.source_epoch or (tombstone is not None and tombstone.reason == RECREATED):
            self._end_route()
            return
        if not self._has_copied_seqs():
            self._is_busy = True
            subscription.rewind(route.seq)
            self._scan = CopyScan(self._sources.feed_of(route.rule.dest), route, self._on_copied_seqs)
            return
        if tombstone is not None:
            self._loss = self._loss_of(tombstone)
        if chunk.count:
            self._copies = self._sources.source(chunk).copies(route.rule, self._copied_seqs or _NONE)
        self._to_seq = chunk.to_seq
        self._is_busy = True
        self._step()

    def _loss_of(self, tombstone: Tombstone) -> tuple[int, str, int] | None:
        """Return what the destination loses because its source did.

        A loss is passed on once in a cycle of routes: it has no stamp that counts hops, and would
        circulate for ever.
        """
        rule = self.route.rule
        is_in_cycle = rule.may_cycle or rule.is_in_cycle
        if is_in_cycle and tombstone.reason == _SOURCE_TRIM:
            return None
        reason = _CRASH if tombstone.reason == _CRASH and not is_in_cycle else _SOURCE_TRIM
        return tombstone.gap_to - tombstone.gap_from + 1, reason, tombstone.gap_to

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        if refusal.code == CORRUPT_SEGMENT:
            name, next_seq = self.route.rule.name, next_from_seq(refusal)
            logger.error(
                'route "%s": skipping damaged records %d..%d: %s',
                name,
                self.route.seq + 1,
                next_seq,
                refusal.message,
            )
            self._is_busy = True
            self._to_seq = next_seq
            self._loss = (next_seq - self.route.seq, _SOURCE_TRIM, next_seq)
            # In another turn: a step may move the subscription, which is in the middle of this call.
            self._loop.call_soon(self._step)
        elif refusal.code == POSITION_PAST_HEAD:
            self._end_route()

    def ended(self, subscription: Subscription) -> None:
        self._end_route()

    # -- copying -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Report the loss, copy the next part of the chunk, or move the cursor to its end."""
        if self._is_over:
            return
        shard, route = self._shard, self.route
        if self._loss is not None:
            append_lost_range(shard, route, *self._loss, self._on_step)
            return
        copies = self._copies
        if not copies.seqs:
            skip_records(shard, route, self._to_seq)
            self._accept_next()
        elif len(copies.seqs) <= self._part_size:
            append_copies(shard, route, copies, self._to_seq, self._on_step)
        else:
            part = copies.part(0, self._part_size)
            append_copies(shard, route, part, part.seqs[-1], self._on_step)

    def _on_step(self, answer: object) -> None:
        if isinstance(answer, Refusal):
            self._on_refusal(answer)
            return
        if self._loss is not None:
            self._loss = None
        else:
            self._copies = self._copies.after(self._part_size)
            self._part_size = min(2 * self._part_size, CHUNK_RECORDS_MAX)
        self._retry_seconds = RETRY_SECONDS
        self._step()

    def _on_refusal(self, refusal: Refusal) -> None:
        count = min(self._part_size, len(self._copies))
        if refusal.code in (TOPIC_FULL, RECORD_TOO_LARGE, SCHEMA_MISMATCH) and count > 1:
            self._part_size = count // 2
            self._step()
            return
        if refusal.code == SCHEMA_MISMATCH and self._retry_seconds == RETRY_SECONDS:
            name, seq = self.route.rule.name, self._copies.seqs[0]
            logger.warning('route "%s": waiting at record %d of its source: %s', name, seq, refusal.message)
        self._copies, self._loss = NO_COPIES, None
        self._subscription.rewind(self.route.seq)
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        seconds = self._retry_seconds
        self._retry_seconds = min(2 * seconds, RETRY_SECONDS_MAX)
        self._loop.call_later(seconds, self._retry)

    def _retry(self) -> None:
        if self._is_over or self._is_ending:
            return
        if destination_is_full(self._shard, self.route):
            self._sources.read_state(self.route.rule.source, self._check_source)
            self._schedule_retry()
            return
        self._is_subscription_waiting = True
        self._accept_next()

    def _check_source(self, state: Chunk | Refusal) -> None:
        """End the route if its source no longer exists. Called while the route reads nothing."""
        if isinstance(state, Refusal):
            is_gone = state.code == TOPIC_NOT_FOUND
        else:
            is_gone = state.epoch != self.route.source_epoch
        if is_gone and not self._is_ending:
            self._end_route()

    def _accept_next(self) -> None:
        """Accept another chunk, but in a later turn.

        The route would otherwise run before replies of the same batch that other clients wait for.
        """
        self._is_busy = False
        if self._is_subscription_waiting:
            self._is_subscription_waiting = False
            self._request_turn()

    # -- copies that the destination already holds ---------------------------------------------------------

    def _has_copied_seqs(self) -> bool:
        route = self.route
        if not route.rule.is_exactly_once or route.seq >= route.source_head:
            self._copied_seqs = None
            return True
        return self._copied_seqs is not None

    def _on_copied_seqs(self, copied_seqs: set[int]) -> None:
        self._copied_seqs = copied_seqs
        self._is_subscription_waiting = True
        self._accept_next()

    # -- the end -------------------------------------------------------------------------------------------

    def _end_route(self) -> None:
        """Delete the route, because its source is gone (W3)."""
        if not self._is_ending:
            self._is_ending = self._is_busy = True
            rule = self.route.rule
            logger.warning(
                'route "%s": deleted: its source "%s" was deleted, created again, set back, or is not here',
                rule.name,
                rule.source,
            )
        if not self._is_over:
            delete_route(self._shard, self.route.rule.name, self._on_route_deleted)

    def _on_route_deleted(self, answer: object) -> None:
        if isinstance(answer, Refusal) and not self._is_over:
            self._loop.call_later(RETRY_SECONDS_MAX, self._end_route)


class CopyScan:
    """A single pass over the destination that collects the source records it holds copies of."""

    is_paused = False

    def __init__(self, feed: Feed, route: RouteState, on_done: Callable[[set[int]], None]) -> None:
        self._route = route
        self._on_copied_seqs = on_done
        self._copied_seqs: set[int] = set()
        self._subscription = Subscription(feed, 0, None, self)
        self._subscription.resume()

    def close(self) -> None:
        self._subscription.close()

    def hold(self, subscription: Subscription) -> None:
        raise AssertionError("a scan is never paused")

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        route = self._route
        self._copied_seqs.update(
            seq for seq in original_seqs(chunk, route.rule.source, route.source_epoch) if seq > route.seq
        )
        if chunk.is_at_head:
            self._end()

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        """Skip damaged records: they cannot be read, so they do not count as copies."""

    def ended(self, subscription: Subscription) -> None:
        self._end()

    def _end(self) -> None:
        self._subscription.close()
        self._on_copied_seqs(self._copied_seqs)


STARTS_PER_TURN: Final = 16
SOURCE_TTL_SECONDS: Final = 0.02
SOURCES_MAX: Final = 8


class RouteRunners:
    """The routes into topics of this shard, and the webhooks from them."""

    def __init__(
        self, shard: ShardState, loop: Loop, feeds: Feeds, webhooks: WebhookTools | None = None
    ) -> None:
        """`webhooks` is None where no route has a URL as its destination."""
        self._shard = shard
        self._loop = loop
        self._feeds = feeds
        self._webhooks = webhooks
        self._runners: dict[RouteState, RouteRunner | WebhookRunner] = {}
        self._sources: dict[tuple[str, int, int, int], SourceChunk] = {}
        """Recently decoded chunks, by topic, epoch and range."""
        shard.follow_routes(self._on_change)
        loop.call_soon(self._begin, list(shard.routes.values()))

    def _begin(self, routes: list[RouteState]) -> None:
        """Start routes, `STARTS_PER_TURN` in each turn of the loop: a start may have thousands."""
        for route in routes[:STARTS_PER_TURN]:
            self._on_change(route)
        if len(routes) > STARTS_PER_TURN:
            self._loop.call_soon(self._begin, routes[STARTS_PER_TURN:])

    def _on_change(self, route: RouteState) -> None:
        runner = self._runners.get(route)
        if route.is_gone:
            if runner is not None:
                del self._runners[route]
                runner.close()
        elif runner is None:
            self._start(route)
        elif isinstance(runner, WebhookRunner) and runner.rule != route.rule:
            runner.close()
            self._start(route)

    def _start(self, route: RouteState) -> None:
        runner: RouteRunner | WebhookRunner
        if route.rule.webhook is None:
            runner = RouteRunner(self._shard, self._loop, self, route)
        else:
            assert self._webhooks is not None
            runner = WebhookRunner(self._shard, self._loop, self._webhooks, route)
        self._runners[route] = runner
        runner.begin()

    def feed_of(self, topic: str) -> Feed:
        options = ReaderOptions(
            limit=CHUNK_RECORDS_MAX, bytes_max=CHUNK_BYTES_MAX, is_strong=not self._feeds.is_here(topic)
        )
        return self._feeds.feed(FeedSpec(topic, options, is_for_routes=True))

    def read_state(self, topic: str, on_state: Callable[[Chunk | Refusal], None]) -> None:
        self._read_state_at(self._feeds.feed(FeedSpec(topic, STATE_OPTIONS)), on_state)

    def _read_state_at(self, feed: Feed, on_state: Callable[[Chunk | Refusal], None]) -> None:
        feed.add_follower()

        def on_answer(state: Chunk | Refusal) -> None:
            feed.remove_follower()
            if isinstance(state, Refusal) and is_perhaps_shared(state):
                self._read_state_at(feed.successor(state), on_state)
            else:
                on_state(state)

        feed.read(NUMBER_MAX, None, on_answer)

    def source(self, chunk: Chunk) -> SourceChunk:
        """Return the decoded chunk, shared for `SOURCE_TTL_SECONDS` by all routes at the same cursor."""
        sources = self._sources
        key = (chunk.topic, chunk.epoch, chunk.from_seq, chunk.to_seq)
        source = sources.get(key)
        if source is None or source.chunk.records != chunk.records:
            if not sources:
                self._loop.call_later(SOURCE_TTL_SECONDS, sources.clear)
            elif len(sources) == SOURCES_MAX:
                del sources[next(iter(sources))]
            source = sources[key] = SourceChunk(chunk)
        return source
