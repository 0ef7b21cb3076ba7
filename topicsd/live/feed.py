"""A feed: one topic as somebody follows it, wherever the topic lives. This one is of a topic of this shard.

Whoever stands at the same cursor in the same turn of the loop gets the same piece: it is read once. A feed
lives as long as somebody follows it.

F1  Who waits is called once, when there may be something behind its cursor. It looks and finds nothing, or
    waits in the same turn in which it looked, so nothing comes in between.
F2  Who is behind asks again in its turn among all that is due (`later`), not at once.
F3  A reading that failed as nobody foresaw is told after a while: whoever follows asks again then.
F4  Who copies what is new does so a moment later, with what comes until then: by then the answer to whoever
    appended has come to him, also where he waits for the very processor that the copying would take.

Must not know: who follows, how anything is delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from shared.errors import INTERNAL, Refusal
from shared.unforeseen import unforeseen
from topicsd.engine.fetch import read_through
from topicsd.engine.requests import ReadAnswer
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_entry import tell
from topicsd.engine.watch import Waiter, Waiters
from topicsd.live.piece import Piece, Wanted, piece_of
from topicsd.scheduler.priority import RECENT
from topicsd.wal.sync_thread import Loop

logger = logging.getLogger("topicsd.live")

# How soon who wants only what is synced looks again while something is not; a background sync comes after 50.
LOOK_FOR_SYNC_SECONDS: Final = 0.01

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
        self._is_looking = False
        self._is_gathering = False

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if not self._count:
            self.forget(self._changed)
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
                self._shard.watch.add(self, waiter)
                self._look_for_sync()
            else:
                self.later(waiter)
        else:
            self._topic = topic
            if self.wanted.is_aligned:
                self._shard.watch.add(self, waiter)
                waiter = self._changed
            self._shard.watch.add(topic, waiter)

    def _changed(self) -> None:
        """F4."""
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_later(GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._is_gathering = False
        self._shard.watch.wake(self)

    def _look_for_sync(self) -> None:
        """There is something that is not synced yet, and nobody says when it is."""
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_FOR_SYNC_SECONDS, self._looked)

    def _looked(self) -> None:
        self._is_looking = False
        self._shard.watch.wake(self)

    def later(self, waiter: Waiter) -> None:
        self._shard.watch.add(self, waiter)
        self._shard.watch.wake(self)

    def forget(self, waiter: Waiter) -> None:
        if self._topic is not None:
            self._shard.watch.remove(self._topic, waiter)
        self._shard.watch.remove(self, waiter)
