"""A feed: one topic as somebody follows it, wherever the topic lives. This one is of a topic of this shard.

Whoever stands at the same cursor in the same turn of the loop gets the same piece: it is read once. A feed
lives as long as somebody follows it.

F1  Who waits is called once, when there may be something behind its cursor. It looks and finds nothing, or
    waits in the same turn in which it looked, so nothing comes in between.
F2  Who is behind asks again in its turn among all that is due (`later`), not at once.
F3  A reading that failed as nobody foresaw is told after a while: whoever follows asks again then.
F4  Who copies what is new does so a moment later, with what comes until then: by then the answer to whoever
    appended has come to him, also where he waits for the very processor that the copying would take.
F5  What only a follower of synced records waits for is synced at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from shared.contract.errors import INTERNAL, Refusal
from shared.runtime.disk_thread import Loop
from shared.runtime.unexpected_error import unforeseen
from topicsd.engine.pending import tell
from topicsd.engine.read.fetch import read_through
from topicsd.engine.requests import ReadAnswer
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.wakeups.priority import RECENT
from topicsd.engine.wakeups.wake_queue import Awaited, Waiter, Waiters
from topicsd.stream.chunks import Piece, Wanted, piece_of

logger = logging.getLogger("topicsd.stream")

# How soon a reader of synced records looks again when there is nothing to sync.
LOOK_AGAIN_SECONDS: Final = 0.01
FAILED_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 0.001

Found = Callable[[Piece | Refusal], None]


class Feed(Protocol):
    wanted: Wanted

    def read(self, seq: int, epoch: int | None, found: Found) -> None:
        """What stands behind the cursor, now or when it is there; an empty piece when that is nothing."""
        ...

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        """Call it once there may be something behind the cursor, which stood at the head just now."""
        ...

    def later(self, waiter: Waiter) -> None:
        """Call it when it is its turn again."""
        ...

    def forget(self, waiter: Waiter) -> None:
        """Do not call it, also when it is not waiting."""
        ...

    def enter(self) -> None:
        """One more follows."""
        ...

    def leave(self) -> None: ...


class LocalFeed:
    def __init__(
        self, shard: ShardState, loop: Loop, wanted: Wanted, on_unused: Callable[[Wanted], None]
    ) -> None:
        self.wanted = wanted
        self.waiters: Waiters | None = None
        """Who is behind; who waits for news is with the topic."""
        self._shard = shard
        self._loop = loop
        self._on_unused = on_unused
        self._count = 0
        self._of_this_turn: dict[tuple[int, int | None], Piece] = {}
        self._reading: dict[tuple[int, int | None], list[Found]] = {}
        """Who waits for the disk, by the cursor."""
        self._topic: Topic | None = None
        self._of_moment: Awaited = _AtHead(self) if wanted.is_aligned else self
        """Who is called when a moment has passed."""
        self._is_passing = False

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if not self._count:
            self.forget(self._begin_moment)
            self._on_unused(self.wanted)

    def base_priority(self, now_ms: int) -> float:
        """That of its topic; who is told that there is none any more comes before most."""
        topic = self._shard.topics.get(self.wanted.topic)
        return RECENT if topic is None else topic.base_priority(now_ms)

    def read(self, seq: int, epoch: int | None, found: Found) -> None:
        piece = self._of_this_turn.get((seq, epoch))
        if piece is not None:
            found(piece)
        elif (seq, epoch) in self._reading:
            self._reading[seq, epoch].append(found)
        else:
            self._reading[seq, epoch] = [found]
            request = self.wanted.request(seq, epoch)
            read_through(self._shard, self.wanted.topic, request, partial(self._answered, seq, epoch))

    def _answered(self, seq: int, epoch: int | None, answer: ReadAnswer | Refusal) -> None:
        what = answer if isinstance(answer, Refusal) else self._keep(seq, epoch, answer)
        if isinstance(what, Refusal) and what.code == INTERNAL:
            self._loop.call_later(FAILED_SECONDS, self._tell, seq, epoch, what)
        else:
            self._tell(seq, epoch, what)

    def _tell(self, seq: int, epoch: int | None, what: Piece | Refusal) -> None:
        first, *others = self._reading.pop((seq, epoch))
        for found in others:
            tell(found, what)
        # Who asked hears of its own failure.
        first(what)

    def _keep(self, seq: int, epoch: int | None, answer: ReadAnswer) -> Piece | Refusal:
        try:
            piece = piece_of(answer, self.wanted, seq)
        except Exception as error:
            return unforeseen(logger, "what is followed", error)
        if not self._of_this_turn:
            self._loop.call_soon(self._of_this_turn.clear)
        self._of_this_turn[seq, epoch] = piece
        if piece.count:
            self._shard.topics[answer.topic].last_read_ms = self._shard.clock.now_ms()
        return piece

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        topic = self._shard.topics.get(self.wanted.topic)
        if topic is None or topic.epoch != epoch:
            self.later(waiter)
        elif topic.head > seq:
            if self.wanted.is_strong:
                # There is something that is not synced yet.
                self._shard.watch.add(self._of_moment, waiter)
                self._begin_sync()
            else:
                self.later(waiter)
        else:
            self._topic = topic
            if self.wanted.is_aligned:
                self._shard.watch.add(self._of_moment, waiter)
                waiter = self._begin_moment
            self._shard.watch.add(topic, waiter)

    def _begin_moment(self) -> None:
        if not self._is_passing:
            self._is_passing = True
            self._loop.call_later(GATHER_SECONDS, self._passed)

    def _begin_sync(self) -> None:
        if not self._is_passing:
            self._is_passing = True
            if not self._shard.log.sync_soon(self._passed):
                self._loop.call_later(LOOK_AGAIN_SECONDS, self._passed)

    def _passed(self) -> None:
        self._is_passing = False
        self._shard.watch.wake(self._of_moment)

    def later(self, waiter: Waiter) -> None:
        self._shard.watch.add(self, waiter)
        self._shard.watch.wake(self)

    def forget(self, waiter: Waiter) -> None:
        if self._topic is not None:
            self._shard.watch.remove(self._topic, waiter)
        self._shard.watch.remove(self._of_moment, waiter)
        self._shard.watch.remove(self, waiter)


class _AtHead:
    """Those of a feed who are at the head: they need not look whenever one who is behind goes on."""

    def __init__(self, feed: LocalFeed) -> None:
        self.waiters: Waiters | None = None
        self.base_priority = feed.base_priority
