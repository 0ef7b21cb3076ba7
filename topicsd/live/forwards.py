"""All forwards that copy into topics of this shard: each is at work from when it is there until it is gone.

Must not know: HTTP, what a rule says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.contract import NUMBER_MAX
from shared.errors import Refusal
from topicsd.engine.forwards import Forward, StandOf
from topicsd.engine.shard_state import ShardState
from topicsd.live.copies import Source
from topicsd.live.feed import Feed
from topicsd.live.feeds import Feeds
from topicsd.live.forward import BYTES_AT_ONCE, RECORDS_AT_ONCE, WorkingForward
from topicsd.live.piece import Piece, Wanted
from topicsd.wal.sync_thread import Loop

BEGUN_A_TURN: Final = 16
KEPT_SECONDS: Final = 0.02
KEPT_MAX: Final = 8


class Forwards:
    """`stand_of` finds out where a topic of another shard stands."""

    def __init__(self, shard: ShardState, loop: Loop, feeds: Feeds, stand_of: StandOf | None = None) -> None:
        self._shard = shard
        self._loop = loop
        self._feeds = feeds
        self._working: dict[Forward, WorkingForward] = {}
        self._sources: dict[tuple[str, int, int, int], Source] = {}
        """What was taken apart a moment ago, by where it stands."""
        shard.stand_of = stand_of
        shard.on_forward = self._changed
        loop.call_soon(self._begin, list(shard.forwards.values()))

    def _begin(self, waiting: list[Forward]) -> None:
        """After a start there may be thousands."""
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
        """All forwards of a source that come by one cursor get the same, also over several turns."""
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
