"""A stream of jobs: a bounded number is leased to one connection, and returned when it ends.

J1  A stream may lose a job that it holds: a job that was acked, returned, or whose lease expired makes
    room for another one. It is not returned when the stream ends, as another worker may have it by then.
J2  While the client does not read, no job is claimed for it.
J3  The stream is called like a reader of the topic, when records are appended or jobs end, and when leases
    expire (`queue/timers.py`). It claims in its turn by the priority of the topic, like a delivery.
J4  While the connection lives its leases are extended: every half of `lease_ms`, those that have less than
    three quarters of it left. So a lease never expires, and with `leases_durable` the log gets at most two
    frames for each `lease_ms`, however many jobs the stream holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shared.contract.errors import RETRY_AFTER_MS, TOPIC_NOT_FOUND, UNAUTHORIZED, Refusal
from shared.runtime.disk_thread import Loop
from topicsd.engine.queue.claim import claim, lease_ms_of
from topicsd.engine.queue.job import IN_FLIGHT
from topicsd.engine.queue.settle import extend, nack
from topicsd.engine.requests import ClaimAnswer, ClaimRequest, SettleRequest
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.wakeups.wake_queue import Waiters
from topicsd.stream import sse_frames
from topicsd.stream.event_stream import KEY_REVOKED, SHUTTING_DOWN, EventStream
from topicsd.stream.stream import Stream

HEARTBEAT_MS: Final = 15_000
# Shares of `lease_ms`: when leases are extended, which leases are, and when to retry after a refusal.
EXTEND_AT: Final = 0.5
EXTEND_BELOW: Final = 0.75
RETRY_AT: Final = 0.125


class WorkStreams:
    """The job streams of one shard. `on_count_change` is called with +1 or -1."""

    def __init__(self, shard: ShardState, loop: Loop, on_count_change: Callable[[int], None]) -> None:
        self.shard = shard
        self.loop = loop
        self.lagging_count = 0
        self._on_count_change = on_count_change
        self._streams: set[WorkStream] = set()

    def open(
        self,
        topic: Topic,
        request: ClaimRequest,
        stream: Stream,
        on_end: Callable[[], None],
        key_id: str = "",
    ) -> None:
        work_stream = WorkStream(self, topic, request, stream, on_end, key_id)
        self._streams.add(work_stream)
        self._on_count_change(1)
        work_stream.begin()

    def remove(self, one: WorkStream) -> None:
        self._streams.discard(one)
        self._on_count_change(-1)

    def end_revoked(self, is_allowed: Callable[[str, str], bool]) -> None:
        """End the streams whose keys were revoked; `is_allowed` gets the key id and the queue name."""
        for one in list(self._streams):
            if not is_allowed(one.key_id, one.topic_name):
                one.end(UNAUTHORIZED, KEY_REVOKED)

    def drain(self) -> None:
        for one in list(self._streams):
            one.end(SHUTTING_DOWN, "the server is shutting down")


class WorkStream(EventStream):
    __slots__ = (
        "_extension",
        "_is_claiming",
        "_leases",
        "_on_end",
        "_request",
        "_shard",
        "_streams",
        "_topic",
        "key_id",
        "waiters",
    )

    def __init__(
        self,
        streams: WorkStreams,
        topic: Topic,
        request: ClaimRequest,
        stream: Stream,
        on_end: Callable[[], None],
        key_id: str,
    ) -> None:
        self.key_id = key_id
        self._shard = shard = streams.shard
        super().__init__(stream, streams.loop, shard.clock, HEARTBEAT_MS)
        self._streams = streams
        self._topic = topic
        self._request = request
        self._on_end = on_end
        self._leases: dict[int, int] = {}
        """The number of the lease, by seq."""
        self._extension: Any = None
        """The timer of the next extension (J4); None while the stream holds no job."""
        self._is_claiming = False
        self.waiters: Waiters | None = None
        """The stream itself, while it waits for its turn."""

    def base_priority(self, now_ms: int) -> float:
        return self._topic.base_priority(now_ms)

    @property
    def topic_name(self) -> str:
        return self._topic.name

    def begin(self) -> None:
        self._shard.queue_timers.enter(self._topic)
        self._write(sse_frames.OPENING)
        self._resume()

    def _resume(self) -> None:
        """Claim again in turn. Only this stream is called, since the cause is its own."""
        if not self._is_over:
            self._shard.wake_queue.add(self, self.resume)
            self._shard.wake_queue.wake(self)

    def resume(self) -> None:
        """Claim as many jobs as there is room for, and wait for the next change of the queue."""
        if self._is_over or self._is_claiming:
            return
        shard, topic = self._shard, self._topic
        if shard.visible_topic(topic.name) is not topic:
            self._end_without_topic()
            return
        if self._stream.is_paused:
            self._start_slow_timer()
            return
        shard.wake_queue.add(topic, self.resume)
        assert topic.queue is not None
        has_ready_jobs = topic.queue.counts().ready > 0
        room = self._request.count - len(self._live_leases()) if has_ready_jobs else 0
        if room > 0:
            self._is_claiming = True
            request = ClaimRequest(self._request.node, room, self._request.lease_ms)
            claim(shard, topic.name, request, self._on_claim)
        else:
            # The timer also calls for a job that was appended with a delay.
            shard.queue_timers.refresh(topic)

    def _live_leases(self) -> dict[int, int]:
        queue = self._topic.queue
        assert queue is not None
        leases: dict[int, int] = {}
        for seq, lease in self._leases.items():
            job = queue.known_jobs.get(seq)
            if job is not None and job.lease == lease and job.state == IN_FLIGHT:
                leases[seq] = lease
        self._leases = leases
        return leases

    def _on_claim(self, answer: ClaimAnswer | Refusal) -> None:
        self._is_claiming = False
        if isinstance(answer, Refusal):
            if answer.code == TOPIC_NOT_FOUND and not self._is_over:
                self._end_without_topic()
            elif not self._is_over:
                self._loop.call_later(RETRY_AFTER_MS / 1000, self._resume)
            return
        for one in answer.claimed:
            self._leases[one.seq] = one.lease
        if self._is_over:
            self._release()
            return
        if answer.claimed and self._extension is None:
            self._schedule_extension(EXTEND_AT)
        name = self._topic.name.encode()
        for seq, job in answer.jobs.items():
            event = sse_frames.event(b"job", b'{"topic":"%b",%b' % (name, job[1:]))
            self._write(b"id: %d\n%b" % (seq, event))
        if answer.claimed:
            # An answer is bounded in bytes, so there may be more jobs; jobs that end meanwhile have called
            # already.
            self._resume()

    # -- keeping the leases --------------------------------------------------------------------------------

    def _schedule_extension(self, share: float) -> None:
        """Extend the leases after this share of `lease_ms`."""
        seconds = share * lease_ms_of(self._topic, self._request) / 1000
        self._extension = self._loop.call_later(seconds, self._extend)

    def _extend(self) -> None:
        self._extension = None
        leases, queue, topic = self._live_leases(), self._topic.queue, self._topic
        if not leases or queue is None or self._shard.visible_topic(topic.name) is not topic:
            return
        lease_ms = lease_ms_of(topic, self._request)
        until = self._shard.clock.now_ms() + lease_ms * EXTEND_BELOW
        due = {seq: lease for seq, lease in leases.items() if queue.known_jobs[seq].deadline < until}
        if due:
            request = SettleRequest(self._request.node, [*due], [*due.values()], lease_ms)
            extend(self._shard, topic.name, request, self._on_extension)
        else:
            self._schedule_extension(EXTEND_AT)

    def _on_extension(self, answer: object) -> None:
        if not self._is_over and self._extension is None:
            self._schedule_extension(RETRY_AT if isinstance(answer, Refusal) else EXTEND_AT)

    # -- the end -------------------------------------------------------------------------------------------

    def _end_without_topic(self) -> None:
        """End the stream of a topic that was deleted, or that left the shard: then the client reconnects."""
        if self._shard.departure_of(self._topic.name) is None:
            self._write_event(sse_frames.topic_deleted(self._topic.name, self._topic.head))
        self._close()

    def _on_lagging(self, is_lagging: bool) -> None:
        self._streams.lagging_count += 1 if is_lagging else -1

    def _clean_up(self) -> None:
        self._shard.wake_queue.remove(self, self.resume)
        self._shard.wake_queue.remove(self._topic, self.resume)
        self._shard.queue_timers.leave(self._topic)
        if self._extension is not None:
            self._extension.cancel()
        self._release()
        self._streams.remove(self)
        self._on_end()

    def _release(self) -> None:
        leases = self._live_leases()
        self._leases = {}
        if leases and self._shard.visible_topic(self._topic.name) is self._topic:
            request = SettleRequest(self._request.node, [*leases], [*leases.values()])
            nack(self._shard, self._topic.name, request, _ignore)


def _ignore(answer: object) -> None:
    """Ignore the result: after a refusal, the leases expire."""
