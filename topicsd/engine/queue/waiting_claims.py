"""Claims with `wait_ms`: one that gets no job waits in the line of its queue until there is one.

C1  Claims of one line are served in the order of their arrival, at most as many at a time as jobs are ready.
    One that still gets no job keeps its place.
C2  A line is called like a reader of the topic, in the priority of the topic: when records are appended or
    deleted, jobs end, leases or delays end, and the configuration changes. It does not poll.
C3  A wait ends with its time, with the client, with the shard, and when the queue is paused: the answer has
    no jobs. A claim of a queue that is paused already waits like a claim of an empty one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec

from shared.contract.errors import Refusal
from topicsd.engine.pending import call_reply
from topicsd.engine.queue.claim import claim, drain_claims
from topicsd.engine.requests import ClaimAnswer, ClaimRequest, Reply
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.wakeups.wake_queue import Waiters

WAIT_MS_MAX: Final = 30_000
# The most claims of one line that one call serves.
SERVED_AT_ONCE: Final = 100


def claim_with_wait(
    shard: ShardState, name: str, request: ClaimRequest, reply: Reply[ClaimAnswer]
) -> Callable[[], None]:
    """Lease jobs as `claim` does, and wait for some while none is ready.

    The returned function ends the wait: the claim is answered without jobs.
    """
    waiting = WaitingClaim(shard, name, request, reply)
    topic = shard.visible_topic(name)
    line = None if topic is None else shard.claim_lines.get(topic)
    if line is None:
        waiting.attempt()
    else:
        line.join(waiting)
    return waiting.end


def end_waits(shard: ShardState) -> None:
    """Serve all claims at once or answer them without jobs, since the shard is about to end."""
    drain_claims(shard)
    for line in [*shard.claim_lines.values()]:
        line.end_all()


class WaitingClaim:
    """One claim that may wait."""

    __slots__ = ("_leave_group", "_line", "_name", "_reply", "_request", "_shard", "_timer", "is_claiming")

    def __init__(
        self, shard: ShardState, name: str, request: ClaimRequest, reply: Reply[ClaimAnswer]
    ) -> None:
        self._shard = shard
        self._name = name
        self._request = request
        self._reply: Reply[ClaimAnswer] | None = reply
        """None once the claim is answered."""
        self._line: ClaimLine | None = None
        self._leave_group: Callable[[], None] | None = None
        self.is_claiming = False
        """Whether an attempt has no answer yet."""
        seconds = min(request.wait_ms, WAIT_MS_MAX) / 1000
        self._timer: Any = shard.loop.call_later(seconds, self.end)

    def attempt(self) -> None:
        """Claim once; without a job the claim waits in the line of the topic."""
        self.is_claiming = True
        leave_group = claim(self._shard, self._name, self._request, self._on_claim)
        if self.is_claiming:
            self._leave_group = leave_group

    def _on_claim(self, answer: ClaimAnswer | Refusal) -> None:
        self.is_claiming = False
        self._leave_group = None
        shard = self._shard
        topic = shard.visible_topic(self._name)
        if (
            isinstance(answer, Refusal)
            or answer.claimed
            or self._timer is None
            or shard.is_draining
            or topic is None
        ):
            self._finish(answer)
        elif self._line is None:
            line = shard.claim_lines.get(topic)
            if line is None:
                line = shard.claim_lines[topic] = ClaimLine(shard, topic)
            line.join(self)

    def wait_in(self, line: ClaimLine | None) -> None:
        self._line = line

    def end(self) -> None:
        """Answer without jobs, or with those that an attempt is about to get."""
        if self._reply is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leave_group is not None:
            self._leave_group()
        elif not self.is_claiming:
            assert self._line is not None, "a claim either makes an attempt or is in a line"
            self._finish(ClaimAnswer(self._name, {}, [], self._line.ready_count))

    def _finish(self, answer: ClaimAnswer | Refusal) -> None:
        has_waited = self._line is not None
        if self._line is not None:
            self._line.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reply, self._reply = self._reply, None
        assert reply is not None, "a claim is answered once"
        if has_waited and isinstance(answer, ClaimAnswer):
            answer = msgspec.structs.replace(answer, has_waited=True)
        call_reply(reply, answer)


class ClaimLine:
    """The waiting claims of one queue, in the order of their arrival."""

    __slots__ = ("_claims", "_is_paused", "_shard", "_topic", "waiters")

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        self._shard = shard
        self._topic = topic
        self._claims: OrderedDict[WaitingClaim, None] = OrderedDict()
        """An OrderedDict, since claims leave from the front."""
        self._is_paused = topic.config.paused
        self.waiters: Waiters | None = None
        """The line itself, while it waits for another turn."""
        shard.queue_timers.enter(topic)
        shard.wake_queue.add(topic, self._serve)

    def base_priority(self, now_ms: int) -> float:
        return self._topic.base_priority(now_ms)

    @property
    def count(self) -> int:
        return len(self._claims)

    @property
    def ready_count(self) -> int:
        queue = self._topic.queue
        assert queue is not None
        return queue.counts().ready

    def join(self, one: WaitingClaim) -> None:
        """Add a claim at the end, and serve the line if jobs are ready."""
        self._claims[one] = None
        one.wait_in(self)
        if len(self._claims) > 1 and self.ready_count:
            self._serve_soon()

    def leave(self, one: WaitingClaim) -> None:
        self._claims.pop(one)
        one.wait_in(None)
        if not self._claims:
            shard, topic = self._shard, self._topic
            del shard.claim_lines[topic]
            shard.wake_queue.remove(self, self._serve)
            shard.wake_queue.remove(topic, self._serve)
            shard.queue_timers.leave(topic)

    def end_all(self) -> None:
        for one in [*self._claims]:
            one.end()

    def _serve_soon(self) -> None:
        self._shard.wake_queue.add(self, self._serve)
        self._shard.wake_queue.wake(self)

    def _serve(self) -> None:
        """Let the first claims make an attempt, and wait for the next change of the queue."""
        shard, topic = self._shard, self._topic
        if not self._claims:
            return
        if shard.visible_topic(topic.name) is not topic:
            self._disband()
            return
        shard.wake_queue.add(topic, self._serve)
        was_paused, self._is_paused = self._is_paused, topic.config.paused
        if self._is_paused:
            if not was_paused:
                self.end_all()
            return
        count = min(self.ready_count, SERVED_AT_ONCE)
        waiting = (one for one in self._claims if not one.is_claiming)
        first_ones = [*islice(waiting, count)]
        for one in first_ones:
            one.attempt()
            if one in self._claims and not one.is_claiming:
                # There is no job left for those after it either.
                break
        else:
            if len(first_ones) == SERVED_AT_ONCE and self._claims:
                self._serve_soon()
        # The timer also calls for a job that was appended with a delay.
        shard.queue_timers.refresh(topic)

    def _disband(self) -> None:
        """Let all claims try again: the topic was deleted, or left the shard."""
        claims = [one for one in self._claims if not one.is_claiming]
        for one in claims:
            self.leave(one)
        for one in claims:
            one.attempt()
