"""Heads of topics, whichever shard owns them: head, earliest seq, epoch, and the seqs that seeks find.

All topics of another shard are one request, so an answer is a consistent view of that shard only. A topic may
also be a shared one, of which the broker of the node knows the head. A shard asks its broker for what the
owners by the placement do not have, and a broker asks the owners for what is no shared topic. A process that
is asked over the link answers for itself only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import TOPIC_NOT_FOUND, Refusal, no_answer
from shared.contract.seek import Seek
from shared.ipc.link import LinkPool, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import OwnerLookup
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.jobs import BackgroundJob, together
from topicsd.engine.read.position import followed_epoch, position_past_head
from topicsd.engine.read.seek import seek
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import topic_not_found, topic_state
from topicsd.service.call import logger
from topicsd.service.shards.peers import Peers
from topicsd.stream.shared.shared_reads import SharedPosition, SharedReads

RequestedPosition = int | Seek | None
"""Where a client begins: after a seq, at a seek, or at the next record."""


class TopicHead(NamedTuple):
    """The head of a topic."""

    head_seq: int
    earliest_seq: int
    epoch: int
    from_seq: int | None = None
    """The seq that a seek found, or None without a seek."""

    def start(self, name: str, position: RequestedPosition, epoch: int | None) -> TopicStart | Refusal:
        """Return where to follow the topic for a client that has read `epoch`, if it says so."""
        target_seq = self.from_seq if isinstance(position, Seek) else position
        seq = self.head_seq if target_seq is None else target_seq
        if epoch == self.epoch and seq > self.head_seq:
            return position_past_head(name, seq, self.head_seq, self.epoch)
        return TopicStart(seq, followed_epoch(seq, epoch, self.head_seq, self.epoch), self)


class TopicStart(NamedTuple):
    """Where a topic is followed from, and the head that it had."""

    seq: int
    epoch: int
    head: TopicHead

    @property
    def body(self) -> dict[str, int]:
        """Return the topic's member of a response."""
        head = self.head
        return {
            "from_seq": self.seq,
            "head_seq": head.head_seq,
            "earliest_seq": head.earliest_seq,
            "epoch": head.epoch,
        }


HeadRequest = tuple[str, Seek | None]
"""A topic, and the seek in it or None."""
HeadAnswer = TopicHead | Refusal

NO_SHARD: Final = -1
"""The owner by the placement of every topic on a node without shards."""

_encode = msgspec.msgpack.Encoder().encode
_decode_requests = msgspec.msgpack.Decoder(list[HeadRequest]).decode
_decode_heads = msgspec.msgpack.Decoder(list[TopicHead | Refusal | None]).decode


class TopicHeads:
    """The lookup of heads by one shard; `peers` exist on a server with a supervisor."""

    def __init__(
        self,
        state: ShardState,
        placement: OwnerLookup,
        links: LinkPool,
        peers: Peers | None,
        broker_number: int | None = None,
        shared: SharedReads | None = None,
    ) -> None:
        """`broker_number` is the owner number of a broker of the node; a broker process has `shared`."""
        self._state = state
        self._placement = placement
        self._links = links
        self._peers = peers
        self._broker_number = broker_number
        self._shared = shared
        self._number = state.number if shared is None or broker_number is None else broker_number

    def find(self, positions: Mapping[str, RequestedPosition]) -> BackgroundJob[dict[str, HeadAnswer]]:
        """Return the head of each topic, or the refusal that says why it has none."""
        heads: dict[str, HeadAnswer] = {}
        requests = {name: one if isinstance(one, Seek) else None for name, one in positions.items()}
        places = [self._find_at_owners]
        if self._broker_number is not None:
            places.insert(len(places) if self._shared is None else 0, self._find_at_broker)
        for place in places:
            if requests:
                heads |= yield from place(requests)
                requests = {name: one for name, one in requests.items() if _is_unknown(heads[name])}
        return heads

    def _find_at_broker(self, requests: Mapping[str, Seek | None]) -> BackgroundJob[dict[str, HeadAnswer]]:
        broker = self._broker_number
        assert broker is not None
        if self._shared is None and self._peers is not None:
            broker = self._peers.ready_broker(broker)
        return (yield from self._find_at(dict.fromkeys(requests, broker), requests))

    def _find_at_owners(self, requests: Mapping[str, Seek | None]) -> BackgroundJob[dict[str, HeadAnswer]]:
        """Return heads from the owners by the placement.

        A topic that was moved meanwhile is looked up again, at its new owner.
        """
        heads: dict[str, HeadAnswer] = {}
        while requests:
            owners = {name: self._placement.owner_of(name) for name in requests}
            heads |= yield from self._find_at(owners, requests)
            requests = {
                name: requests[name]
                for name, owner in owners.items()
                if isinstance(heads[name], Refusal) and self._placement.owner_of(name) != owner
            }
        return heads

    def _find_at(
        self, owners: Mapping[str, int], requests: Mapping[str, Seek | None]
    ) -> BackgroundJob[dict[str, HeadAnswer]]:
        by_shard: dict[int, list[HeadRequest]] = {}
        for name, owner in owners.items():
            by_shard.setdefault(owner, []).append((name, requests[name]))
        here = by_shard.pop(self._number, [])
        # A node without shards has no owner of local topics.
        nowhere = by_shard.pop(NO_SHARD, [])
        answers = yield from together([partial(self._ask, *request) for request in by_shard.items()])
        heads = dict(zip(_names(here), (yield from self._find_here(here)), strict=True))
        heads.update({name: topic_not_found(name) for name, _ in nowhere})
        for (shard, part), answer in zip(by_shard.items(), answers, strict=True):
            heads.update(zip(_names(part), self._read(shard, part, answer), strict=True))
        return heads

    def _ask(self, shard: int, requests: list[HeadRequest], reply: Callable[[bytes | None], object]) -> None:
        if self._refusal(shard) is not None:
            reply(None)
        else:
            self._links.call(str(shard), LinkKind.TOPIC_HEADS, _encode(requests), reply)

    def _read(self, shard: int, requests: list[HeadRequest], answer: bytes | None) -> list[HeadAnswer]:
        if answer:
            columns = zip(_names(requests), _decode_heads(answer), strict=True)
            return [topic_not_found(name) if one is None else one for name, one in columns]
        return [self._refusal(shard) or no_answer(shard)] * len(requests)

    def _refusal(self, shard: int) -> Refusal | None:
        return None if self._peers is None else self._peers.refusal(shard)

    def _find_here(self, requests: Sequence[HeadRequest]) -> BackgroundJob[list[HeadAnswer]]:
        """Return the heads of topics of this process; a missing topic is refused."""
        if self._shared is not None:
            return (yield from together([partial(_find_shared, self._shared, *one) for one in requests]))
        seeks = {name: target for name, target in requests if target is not None}
        answers = yield from together([partial(seek, self._state, *one) for one in seeks.items()])
        seqs = dict(zip(seeks, answers, strict=True))
        return [self._head_of(name, seqs.get(name)) for name, _ in requests]

    def _head_of(self, name: str, from_seq: int | Refusal | None) -> HeadAnswer:
        topic = topic_state(self._state, name)
        if isinstance(topic, Refusal) or isinstance(from_seq, Refusal):
            return topic if isinstance(topic, Refusal) else topic_not_found(name)
        return TopicHead(topic.head_seq, topic.earliest_seq, topic.epoch, from_seq)

    def answer(self, payload: bytes, reply: LinkReply) -> None:
        """Answer another shard's request for topics of this shard."""

        def on_end(outcome: list[HeadAnswer] | Exception) -> None:
            if isinstance(outcome, Exception):
                # An empty answer: this shard is reported as one that does not answer.
                refuse_unexpected_error(logger, "a request for heads", outcome)
                reply(b"")
            else:
                reply(_encode([None if _is_unknown(one) else one for one in outcome]))

        self._state.jobs.start_now(self._find_here(_decode_requests(payload)), on_end)


def _is_unknown(head: HeadAnswer) -> bool:
    return isinstance(head, Refusal) and head.code == TOPIC_NOT_FOUND


def _find_shared(
    shared: SharedReads, name: str, target: Seek | None, reply: Callable[[HeadAnswer], object]
) -> None:
    def end(answer: SharedPosition | Refusal) -> None:
        reply(answer if isinstance(answer, Refusal) else TopicHead(*answer))

    shared.locate(name, target, end)


def _names(requests: Sequence[HeadRequest]) -> list[str]:
    return [name for name, _ in requests]
