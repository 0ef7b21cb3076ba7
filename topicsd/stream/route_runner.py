"""A route at work: it follows its source and has each chunk copied, one at a time.

W1  The cursor that counts is the engine's, which moves with the copies and in no other way. A chunk that
    could not be copied is dropped and read again from there: a destination that accepts nothing costs no
    memory.
W2  No record is skipped. A refused copy is retried, with fewer records if there were too many at once, and
    else after longer and longer waits; while a destination is full, its source is not even read.
W3  A source that was deleted, created again, or set back to before the cursor, ends the route.
W4  From a source of another shard only synced records are copied, if the source's durability class has a
    sync. So no copy exists of a record that a crash of that shard loses. For a source of this shard the
    log ensures the same: the copy is after the record in the log.
W5  If each record must have only one copy, and the route begins before records that another route may have
    copied, the destination is read first, to find the copies it already holds. No other case can duplicate
    a copy, by W1.
W6  Each chunk has its turn among all ready work, at the priority of the destination; under pressure one
    band lower.

`Forwards` runs all routes into topics of this shard, each from its creation until its deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    POSITION_PAST_HEAD,
    RECORD_TOO_LARGE,
    TOPIC_FULL,
    TOPIC_NOT_FOUND,
    Refusal,
)
from shared.contract.topic_config import NUMBER_MAX
from shared.runtime.disk_thread import Loop
from topicsd.engine.requests import Tombstone
from topicsd.engine.routes.copies import NO_COPIES
from topicsd.engine.routes.route import Forward, StandOf, delete_forward
from topicsd.engine.routes.step import copy_forward, has_no_room, lose_forward, pass_over
from topicsd.engine.state import ShardState
from topicsd.engine.wakeups.priority import one_band_lower
from topicsd.engine.wakeups.wake_queue import Waiters
from topicsd.log.control_frame import COPIES_MAX
from topicsd.stream.chunks import RECREATED, Piece, Wanted
from topicsd.stream.feed import Feed
from topicsd.stream.feeds import Feeds
from topicsd.stream.route_selection import Source, stamps_of
from topicsd.stream.subscription import Subscription

logger = logging.getLogger("topicsd.stream")

RECORDS_AT_ONCE: Final = COPIES_MAX
BYTES_AT_ONCE: Final = 256 << 10
AGAIN_SECONDS: Final = 0.02
AGAIN_SECONDS_MAX: Final = 1.0

# The reasons of a loss, as readers of the destination receive them. A crash of the source is a crash for them
# too.
_SOURCE_TRIM: Final = "source_trim"
_CRASH: Final = "crash"

_NONE: Final[frozenset[int]] = frozenset()


class Sources(Protocol):
    """The feeds and decoded chunks that the routes of one shard share."""

    def feed_of(self, topic: str) -> Feed: ...

    def source(self, piece: Piece) -> Source: ...

    def look_at(self, topic: str, found: Callable[[Piece | Refusal], None]) -> None:
        """Read the state of a topic without records, which costs almost nothing."""
        ...


class WorkingForward:
    def __init__(self, shard: ShardState, loop: Loop, sources: Sources, forward: Forward) -> None:
        self.forward = forward
        self.waiters: Waiters | None = None
        """The route itself, while it waits for its turn."""
        self._shard = shard
        self._loop = loop
        self._sources = sources
        self._is_over = False
        self._is_busy = False
        self._is_held = False
        self._is_ending = False
        self._has_turn = False
        self._at_once = RECORDS_AT_ONCE
        self._again_seconds = AGAIN_SECONDS
        self._copies = NO_COPIES
        self._lost: tuple[int, str, int] | None = None
        """The number of lost records, the reason, and the last lost seq."""
        self._to_seq = 0
        self._held: set[int] | None = None
        """Seqs of the source of which the destination holds a copy (W5)."""
        self._look: HeldLook | None = None
        feed = sources.feed_of(forward.rule.source)
        self._subscription = Subscription(feed, forward.seq, forward.source_epoch, self)

    def begin(self) -> None:
        self._ask_for_turn()

    def close(self) -> None:
        self._is_over = True
        self._copies = NO_COPIES
        self._subscription.close()
        if self._look is not None:
            self._look.close()
        self._shard.watch.remove(self, self._take_turn)

    # -- results of the subscription -----------------------------------------------------------------------

    @property
    def is_clogged(self) -> bool:
        return self._is_busy or (self._shard.watch.ready.pauses and not self._has_turn)

    def hold(self, subscription: Subscription) -> None:
        if self._is_busy:
            self._is_held = True
        else:
            self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        watch = self._shard.watch
        watch.add(self, self._take_turn)
        watch.wake(self)

    def base_priority(self, now_ms: int) -> float:
        base = self.forward.dest.base_priority(now_ms)
        return one_band_lower(base) if self._shard.watch.ready.pauses else base

    def _take_turn(self) -> None:
        self._has_turn = True
        try:
            self._subscription.go_on()
        finally:
            self._has_turn = False

    def deliver(self, subscription: Subscription, piece: Piece) -> None:
        forward = self.forward
        tombstone = piece.tombstone
        if piece.epoch != forward.source_epoch or (tombstone is not None and tombstone.reason == RECREATED):
            self._end_rule()
            return
        if not self._knows_held():
            self._is_busy = True
            subscription.rewind(forward.seq)
            self._look = HeldLook(self._sources.feed_of(forward.rule.dest), forward, self._looked)
            return
        if tombstone is not None:
            self._lost = self._passed_on(tombstone)
        if piece.count:
            self._copies = self._sources.source(piece).copies(forward.rule, self._held or _NONE)
        self._to_seq = piece.to_seq
        self._is_busy = True
        self._step()

    def _passed_on(self, tombstone: Tombstone) -> tuple[int, str, int] | None:
        """Return what the destination loses because its source did.

        A loss is passed on once in a cycle of routes: it has no stamp that counts hops, and would
        circulate for ever.
        """
        rule = self.forward.rule
        is_in_circle = rule.may_cycle or rule.is_in_cycle
        if is_in_circle and tombstone.reason == _SOURCE_TRIM:
            return None
        reason = _CRASH if tombstone.reason == _CRASH and not is_in_circle else _SOURCE_TRIM
        return tombstone.gap_to - tombstone.gap_from + 1, reason, tombstone.gap_to

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        if refusal.code == CORRUPT_SEGMENT and refusal.detail is not None:
            name, next_seq = self.forward.rule.name, int(str(refusal.detail["next_from_seq"]))
            logger.error('route "%s" has to go on without what is damaged: %s', name, refusal.message)
            self._is_busy = True
            self._to_seq = next_seq
            self._lost = (next_seq - self.forward.seq, _SOURCE_TRIM, next_seq)
            # Runs after the subscription has moved to `next_seq`.
            self._loop.call_soon(self._step)
        elif refusal.code == POSITION_PAST_HEAD:
            self._end_rule()

    def ended(self, subscription: Subscription) -> None:
        self._end_rule()

    # -- copying -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Report the loss, copy the next part of the chunk, or move the cursor to its end."""
        if self._is_over:
            return
        shard, forward = self._shard, self.forward
        if self._lost is not None:
            lose_forward(shard, forward, *self._lost, self._stepped)
            return
        copies = self._copies
        if not copies.seqs:
            pass_over(shard, forward, self._to_seq)
            self._go_on()
        elif len(copies.seqs) <= self._at_once:
            copy_forward(shard, forward, copies, self._to_seq, self._stepped)
        else:
            part = copies.part(0, self._at_once)
            copy_forward(shard, forward, part, part.seqs[-1], self._stepped)

    def _stepped(self, answer: object) -> None:
        if isinstance(answer, Refusal):
            self._refused(answer)
            return
        if self._lost is not None:
            self._lost = None
        else:
            self._copies = self._copies.behind(self._at_once)
            self._at_once = min(2 * self._at_once, RECORDS_AT_ONCE)
        self._again_seconds = AGAIN_SECONDS
        self._step()

    def _refused(self, refusal: Refusal) -> None:
        count = min(self._at_once, len(self._copies))
        if refusal.code in (TOPIC_FULL, RECORD_TOO_LARGE) and count > 1:
            self._at_once = count // 2
            self._step()
            return
        self._copies, self._lost = NO_COPIES, None
        self._subscription.rewind(self.forward.seq)
        self._wait()

    def _wait(self) -> None:
        seconds = self._again_seconds
        self._again_seconds = min(2 * seconds, AGAIN_SECONDS_MAX)
        self._loop.call_later(seconds, self._try_again)

    def _try_again(self) -> None:
        if self._is_over or self._is_ending:
            return
        if has_no_room(self._shard, self.forward):
            self._sources.look_at(self.forward.rule.source, self._looked_at)
            self._wait()
            return
        self._is_held = True
        self._go_on()

    def _looked_at(self, found: Piece | Refusal) -> None:
        """End the route if its source no longer exists. Called while the route reads nothing."""
        if isinstance(found, Refusal):
            is_gone = found.code == TOPIC_NOT_FOUND
        else:
            is_gone = found.epoch != self.forward.source_epoch
        if is_gone and not self._is_ending:
            self._end_rule()

    def _go_on(self) -> None:
        """Accept another chunk, but in a later turn.

        The route would otherwise run before replies of the same batch that other clients wait for.
        """
        self._is_busy = False
        if self._is_held:
            self._is_held = False
            self._ask_for_turn()

    # -- copies that the destination already holds ---------------------------------------------------------

    def _knows_held(self) -> bool:
        forward = self.forward
        if not forward.rule.is_exactly_once or forward.seq >= forward.source_head:
            self._held = None
            return True
        return self._held is not None

    def _looked(self, held: set[int]) -> None:
        self._held = held
        self._is_held = True
        self._go_on()

    # -- the end -------------------------------------------------------------------------------------------

    def _end_rule(self) -> None:
        """Delete the route, because its source is gone (W3)."""
        if not self._is_ending:
            self._is_ending = self._is_busy = True
            rule = self.forward.rule
            logger.info('route "%s" ends: its source "%s" is gone, or another one', rule.name, rule.source)
        if not self._is_over:
            delete_forward(self._shard, self.forward.rule.name, self._rule_ended)

    def _rule_ended(self, answer: object) -> None:
        if isinstance(answer, Refusal) and not self._is_over:
            self._loop.call_later(AGAIN_SECONDS_MAX, self._end_rule)


class HeldLook:
    """A single pass over the destination that collects the source records it holds copies of."""

    is_clogged = False

    def __init__(self, feed: Feed, forward: Forward, looked: Callable[[set[int]], None]) -> None:
        self._forward = forward
        self._looked = looked
        self._held: set[int] = set()
        self._subscription = Subscription(feed, 0, None, self)
        self._subscription.go_on()

    def close(self) -> None:
        self._subscription.close()

    def hold(self, subscription: Subscription) -> None:
        raise AssertionError("a look is never clogged")

    def deliver(self, subscription: Subscription, piece: Piece) -> None:
        forward = self._forward
        self._held.update(
            seq for seq in stamps_of(piece, forward.rule.source, forward.source_epoch) if seq > forward.seq
        )
        if piece.is_at_head:
            self._end()

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        """Skip damaged records: they cannot be read, so they do not count as copies."""

    def ended(self, subscription: Subscription) -> None:
        self._end()

    def _end(self) -> None:
        self._subscription.close()
        self._looked(self._held)


BEGUN_A_TURN: Final = 16
KEPT_SECONDS: Final = 0.02
KEPT_MAX: Final = 8


class Forwards:
    """The routes into topics of this shard. `stand_of` looks up the position of a remote topic."""

    def __init__(self, shard: ShardState, loop: Loop, feeds: Feeds, stand_of: StandOf | None = None) -> None:
        self._shard = shard
        self._loop = loop
        self._feeds = feeds
        self._working: dict[Forward, WorkingForward] = {}
        self._sources: dict[tuple[str, int, int, int], Source] = {}
        """Recently decoded chunks, by topic, epoch and range."""
        shard.stand_of = stand_of
        shard.on_forward = self._changed
        loop.call_soon(self._begin, list(shard.forwards.values()))

    def _begin(self, waiting: list[Forward]) -> None:
        """Start routes, `BEGUN_A_TURN` in each turn of the loop: a start may have thousands."""
        for forward in waiting[:BEGUN_A_TURN]:
            self._changed(forward)
        if len(waiting) > BEGUN_A_TURN:
            self._loop.call_soon(self._begin, waiting[BEGUN_A_TURN:])

    def _changed(self, forward: Forward) -> None:
        working = self._working.get(forward)
        if forward.is_gone:
            if working is not None:
                del self._working[forward]
                working.close()
        elif working is None:
            working = self._working[forward] = WorkingForward(self._shard, self._loop, self, forward)
            working.begin()

    def feed_of(self, topic: str) -> Feed:
        is_strong = not self._feeds.is_here(topic)
        wanted = Wanted(topic, frozenset(), RECORDS_AT_ONCE, BYTES_AT_ONCE, True, True, True, is_strong, True)
        return self._feeds.feed(wanted)

    def look_at(self, topic: str, found: Callable[[Piece | Refusal], None]) -> None:
        feed = self._feeds.feed(Wanted(topic, frozenset(), 1, 1, False, False, False, False))
        feed.enter()

        def answered(what: Piece | Refusal) -> None:
            feed.leave()
            found(what)

        feed.read(NUMBER_MAX, None, answered)

    def source(self, piece: Piece) -> Source:
        """Return the decoded chunk, shared for `KEPT_SECONDS` by all routes at the same cursor."""
        sources = self._sources
        place = (piece.topic, piece.epoch, piece.from_seq, piece.to_seq)
        found = sources.get(place)
        if found is None or found.piece.records != piece.records:
            if not sources:
                self._loop.call_later(KEPT_SECONDS, sources.clear)
            elif len(sources) == KEPT_MAX:
                del sources[next(iter(sources))]
            found = sources[place] = Source(piece)
        return found
