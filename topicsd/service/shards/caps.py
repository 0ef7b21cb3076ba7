"""What may still be made, counted over all shards: a new topic, more bytes.

C1  `max_topics` is exact. Near it, a topic is reserved at the front process before it is made, and made in
    the turn in which the answer comes; far from it nobody is asked, and this shard's own count is the
    engine's to check. Far is: were every shard to make `UNSEEN_TOPICS_MAX` between two beats, there would
    be room.
C2  `max_total_bytes` may be passed by one request a shard: each sees what the others published last, and of
    its own shard also what is on its way.
C3  What is asked for a topic that exists waits for nobody, and a write that was done before is answered, as
    its key says, whatever the caps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import NOT_READY, THROTTLED, Refusal
from shared.ipc.link import FRONT, LinkKind, LinkPool
from shared.text.message import size_text
from topicsd.engine.requests import AppendRequest
from topicsd.engine.state import ShardState
from topicsd.engine.write.keyed_write import Key, key_of
from topicsd.engine.write.producer_write import is_produced
from topicsd.service.shards.peers import Peers

# Creations are synced; a shard makes a tenth of it between two beats.
UNSEEN_TOPICS_MAX: Final = 10_000
RETRY_AFTER_MS: Final = 1000

_encode_shard = msgspec.msgpack.Encoder().encode
GRANTED: Final = _encode_shard(True)
FULL: Final = _encode_shard(False)


class Waiting(NamedTuple):
    make: Callable[[], None]
    refuse: Callable[[Refusal], None]


class Caps:
    """`peers` and `links` are those of a server of several shards."""

    def __init__(
        self, state: ShardState, shard: int = 0, peers: Peers | None = None, links: LinkPool | None = None
    ) -> None:
        self._state = state
        self._shard = shard
        self._peers = peers
        self._links = links
        self._topics_max = state.settings.max_topics
        self._asking: dict[str, list[Waiting]] = {}
        self._bytes_on_their_way = 0
        self.bytes_max = state.settings.max_total_bytes
        self.counts_topics = bool(self._topics_max) and peers is not None and len(peers) > 1
        self.publish()

    def publish(self) -> None:
        """Tell the others how much there is here."""
        if self._peers is not None:
            slot = self._peers.slot
            slot.topics = len(self._state.topics)
            slot.bytes_live = self._state.totals.live_bytes + self._bytes_on_their_way

    # -- topics --------------------------------------------------------------------------------------------

    def with_topic(self, name: str, make: Callable[[], None], refuse: Callable[[Refusal], None]) -> None:
        """Call `make`, which makes the topic, now or when there is room for it; else `refuse`."""
        waiting = self._asking.get(name)
        if waiting is not None:
            waiting.append(Waiting(make, refuse))
        elif name in self._state.topics or not self._is_near():
            make()
        else:
            assert self._links is not None
            self._asking[name] = [Waiting(make, refuse)]
            told = partial(self._told, name)
            self._links.call(FRONT, LinkKind.RESERVE_TOPIC, _encode_shard(self._shard), told)

    def _is_near(self) -> bool:
        peers = self._peers
        if not self.counts_topics or peers is None:
            return False
        count = len(self._state.topics) + peers.topics_elsewhere()
        return count + UNSEEN_TOPICS_MAX * (len(peers) - 1) >= self._topics_max

    def _told(self, name: str, answer: bytes | None) -> None:
        for make, refuse in self._asking.pop(name):
            # The first of them makes it, for all.
            if answer == GRANTED or name in self._state.topics:
                make()
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
        told = "a shard is not ready" if answer else "the front process does not answer"
        message = f"topics cannot be counted now: {told}; retry after 1 s"
        return Refusal(NOT_READY, message, retry_after_ms=RETRY_AFTER_MS)

    # -- bytes ---------------------------------------------------------------------------------------------

    def begin_bytes(self, name: str, request: AppendRequest, size: int) -> Refusal | None:
        """An append that may add so many; each that is not refused is ended."""
        here = self._state.totals.live_bytes + self._bytes_on_their_way
        total = here if self._peers is None else here + self._peers.bytes_elsewhere()
        if total >= self.bytes_max and not self._is_known(name, request):
            detail: dict[str, object] = {"limit": "max_total_bytes", "max": self.bytes_max}
            message = f"all topics hold {size_text(total)}, TOPICS_MAX_TOTAL_BYTES is {self.bytes_max}"
            return Refusal(THROTTLED, message, detail, RETRY_AFTER_MS)
        self._bytes_on_their_way += size
        self.publish()
        return None

    def end_bytes(self, size: int) -> None:
        self._bytes_on_their_way -= size
        self.publish()

    def _is_known(self, name: str, request: AppendRequest) -> bool:
        """Whether it adds nothing: it was done before, or is on its way."""
        topic = self._state.topics.get(name)
        if topic is not None and request.producer is not None:
            return is_produced(topic, request.producer)
        key = None if topic is None else key_of(topic, request)
        if topic is None or not isinstance(key, Key):
            return False
        now_ms = self._state.clock.now_ms()
        return (
            key.digest in self._state.keyed
            or self._state.dedupe.find(key.digest, topic.windows_ms, now_ms) is not None
        )
