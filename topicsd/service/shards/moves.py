"""Moves of transfers between the shards of one server (`topicsd/engine/transfer/move.py`).

A move is not retried here. When its answer is lost it is in doubt, and the next move to the same destination
finds out whether it was made.
"""

from __future__ import annotations

import logging

from shared.contract.errors import RELOCATED, Refusal, in_doubt, no_answer, not_supported
from shared.contract.names import is_topic_name
from shared.ipc.link import NEVER_SENT, LinkPool, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import OwnerLookup
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.state import ShardState
from topicsd.engine.transfer.move import (
    Move,
    MoveReply,
    append_move,
    decode_move,
    decode_move_answer,
    encode_move,
    encode_move_answer,
)
from topicsd.service.handlers import FindShared
from topicsd.service.shards.limits import Caps
from topicsd.service.shards.peers import Peers

logger = logging.getLogger("topicsd.http")


class Moves:
    """The moves to and from one shard.

    `peers` exist on a server with several shards, and `find_shared` on one with brokers: a move creates no
    local topic with the name of a shared one.
    """

    def __init__(
        self,
        state: ShardState,
        caps: Caps,
        links: LinkPool,
        shard: int,
        placement: OwnerLookup,
        peers: Peers | None,
        find_shared: FindShared | None = None,
    ) -> None:
        self._state = state
        self._caps = caps
        self._links = links
        self._shard = shard
        self._placement = placement
        self._peers = peers
        self._find_shared = find_shared

    def send(self, move: Move, reply: MoveReply) -> None:
        """Send a move to the owner of its destination; `reply` gets None, or the refusal."""
        owner = self._placement.owner_of(move.destination)

        def on_result(refusal: Refusal | None) -> None:
            # Nothing was appended: the destination was moved to another shard.
            if refusal is not None and refusal.code == RELOCATED:
                self.send(move, reply)
            else:
                reply(refusal)

        if owner == self._shard:
            self._append(move, on_result)
            return
        refusal = None if self._peers is None else self._peers.refusal(owner)
        if refusal is not None:
            reply(refusal)
            return

        def on_answer(answer: bytes | None) -> None:
            if answer is None:
                reply(in_doubt(owner))
            elif answer == NEVER_SENT:
                reply(no_answer(owner))
            else:
                on_result(decode_move_answer(answer))

        self._links.call(str(owner), LinkKind.MOVE, encode_move(move), on_answer)

    def answer_link(self, payload: bytes, reply: LinkReply) -> None:
        """Answer a move of another shard to a topic of this shard."""
        self._append(decode_move(payload), lambda refusal: reply(encode_move_answer(refusal)))

    def _append(self, move: Move, reply: MoveReply) -> None:
        name = move.destination
        may_create = move.creates and name not in self._state.topics and is_topic_name(name)
        if self._find_shared is None or not may_create:
            self._append_local(move, reply)
            return

        def on_answer(is_shared: bool | Refusal) -> None:
            if isinstance(is_shared, Refusal):
                reply(is_shared)
            elif is_shared:
                reply(not_supported("dead_letter"))
            else:
                self._append_local(move, reply)

        self._find_shared(name, on_answer)

    def _append_local(self, move: Move, reply: MoveReply) -> None:
        try:
            append_move(self._state, self._caps.append, move, reply)
        except Exception as error:
            reply(refuse_unexpected_error(logger, "move", error))
