"""Caps over all shards, for new topics and for bytes.

C1  `max_topics` is exact. Near the cap, the worker reserves a topic at the supervisor before it creates the
    topic, and creates it in the turn in which the answer arrives. Far from the cap there is no request, and
    the engine checks this shard's own count. "Far" means that the cap holds even if every shard creates
    `UNSEEN_TOPICS_MAX` topics between two heartbeats.
C2  `max_total_bytes` may be exceeded by one request per shard: each shard sees the numbers that the others
    published last, and its own including requests in flight.
C3  Requests for an existing topic do not wait, and a repeated write with a known idempotency key or producer
    number is answered whatever the caps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import NOT_READY, THROTTLED, Refusal
from shared.ipc.link import SUPERVISOR, LinkKind, LinkPool
from shared.text.message import size_text
from topicsd.engine.pending import Refuse
from topicsd.engine.requests import AppendRequest
from topicsd.engine.state import ShardState
from topicsd.engine.write.keyed_write import IdempotencyKey, key_of
from topicsd.engine.write.producer_write import is_known_write
from topicsd.service.shards.peers import Peers

# Creations are synced, so a shard creates about a tenth of this between two heartbeats.
UNSEEN_TOPICS_MAX: Final = 10_000
RETRY_AFTER_MS: Final = 1000

_encode_shard = msgspec.msgpack.Encoder().encode
GRANTED: Final = _encode_shard(True)
FULL: Final = _encode_shard(False)


class PendingCreation(NamedTuple):
    create: Callable[[], None]
    refuse: Refuse


class Caps:
    """The caps of one shard; `peers` and `links` exist on a server with several shards."""

    def __init__(
        self, state: ShardState, shard: int = 0, peers: Peers | None = None, links: LinkPool | None = None
    ) -> None:
        self._state = state
        self._shard = shard
        self._peers = peers
        self._links = links
        self._topics_max = state.settings.max_topics
        self._pending: dict[str, list[PendingCreation]] = {}
        self._pending_bytes = 0
        self.bytes_max = state.settings.max_total_bytes
        self.has_shared_topic_cap = bool(self._topics_max) and peers is not None and len(peers) > 1
        self.publish()

    def publish(self) -> None:
        """Publish this shard's numbers to the others."""
        if self._peers is not None:
            slot = self._peers.slot
            slot.topics = len(self._state.topics)
            slot.bytes_live = self._state.totals.live_bytes + self._pending_bytes

    # -- topics --------------------------------------------------------------------------------------------

    def create_topic(self, name: str, create: Callable[[], None], refuse: Refuse) -> None:
        """Call `create`, which creates the topic, once there is room for it; otherwise call `refuse`."""
        pending = self._pending.get(name)
        if pending is not None:
            pending.append(PendingCreation(create, refuse))
        elif name in self._state.topics or not self._is_near_cap():
            create()
        else:
            assert self._links is not None
            self._pending[name] = [PendingCreation(create, refuse)]
            on_answer = partial(self._on_answer, name)
            self._links.call(SUPERVISOR, LinkKind.RESERVE_TOPIC, _encode_shard(self._shard), on_answer)

    def _is_near_cap(self) -> bool:
        peers = self._peers
        if not self.has_shared_topic_cap or peers is None:
            return False
        count = len(self._state.topics) + peers.topics_elsewhere()
        return count + UNSEEN_TOPICS_MAX * (len(peers) - 1) >= self._topics_max

    def _on_answer(self, name: str, answer: bytes | None) -> None:
        for create, refuse in self._pending.pop(name):
            # The first one creates the topic for all.
            if answer == GRANTED or name in self._state.topics:
                create()
            else:
                refuse(self._refusal(answer))
        self.publish()
        if answer == GRANTED and self._peers is not None:
            self._peers.slot.topic_grants_total += 1

    def _refusal(self, answer: bytes | None) -> Refusal:
        if answer == FULL:
            bound = self._topics_max
            detail: dict[str, object] = {"limit": "max_topics", "max": bound}
            return Refusal(
                THROTTLED,
                f"there are {bound} topics, the most that TOPICS_MAX_TOPICS allows",
                detail,
                RETRY_AFTER_MS,
            )
        cause = "a shard is not ready" if answer else "the supervisor does not answer"
        message = f"cannot check max_topics: {cause}, retry after 1 s"
        return Refusal(NOT_READY, message, retry_after_ms=RETRY_AFTER_MS)

    # -- bytes ---------------------------------------------------------------------------------------------

    def begin_bytes(self, name: str, request: AppendRequest, size: int) -> Refusal | None:
        """Admit an append of `size` bytes or refuse it; call `end_bytes` after an admitted one."""
        own = self._state.totals.live_bytes + self._pending_bytes
        total = own if self._peers is None else own + self._peers.bytes_elsewhere()
        if total >= self.bytes_max and not self._is_known(name, request):
            detail: dict[str, object] = {"limit": "max_total_bytes", "max": self.bytes_max}
            message = f"all topics hold {size_text(total)}; TOPICS_MAX_TOTAL_BYTES is {self.bytes_max}"
            return Refusal(THROTTLED, message, detail, RETRY_AFTER_MS)
        self._pending_bytes += size
        self.publish()
        return None

    def end_bytes(self, size: int) -> None:
        self._pending_bytes -= size
        self.publish()

    def _is_known(self, name: str, request: AppendRequest) -> bool:
        """Return whether the append is a duplicate, of a write applied or in progress."""
        topic = self._state.topics.get(name)
        if topic is not None and request.producer is not None:
            return is_known_write(topic, request.producer)
        key = None if topic is None else key_of(topic, request)
        if topic is None or not isinstance(key, IdempotencyKey):
            return False
        now_ms = self._state.clock.now_ms()
        return (
            key.digest in self._state.pending_keys
            or self._state.idempotency_keys.find(key.digest, topic.windows_ms, now_ms) is not None
        )
