"""A stream of jobs: up to so many are leased to one connection, and given back at once when it ends.

J1  What the stream holds it may lose: a job that is acked, given back or ran out makes room for another one,
    and is not given back when the stream ends, as somebody else may have it by then.
J2  While the client does not read, nothing is claimed for it; after 30 s the stream ends.
J3  It waits like a reader of the topic, and is called when records come, jobs end or leases run out; for the
    last all streams of a shard share one timer.

Must not know: HTTP, how a job is leased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.errors import TOPIC_NOT_FOUND, Refusal
from topicsd.engine.queue_claim import claim
from topicsd.engine.queue_settle import nack
from topicsd.engine.requests import ClaimAnswer, ClaimRequest, SettleRequest
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.leases.lease_queue import IN_FLIGHT
from topicsd.live import sse_frames
from topicsd.live.sse_stream import CLOGGED_SECONDS_MAX, RETRY_AFTER_MS, SHUTTING_DOWN, TOO_SLOW
from topicsd.live.stream import Stream
from topicsd.wal.sync_thread import Loop

HEARTBEAT_SECONDS: Final = 15.0
# How late a stream may see that a lease ran out or a delay is over.
LOOK_SECONDS: Final = 0.05


class WorkStreams:
    def __init__(self, shard: ShardState, loop: Loop) -> None:
        self._shard = shard
        self._loop = loop
        self._streams: set[WorkStream] = set()
        self._looks = False

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, topic: Topic, request: ClaimRequest, stream: Stream, on_end: Callable[[], None]) -> None:
        def ended(one: WorkStream) -> None:
            self._streams.discard(one)
            on_end()

        opened = WorkStream(self._shard, self._loop, topic, request, stream, ended)
        self._streams.add(opened)
        if not self._looks:
            self._looks = True
            self._loop.call_later(LOOK_SECONDS, self._look)
        opened.go_on()

    def _look(self) -> None:
        """Call those for whom a job came back, and end those whose client does not read."""
        now, now_ms = self._shard.clock.monotonic(), self._shard.clock.now_ms()
        for topic in {one.topic for one in self._streams}:
            assert topic.queue is not None
            due = topic.queue.next_due()
            if due is not None and due <= now_ms and topic.waiters is not None:
                self._shard.watch.wake(topic)
        for one in list(self._streams):
            one.look(now, now_ms)
        self._looks = bool(self._streams)
        if self._looks:
            self._loop.call_later(LOOK_SECONDS, self._look)

    def drain(self) -> None:
        for one in list(self._streams):
            one.end(SHUTTING_DOWN, "the server is shutting down")


class WorkStream:
    def __init__(
        self,
        shard: ShardState,
        loop: Loop,
        topic: Topic,
        request: ClaimRequest,
        stream: Stream,
        on_end: Callable[[WorkStream], None],
    ) -> None:
        self.topic = topic
        self._shard = shard
        self._loop = loop
        self._request = request
        self._stream = stream
        self._on_end = on_end
        self._held: dict[int, int] = {}
        """The number of the lease, by seq."""
        self._is_over = False
        self._is_asking = False
        self._clogged_since = -1.0
        self._spoke_at = shard.clock.monotonic()
        stream.on_ready = self._ready
        stream.on_lost = self._end
        stream.write(sse_frames.OPENING)

    def go_on(self) -> None:
        """Claim what there is room for; whoever calls later finds it waiting."""
        if self._is_over or self._is_asking:
            return
        shard, topic = self._shard, self.topic
        if shard.visible_topic(topic.name) is not topic:
            self._deleted()
            return
        if self._stream.is_clogged:
            return
        shard.watch.add(topic, self.go_on)
        room = self._request.count - len(self._still_held())
        if room > 0:
            self._is_asking = True
            asked = ClaimRequest(self._request.node, room, self._request.lease_ms)
            claim(shard, topic.name, asked, self._came)

    def _still_held(self) -> dict[int, int]:
        queue = self.topic.queue
        assert queue is not None
        held: dict[int, int] = {}
        for seq, lease in self._held.items():
            job = queue.jobs.get(seq)
            if job is not None and job.lease == lease and job.state == IN_FLIGHT:
                held[seq] = lease
        self._held = held
        return held

    def _came(self, answer: ClaimAnswer | Refusal) -> None:
        self._is_asking = False
        if isinstance(answer, Refusal):
            if answer.code == TOPIC_NOT_FOUND and not self._is_over:
                self._deleted()
            elif not self._is_over:
                self._loop.call_later(RETRY_AFTER_MS / 1000, self.go_on)
            return
        for one in answer.claimed:
            self._held[one.seq] = one.lease
        if self._is_over:
            self._release()
            return
        name = self.topic.name.encode()
        for seq, job in answer.jobs.items():
            self._write(
                b"id: %d\n%b" % (seq, sse_frames.event(b"job", b'{"topic":"%b",%b' % (name, job[1:])))
            )
        if answer.claimed:
            # An answer is bounded in bytes, so there may be more; what ends meanwhile has called already.
            self._loop.call_soon(self.go_on)

    # -- writing -------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        self._spoke_at = self._shard.clock.monotonic()
        self._stream.write(data)

    def _ready(self) -> None:
        self._clogged_since = -1.0
        self.go_on()

    def look(self, now: float, now_ms: int) -> None:
        """Called now and then."""
        if not self._stream.is_clogged:
            self._clogged_since = -1.0
            if now - self._spoke_at >= HEARTBEAT_SECONDS:
                self._write(sse_frames.heartbeat(now_ms))
        elif self._clogged_since < 0:
            self._clogged_since = now
        elif now - self._clogged_since > CLOGGED_SECONDS_MAX:
            self.end(TOO_SLOW, f"nothing was read for {CLOGGED_SECONDS_MAX:.0f} s")

    # -- the end -------------------------------------------------------------------------------------------

    def _deleted(self) -> None:
        self._stream.write(sse_frames.topic_deleted(self.topic.name, self.topic.head))
        self._stream.close()
        self._end()

    def end(self, code: str, message: str) -> None:
        """End it with a word why."""
        if not self._is_over:
            self._stream.write(sse_frames.error(code, message, None, RETRY_AFTER_MS))
            self._stream.close()
            self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._shard.watch.remove(self.topic, self.go_on)
        self._release()
        self._on_end(self)

    def _release(self) -> None:
        held = self._still_held()
        self._held = {}
        if held and self._shard.visible_topic(self.topic.name) is self.topic:
            request = SettleRequest(self._request.node, [*held], [*held.values()])
            nack(self._shard, self.topic.name, request, _released)


def _released(answer: object) -> None:
    """Where it could not be, the leases run out."""
