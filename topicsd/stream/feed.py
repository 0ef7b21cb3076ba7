"""A feed: one topic as it is followed in one process. `LocalFeed` follows a topic of this shard.

All followers at the same cursor in the same turn of the loop get the same chunk: the topic is read once. A
feed lives as long as it has a follower.

F1  A waiter is called once, when there may be records after its cursor. A follower that reads and finds
    nothing waits in the same turn of the loop, so no append can happen between the two.
F2  A follower that is not at the head reads again in its turn among all ready work (`later`), not at once.
F3  An unexpected read error is reported after `FAILED_SECONDS`; followers then retry.
F4  A feed for routes (`is_aligned`) reads new records `GATHER_SECONDS` later, together with the records
    appended until then. The response to the append is then sent first, even if its client waits for the
    same processor that the copying would use.
F5  If a follower of synced records waits only for a sync, the sync starts at once.
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

# How soon a reader of synced records reads again when there is nothing to sync.
LOOK_AGAIN_SECONDS: Final = 0.01
FAILED_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 0.001

Found = Callable[[Piece | Refusal], None]


class Feed(Protocol):
    wanted: Wanted

    def read(self, seq: int, epoch: int | None, found: Found) -> None:
        """Return the records after the cursor through `found`, at once or when they are available.

        The chunk is empty when there are no records.
        """
        ...

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        """Call `waiter` once there may be records after the cursor, which was at the head just now."""
        ...

    def later(self, waiter: Waiter) -> None:
        """Call `waiter` when its turn comes by priority."""
        ...

    def forget(self, waiter: Waiter) -> None:
        """Cancel a call of `waiter`. A waiter that is not waiting is ignored."""
        ...

    def enter(self) -> None:
        """Count one more follower."""
        ...

    def leave(self) -> None: ...


class LocalFeed:
    def __init__(
        self, shard: ShardState, loop: Loop, wanted: Wanted, on_unused: Callable[[Wanted], None]
    ) -> None:
        self.wanted = wanted
        self.waiters: Waiters | None = None
        """The followers that are not at the head. Followers that wait for news are waiters of the topic."""
        self._shard = shard
        self._loop = loop
        self._on_unused = on_unused
        self._count = 0
        self._of_this_turn: dict[tuple[int, int | None], Piece] = {}
        self._reading: dict[tuple[int, int | None], list[Found]] = {}
        """The callbacks of the reads in progress, by cursor."""
        self._topic: Topic | None = None
        self._of_moment: Awaited = _AtHead(self) if wanted.is_aligned else self
        """The owner of the waiters that are called when the delay ends (F4, F5)."""
        self._is_passing = False

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if not self._count:
            self.forget(self._begin_moment)
            self._on_unused(self.wanted)

    def base_priority(self, now_ms: int) -> float:
        """Return the priority of the topic; RECENT when the topic does not exist.

        So the followers of a deleted topic learn of it before most other work is done.
        """
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
        # Called last, so that an exception of the follower that started the read propagates to it.
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
                # The topic has records that are not synced yet.
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
    """The waiters of a feed that are at the head.

    They are kept apart so that a follower that reads older records does not wake them.
    """

    def __init__(self, feed: LocalFeed) -> None:
        self.waiters: Waiters | None = None
        self.base_priority = feed.base_priority
