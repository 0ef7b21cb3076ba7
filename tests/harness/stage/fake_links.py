"""The links of one shard of a stage to the others, without a socket.

Promises: a message takes one turn of the receiving shard's loop. A link that is cut refuses requests, and
loses the messages in transit; a full one refuses at once. `lose` forgets everything, as the end of this
shard's process does. There is no supervisor, but every stream is permitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, cast

import msgspec

from shared.ipc.link import NEVER_SENT, SUPERVISOR, Done, Link, LinkCall, LinkPool, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.runtime.body_memory import SharedBody
from tests.harness.machine.manual_loop import ManualLoop

# No limit is reached.
PERMITTED: Final = msgspec.msgpack.encode("")

LoopOf = Callable[[int], ManualLoop]
AnswerAt = Callable[[int, LinkKind, bytes, LinkReply], object]
"""Answers a request at a shard."""


class _InTransit(NamedTuple):
    peer: int
    request: LinkReply
    done: Done


class FakeLinks(LinkPool):
    def __init__(self, shard: int, shard_count: int, loop_of: LoopOf, answer_at: AnswerAt) -> None:
        """Take the loops as a function: a restarted shard has another one."""
        self._shard = shard
        self._peers = {str(peer): peer for peer in range(shard_count)}
        self._loop_of = loop_of
        self._answer_at = answer_at
        self._cut: set[int] = set()
        self.is_full = False
        self.is_losing_answers = False
        """Whether answers are lost, as if the link broke after each request."""
        self.call_count = 0
        self._in_transit: dict[int, _InTransit] = {}

    def is_cut(self, peer: int) -> bool:
        return peer in self._cut

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> LinkCall:
        assert isinstance(body, bytes), "these tests share no memory"
        call = LinkCall(done)
        if self.is_full:
            done(NEVER_SENT)
            return call
        if name == SUPERVISOR and kind in (LinkKind.ENTER_STREAM, LinkKind.LEAVE_STREAM):
            self._loop_of(self._shard).call_soon(done, PERMITTED)
            return call
        peer = self._peers.get(name)
        if peer is None or peer in self._cut:
            self._loop_of(self._shard).call_soon(done, NEVER_SENT)
            return call
        self.call_count += 1
        number = self.call_count
        call.link, call.number = cast(Link, self), number
        self._in_transit[number] = _InTransit(peer, LinkReply(cast(Link, self), number, body=body), done)
        self._loop_of(peer).call_soon(self._arrive, number, kind, payload)
        return call

    def _arrive(self, number: int, kind: LinkKind, payload: bytes) -> None:
        sent = self._in_transit.get(number)
        if sent is not None:
            self._answer_at(sent.peer, kind, payload, sent.request)

    def answer(self, number: int, answer: bytes) -> None:
        if number in self._in_transit:
            result = None if self.is_losing_answers else answer
            self._loop_of(self._shard).call_soon(self._return, number, result)

    def _return(self, number: int, answer: bytes | None) -> None:
        sent = self._in_transit.pop(number, None)
        if sent is not None:
            sent.done(answer)

    def cancel_wait(self, number: int) -> None:
        if number in self._in_transit:
            _cancel_wait(self._in_transit[number].request)

    def cut(self, peer: int) -> None:
        """Cut the link: requests stay unanswered, and their handlers stop waiting."""
        self._cut.add(peer)
        for sent in self._take(peer):
            sent.done(None)
            _cancel_wait(sent.request)

    def reconnect(self, peer: int) -> None:
        self._cut.discard(peer)

    def lose(self) -> None:
        """Forget all requests, as the process does that ends: only their handlers learn it."""
        for peer in self._peers.values():
            for sent in self._take(peer):
                _cancel_wait(sent.request)

    def _take(self, peer: int) -> list[_InTransit]:
        taken = [number for number, sent in self._in_transit.items() if sent.peer == peer]
        return [self._in_transit.pop(number) for number in taken]


def _cancel_wait(reply: LinkReply) -> None:
    if reply.cancel_wait is not None:
        reply.cancel_wait()
