"""A remote feed: a topic of another shard, followed over the link once for equal followers.

While a follower waits for news, one request is with the owner (a *pull*). The owner answers it when there
are records after the feed's cursor, with a chunk that every follower at that cursor gets. A follower at an
earlier cursor sends its own read; equal reads are sent once, however many followers wait for the answer.

R1  One pull is in progress at a time, and the next starts when its chunk has arrived. So however fast the
    owner and slow the readers, one chunk for each feed is all that waits, and a slow reader does not slow
    the others.
R2  When the owner is unavailable, every follower is informed once, and called again when the owner is
    back. Followers keep their own cursors, so no record is missed or repeated.
R3  A chunk is kept for `KEPT_SECONDS` only: a record deleted meanwhile is not sent to later followers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import NOT_READY, Refusal
from shared.ipc.link import LinkKind, LinkPool, Question
from shared.runtime.disk_thread import Loop
from topicsd.engine.pending import tell
from topicsd.engine.wakeups.priority import RECENT
from topicsd.engine.wakeups.wake_queue import Waiter, Waiters, Watch
from topicsd.stream.chunks import Piece, Wanted, decode_piece
from topicsd.stream.feed import Found

KEPT_SECONDS: Final = 0.02
TRY_AGAIN_SECONDS: Final = 0.1
RETRY_AFTER_MS: Final = 1000

PIECE: Final = b"P"
REFUSED: Final = b"R"
"""The first byte of an answer."""


class FeedQuestion(msgspec.Struct, array_like=True):
    """A request for the records after a cursor.

    With `waits` it is answered when there are records, or when the wait is cancelled.
    """

    topic: str
    nodes: list[str]
    limit: int
    bytes_max: int
    with_tags: bool
    with_meta: bool
    with_data: bool
    is_strong: bool
    seq: int
    epoch: int | None
    waits: bool

    @property
    def wanted(self) -> Wanted:
        return Wanted.of(self.topic, self)


encode_question = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(FeedQuestion).decode
encode_refusal = msgspec.msgpack.Encoder().encode
_decode_refusal = msgspec.msgpack.Decoder(Refusal).decode


class Ways(NamedTuple):
    """The means to send requests to other shards."""

    links: LinkPool
    refusal: Callable[[int], Refusal | None]
    """The reason why a shard is unavailable now, or None."""
    watch: Watch
    loop: Loop


class RemoteFeed:
    def __init__(self, ways: Ways, shard: int, wanted: Wanted, on_unused: Callable[[Wanted], None]) -> None:
        self.wanted = wanted
        self.waiters: Waiters | None = None
        self._ways = ways
        self._shard = shard
        self._on_unused = on_unused
        self._count = 0
        self._pull: Question | None = None
        self._is_pulling = False
        self._at: tuple[int, int | None] = (0, None)
        """The cursor of the current pull, or of the last one."""
        self._pieces: dict[tuple[int, int | None], Piece] = {}
        self._asking: dict[tuple[int, int | None], list[Found]] = {}
        self._down: Refusal | None = None

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if not self._count:
            self._on_unused(self.wanted)
            if self._pull is not None:
                self._pull.hurry()

    def base_priority(self, now_ms: int) -> float:
        """Return RECENT.

        The owner already applied the priority of the topic before it sent the chunk.
        """
        return RECENT

    # -- followers -----------------------------------------------------------------------------------------

    def read(self, seq: int, epoch: int | None, found: Found) -> None:
        cursor = (seq, epoch)
        piece = self._pieces.get(cursor)
        if piece is not None:
            found(piece)
        elif self._down is not None:
            found(self._down)
        elif cursor in self._asking:
            self._asking[cursor].append(found)
        else:
            self._asking[cursor] = [found]
            self._ask(cursor, waits=False)

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        self._ways.watch.add(self, waiter)
        if self._down is None and self._pull is None:
            self._begin_pull((seq, epoch))
        elif (seq, epoch) != self._at and seq <= self._at[0]:
            # The pull reads after records that this follower has not seen yet.
            self._ways.watch.wake(self)

    def later(self, waiter: Waiter) -> None:
        self._ways.watch.add(self, waiter)
        if self._down is None:
            self._ways.watch.wake(self)

    def forget(self, waiter: Waiter) -> None:
        self._ways.watch.remove(self, waiter)

    # -- requests to the owner -----------------------------------------------------------------------------

    def _ask(self, cursor: tuple[int, int | None], waits: bool) -> None:
        refusal = self._ways.refusal(self._shard)
        if refusal is not None:
            self._ways.loop.call_soon(self._lose, refusal)
            return
        wanted, (seq, epoch) = self.wanted, cursor
        question = FeedQuestion(
            wanted.topic,
            sorted(wanted.nodes),
            wanted.limit,
            wanted.bytes_max,
            wanted.with_tags,
            wanted.with_meta,
            wanted.with_data,
            wanted.is_strong,
            seq,
            epoch,
            waits,
        )
        payload = encode_question(question)
        told = self._pulled if waits else partial(self._answered, cursor)
        self._is_pulling = waits or self._is_pulling
        asked = self._ways.links.call(str(self._shard), LinkKind.FEED, payload, told)
        # A link that accepts no more requests has already called `_pulled`.
        if waits and self._is_pulling:
            self._pull = asked

    def _begin_pull(self, cursor: tuple[int, int | None]) -> None:
        self._at = cursor
        self._ask(cursor, waits=True)

    def _pulled(self, answer: bytes | None) -> None:
        self._pull = None
        self._is_pulling = False
        if not answer:
            self._lose(self._not_reached())
            return
        if answer[:1] == PIECE:
            piece = self._keep(self._at, answer)
            if not piece.is_empty or piece.to_seq != self._at[0]:
                self._at = (piece.to_seq, piece.epoch)
        # Followers get a refusal when they read.
        self._ways.watch.wake(self)

    def _answered(self, cursor: tuple[int, int | None], answer: bytes | None) -> None:
        if not answer:
            self._lose(self._not_reached())
            return
        waiting = self._asking.pop(cursor, [])
        found = self._keep(cursor, answer) if answer[:1] == PIECE else _decode_refusal(answer[1:])
        for one in waiting:
            tell(one, found)

    def _keep(self, cursor: tuple[int, int | None], answer: bytes) -> Piece:
        piece = decode_piece(answer[1:])
        if not self._pieces:
            self._ways.loop.call_later(KEPT_SECONDS, self._pieces.clear)
        self._pieces[cursor] = piece
        return piece

    # -- an unavailable owner ------------------------------------------------------------------------------

    def _not_reached(self) -> Refusal:
        refusal = self._ways.refusal(self._shard)
        message = f"shard {self._shard} does not answer"
        return refusal or Refusal(NOT_READY, message, {"shard": self._shard}, RETRY_AFTER_MS)

    def _lose(self, refusal: Refusal) -> None:
        """Report the refusal to every reader, and wake the waiters, which then read and get it too."""
        asking, self._asking = self._asking, {}
        if self._down is None:
            self._down = refusal
            self._pieces.clear()
            self._ways.loop.call_later(TRY_AGAIN_SECONDS, self._try_again)
            self._ways.watch.wake(self)
        for waiting in asking.values():
            for one in waiting:
                tell(one, refusal)

    def _try_again(self) -> None:
        if self._ways.refusal(self._shard) is None:
            self._down = None
            self._ways.watch.wake(self)
        elif self._count:
            self._ways.loop.call_later(TRY_AGAIN_SECONDS, self._try_again)
        else:
            self._down = None
