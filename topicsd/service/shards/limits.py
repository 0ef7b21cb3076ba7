"""Limits over all shards, as one worker applies them.

The supervisor grants what must be exact (`shared/ipc/exact_counts.py`); the only worker of a server counts by
itself. What may be exceeded a little is summed up from the board, which costs no messages.

C1  `max_topics` is exact. Near the cap, the worker reserves a topic at the supervisor before it creates the
    topic, and creates it in the turn in which the answer arrives. Far from the cap there is no request, and
    the engine checks this shard's own count. "Far" means that the cap holds even if every shard creates
    `UNSEEN_TOPICS_MAX` topics between two heartbeats.
C2  `max_total_bytes` may be exceeded by one request per shard: each shard sees the numbers that the others
    published last, and its own including requests in flight.
C3  Requests for an existing topic do not wait, and a repeated write with a known idempotency key or producer
    number is answered whatever the caps.
C4  `max_sse_connections` and `max_sse_connections_per_key` are exact: a stream has a permit before it opens.
    The supervisor forgets the streams of a worker that died.
C5  `max_inflight_per_key` may be exceeded by as many requests as there are other workers. A request counts at
    the worker of its connection. Each worker keeps its counts on the board, where it is the only writer, and
    adds up those of all workers.
C6  `max_watch_sessions` is exact: the supervisor reserves a session before it sends it to its home shard
    (`service/watch/create.py`).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.api_keys import KEY_PLACES, ApiKey
from shared.contract.errors import Refusal, cannot_check, limit_reached, shutting_down
from shared.ipc.exact_counts import StreamCount
from shared.ipc.link import SUPERVISOR, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.runtime.unexpected_error import refuse_unexpected_error
from shared.settings.settings import Settings
from shared.text.message import size_text
from topicsd.engine.pending import Refuse
from topicsd.engine.requests import AppendAnswer, AppendRequest, Reply
from topicsd.engine.state import ShardState
from topicsd.engine.write.append import append
from topicsd.engine.write.keyed_write import IdempotencyKey, key_of
from topicsd.engine.write.producer_write import is_known_write
from topicsd.service.call import Call
from topicsd.service.shards.peers import Peers

logger = logging.getLogger("topicsd.http")

# Creations are synced, so a shard creates about a tenth of this between two heartbeats.
UNSEEN_TOPICS_MAX: Final = 10_000
# Approximate bytes of a record in the log besides its data.
FRAME_BYTES: Final = 64
_HERE: Final = 0

_encode = msgspec.msgpack.Encoder().encode
_decode_limit = msgspec.msgpack.Decoder(str).decode
GRANTED: Final = _encode(True)
FULL: Final = _encode(False)


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
        self.publish()

    @property
    def has_shared_topic_cap(self) -> bool:
        return bool(self._topics_max) and self._peers is not None and len(self._peers) > 1

    def publish(self) -> None:
        """Publish this shard's numbers to the others."""
        if self._peers is not None:
            slot = self._peers.slot
            slot.topics = self._state.topic_count
            slot.bytes_live = self._state.totals.live_bytes + self._pending_bytes

    def append(self, name: str, request: AppendRequest, body_bytes: int, reply: Reply[AppendAnswer]) -> None:
        """Append to a topic of this shard within the caps; `reply` gets `AppendAnswer` or a `Refusal`."""
        state = self._state
        counts_topic = self.has_shared_topic_cap and name not in state.topics and request.create is not False
        if counts_topic or self.bytes_max:
            self._append_capped(name, request, body_bytes, reply, counts_topic)
        else:
            append(state, name, request, reply)

    def _append_capped(
        self,
        name: str,
        request: AppendRequest,
        body_bytes: int,
        reply: Reply[AppendAnswer],
        counts_topic: bool,
    ) -> None:
        if self.bytes_max:
            size = body_bytes + FRAME_BYTES * len(request.records)
            refusal = self._begin_bytes(name, request, size)
            if refusal is not None:
                reply(refusal)
                return
            reply = partial(self._end_bytes, size, reply)
        if counts_topic:
            self.create_topic(name, partial(append, self._state, name, request, reply), reply)
        else:
            append(self._state, name, request, reply)

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
            self._links.call(SUPERVISOR, LinkKind.RESERVE_TOPIC, _encode(self._shard), on_answer)

    def _is_near_cap(self) -> bool:
        peers = self._peers
        if not self.has_shared_topic_cap or peers is None:
            return False
        count = self._state.topic_count + peers.topics_elsewhere()
        return count + UNSEEN_TOPICS_MAX * (len(peers) - 1) >= self._topics_max

    def _on_answer(self, name: str, answer: bytes | None) -> None:
        for create, refuse in self._pending.pop(name):
            # The first one creates the topic for all.
            if answer == GRANTED or name in self._state.topics:
                try:
                    create()
                except Exception as error:
                    refuse(refuse_unexpected_error(logger, "the creation of a topic", error))
            else:
                refuse(self._refusal(answer))
        self.publish()
        if answer == GRANTED and self._peers is not None:
            self._peers.slot.topic_grants_total += 1

    def _refusal(self, answer: bytes | None) -> Refusal:
        if answer == FULL:
            bound = self._topics_max
            return limit_reached("max_topics", bound, "no more topics can be created")
        cause = "a shard is not ready" if answer else "the supervisor does not answer"
        return cannot_check("max_topics", cause)

    # -- bytes ---------------------------------------------------------------------------------------------

    def _begin_bytes(self, name: str, request: AppendRequest, size: int) -> Refusal | None:
        """Admit an append of `size` bytes or refuse it; `_end_bytes` is the reply of an admitted one."""
        own = self._state.totals.live_bytes + self._pending_bytes
        total = own if self._peers is None else own + self._peers.bytes_elsewhere()
        if total >= self.bytes_max and not self._is_known(name, request):
            return limit_reached("max_total_bytes", self.bytes_max, f"all topics hold {size_text(total)}")
        self._pending_bytes += size
        self.publish()
        return None

    def _end_bytes(self, size: int, reply: Reply[AppendAnswer], answer: AppendAnswer | Refusal) -> None:
        self._pending_bytes -= size
        self.publish()
        reply(answer)

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


class StreamPermits:
    """The permits of one worker; `peers` and `links` exist on a server with a supervisor."""

    def __init__(self, settings: Settings, links: LinkPool, peers: Peers | None = None) -> None:
        self._count = StreamCount(settings.max_sse_connections, settings.max_sse_connections_per_key)
        self._links = links
        self._pid = 0 if peers is None else peers.slot.pid

    def enter(self, key_id: str, call: Call, reply: Callable[[Refusal | None], object]) -> None:
        """Request a permit for a call; `reply` receives None if granted, and then `leave` must follow.

        A call whose wait is cancelled is refused at once, and a permit that arrives later is returned.
        """
        if not self._pid:
            reply(self._refusal(self._count.enter(_HERE, key_id)))
            return

        def cancel() -> None:
            call.cancel_wait = None
            reply(shutting_down())

        def on_answer(answer: bytes | None) -> None:
            refusal = (
                self._refusal(_decode_limit(answer))
                if answer
                else cannot_check("max_sse_connections", "the supervisor does not answer")
            )
            if call.cancel_wait is cancel:
                call.cancel_wait = None
                reply(refusal)
            elif refusal is None:
                self.leave(key_id)

        call.cancel_wait = cancel
        self._links.call(SUPERVISOR, LinkKind.ENTER_STREAM, _encode([self._pid, key_id]), on_answer)

    def leave(self, key_id: str) -> None:
        if not self._pid:
            self._count.leave(_HERE, key_id)
        else:
            self._links.call(SUPERVISOR, LinkKind.LEAVE_STREAM, _encode([self._pid, key_id]), _ignore_answer)

    def _refusal(self, limit: str) -> Refusal | None:
        if not limit:
            return None
        bound = self._count.bounds[limit]
        return limit_reached(limit, bound, "no more streams can be opened")


class InFlight:
    def __init__(self, bound: int, own: memoryview | None = None, others: Sequence[memoryview] = ()) -> None:
        """Set the bound; 0 means unlimited.

        Counts are indexed by the place of a key. Without a board they are local to this process.
        """
        self.bound = bound
        self._own = memoryview(array("Q", [0]) * KEY_PLACES) if own is None else own
        self._others = others

    def enter(self, key: ApiKey) -> Callable[[], None] | Refusal:
        """Count one more request of the key; return the callback for its answer, or a refusal."""
        place = key.place
        count = self._own[place]
        for counts in self._others:
            count += counts[place]
        if count >= self.bound:
            usage = "this key cannot have more requests in flight"
            return limit_reached("max_inflight_per_key", self.bound, usage)
        self._own[place] += 1
        return partial(self._leave, place)

    def _leave(self, place: int) -> None:
        self._own[place] -= 1


def _ignore_answer(answer: bytes | None) -> None:
    """Ignore the answer: without the supervisor no count exists."""
