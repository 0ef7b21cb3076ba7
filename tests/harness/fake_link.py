"""The link from one shard of a stage to another, and back for answers, without a socket.

Promises: a message takes one turn of the requesting shard's loop in each direction. While the link is `cut`
the other shard is unreachable, and messages in transit are lost; a full link refuses requests at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from shared.ipc.link import NEVER_SENT, Done, Link, LinkCall, LinkPool, LinkRequest
from shared.ipc.link_kind import LinkKind
from shared.runtime.body_memory import SharedBody
from tests.harness.manual_loop import ManualLoop

Answer = Callable[[LinkKind, bytes, LinkRequest], object]


class FakeLink(LinkPool):
    def __init__(self, loop: Callable[[], ManualLoop], answer: Answer) -> None:
        """Take the requester's loop as a function: it changes when the requester is restarted."""
        self._loop = loop
        self._answer = answer
        self.is_cut = False
        self.is_full = False
        self.call_count = 0
        self._under_way: dict[int, tuple[LinkRequest, Done]] = {}

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> LinkCall:
        assert not body, "these tests send no separate body"
        call = LinkCall(done)
        loop = self._loop()
        if self.is_full:
            done(NEVER_SENT)
            return call
        if self.is_cut:
            loop.call_soon(done, NEVER_SENT)
            return call
        self.call_count += 1
        number = self.call_count
        self._under_way[number] = (LinkRequest(cast(Link, self), number), done)
        call.link, call.number = cast(Link, self), number
        loop.call_soon(self._arrived, number, kind, payload)
        return call

    def _arrived(self, number: int, kind: LinkKind, payload: bytes) -> None:
        if number in self._under_way:
            self._answer(kind, payload, self._under_way[number][0])

    def answer(self, number: int, answer: bytes) -> None:
        if number in self._under_way:
            _, done = self._under_way.pop(number)
            self._loop().call_soon(done, answer)

    def cancel_wait(self, number: int) -> None:
        if number in self._under_way:
            _cancel_wait(self._under_way[number][0])

    def cut(self) -> None:
        """Cut the link: requests stay unanswered, and their handlers stop waiting."""
        self.is_cut = True
        lost, self._under_way = self._under_way, {}
        for request, done in lost.values():
            done(None)
            _cancel_wait(request)


def _cancel_wait(request: LinkRequest) -> None:
    if request.cancel_wait is not None:
        request.cancel_wait()
