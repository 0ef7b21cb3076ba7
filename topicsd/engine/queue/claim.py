"""Claims: lease jobs to a worker, log that with `leases_durable`, and reply with the records.

The lease is decided in memory in one step, so two claims of one turn of the event loop never get the same
job. With `leases_durable` the reply waits until the frame is in the log, in the durability class of the
topic: the lease survives a restart. Jobs delivered too often are parked, and the frame of that is synced
before anything acts on it: a job that may be in the dead-letter topic is never claimed again.

A job whose record is in an object store that does not answer is returned, and that claim does not count as a
delivery: the job worker did not get it. It is delayed, so that claims reach the jobs after it meanwhile. When
a read took longer than the lease, jobs that another worker has claimed since are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    NOT_A_QUEUE,
    RETRY_AFTER_MS,
    Refusal,
    store_unavailable,
)
from shared.contract.topic_config import CLAMPED_FIELDS
from topicsd.engine.pending import PendingControl, Refuse, call_reply, ignore_refusal
from topicsd.engine.queue.job import DELAYED, READY, ClaimedJob, JobState
from topicsd.engine.queue.job_records import JobRecords, read_job_records
from topicsd.engine.queue.lease_queue import COLLECTED_MAX, LeaseQueue
from topicsd.engine.queue.order.fresh_jobs import serve_in_turn
from topicsd.engine.queue.state import apply_config_to_parked, lease_frame, lease_frames
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import ClaimAnswer, ClaimRequest, Reply
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.engine.wakeups.wake_queue import Waiters

FRAME_JOBS: Final = 1000
# The most jobs parked in one turn of the event loop.
PARKED_AT_ONCE: Final = 250


def queue_of(shard: ShardState, name: str) -> tuple[Topic, LeaseQueue] | Refusal:
    """Return the queue with this name, or a refusal if there is no such topic or it is a log."""
    topic = shard.visible_topic(name)
    if topic is None:
        return missing_topic(shard, name)
    if topic.queue is None:
        return Refusal(NOT_A_QUEUE, f'topic "{name}" is a log; only queues ("type":"queue") have jobs')
    return topic, topic.queue


def lease_ms_of(topic: Topic, request: ClaimRequest) -> int:
    """Return how long the jobs of a claim are leased."""
    low, high = CLAMPED_FIELDS["lease_ms"]
    lease_ms = request.lease_ms
    return topic.config.lease_ms if lease_ms is None else min(max(lease_ms, low), high)


class ClaimInTurn:
    """One claim and the jobs it got."""

    __slots__ = ("budget", "claimed", "count", "deadline", "lease_ms", "node", "reply")

    def __init__(
        self, shard: ShardState, topic: Topic, request: ClaimRequest, reply: Reply[ClaimAnswer]
    ) -> None:
        self.node = request.node
        self.count = min(request.count, shard.settings.max_claim)
        self.lease_ms = lease_ms_of(topic, request)
        self.reply = reply
        self.claimed: list[ClaimedJob] = []
        self.deadline = 0
        self.budget = _ResponseBudget(topic, shard.settings.max_response_bytes)


def claim(
    shard: ShardState, name: str, request: ClaimRequest, reply: Reply[ClaimAnswer]
) -> Callable[[], None] | None:
    """Lease up to `count` jobs; `reply` gets `ClaimAnswer` or a `Refusal`.

    With `claim_jitter_ms`, all claims that arrive within that time are served together. The returned function
    ends that wait for this claim: it receives an answer without jobs.
    """
    topic = shard.topics.get(name)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, partial(claim, shard, name, request, reply), reply)
        return None
    result = queue_of(shard, name)
    if isinstance(result, Refusal):
        reply(result)
        return None
    topic, _ = result
    member = ClaimInTurn(shard, topic, request, reply)
    jitter_ms = topic.config.claim_jitter_ms
    if not jitter_ms or shard.is_draining:
        _serve_after_removal(shard, topic, [member])
        return None
    group = shard.claim_groups.get(topic)
    if group is None:
        group = shard.claim_groups[topic] = ClaimGroup(shard, topic)
        shard.loop.call_later(jitter_ms / 1000, group.wake)
    group.claims.append(member)
    return partial(group.leave, member)


class ClaimGroup:
    """Claims that are served together, in the priority of their topic like reads."""

    __slots__ = ("_shard", "_topic", "claims", "waiters")

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        self._shard = shard
        self._topic = topic
        self.claims: list[ClaimInTurn] = []
        self.waiters: Waiters | None = None

    def base_priority(self, now_ms: int) -> float:
        return self._topic.base_priority(now_ms)

    def wake(self) -> None:
        self._shard.wake_queue.add(self, self.serve)
        self._shard.wake_queue.wake(self)

    def leave(self, member: ClaimInTurn) -> None:
        """Answer a claim without jobs, since its client may have disconnected."""
        if self._shard.claim_groups.get(self._topic) is self and member in self.claims:
            self.claims.remove(member)
            _send_answer(self._topic, {}, member)

    def serve(self) -> None:
        shard, topic = self._shard, self._topic
        if shard.claim_groups.get(topic) is not self:
            return
        del shard.claim_groups[topic]
        _serve_after_removal(shard, topic, self.claims)


def drain_claims(shard: ShardState) -> None:
    """Serve all waiting claims at once, since the shard is about to end."""
    shard.is_draining = True
    shard.removals.finish()
    for group in list(shard.claim_groups.values()):
        group.serve()


def _serve_after_removal(shard: ShardState, topic: Topic, group: list[ClaimInTurn]) -> None:
    """Serve the claims once the jobs of removed records have been removed."""
    shard.removals.after(topic, partial(_serve_if_visible, shard, topic, group))


def _serve_if_visible(shard: ShardState, topic: Topic, group: list[ClaimInTurn]) -> None:
    if (
        topic.queue is not None
        and shard.visible_topic(topic.name) is topic
        and topic.deferred_requests is None
    ):
        _serve(shard, topic, topic.queue, group)
        return

    def refuse(refusal: Refusal) -> None:
        for member in group:
            call_reply(member.reply, refusal)

    if topic.is_frozen:
        shard.defer(topic, partial(_serve_if_visible, shard, topic, group), refuse)
    else:
        refuse(missing_topic(shard, topic.name))


def _serve(shard: ShardState, topic: Topic, queue: LeaseQueue, group: list[ClaimInTurn]) -> None:
    refusal = shard.log.admit_control() if logs_leases(topic) else None
    if refusal is not None:
        for member in group:
            call_reply(member.reply, refusal)
        return
    now = shard.clock.now_ms()
    evict_expired(shard, topic, now)
    queue.collect(now, max(COLLECTED_MAX, sum(member.count for member in group)))
    topic.last_read_ms = now
    deliveries_max = topic.config.max_deliveries
    parked_before = len(queue.parked)
    parked_max = parked_before + PARKED_AT_ONCE

    def take(member: ClaimInTurn, count: int) -> bool:
        """Lease up to `count` more jobs to a claim; return whether it got some and may get more."""
        claimed = queue.claim(
            member.node,
            count,
            member.deadline,
            deliveries_max,
            shard.next_lease,
            member.budget.fits,
            parked_max,
        )
        shard.next_lease += len(claimed)
        member.claimed += claimed
        return bool(claimed) and len(member.claimed) < member.count

    for member in group:
        member.deadline = now + member.lease_ms
    if topic.config.paused:
        pass  # A paused queue answers as if it were empty.
    elif len(group) == 1:
        take(group[0], group[0].count)
    else:
        serve_in_turn(group, lambda member: take(member, 1))
    if shard.queue_timers.timers:
        shard.queue_timers.refresh(topic)
    if len(queue.parked) > parked_before:
        _log_parked(shard, topic, [*islice(reversed(queue.parked), len(queue.parked) - parked_before)][::-1])
    if len(queue.parked) >= parked_max:
        # The limit of parked jobs was reached: claims without a job try again, as there may be claimable jobs
        # after those still to be parked.
        unserved = [member for member in group if not member.claimed]
        group = [member for member in group if member.claimed]
        if unserved:
            shard.loop.call_soon(_serve_if_visible, shard, topic, unserved)
    for member in group:
        then = partial(_read_records, shard, topic, member)
        if not logs_leases(topic):
            then()
            continue
        before = [
            JobState(one.seq, READY, one.deliveries - 1, 0, 0, "", queue.known_jobs[one.seq].reason)
            for one in member.claimed
        ]
        log_lease(shard, topic, before, then, member.reply)


class _ResponseBudget:
    """The bytes left in one response. The first record always fits.

    Records of a sealed segment count with its average record size.
    """

    __slots__ = ("_end_seq", "_first_seq", "_is_empty", "_left", "_lengths", "_mean_bytes", "_topic")

    def __init__(self, topic: Topic, bytes_max: int) -> None:
        self._topic = topic
        self._left = bytes_max
        self._is_empty = True
        self._first_seq = self._end_seq = 0
        """With `_first_seq`: the seqs of the run that was looked up last."""
        self._lengths: Sequence[int] | None = None
        self._mean_bytes = 0

    def fits(self, seq: int) -> bool:
        if not self._first_seq <= seq < self._end_seq:
            self._look_up_run(seq)
        lengths = self._lengths
        self._left -= self._mean_bytes if lengths is None else lengths[seq - self._first_seq]
        is_first, self._is_empty = self._is_empty, False
        return is_first or self._left > 0

    def _look_up_run(self, seq: int) -> None:
        run = self._topic.run_of(seq)
        assert run is not None, "a job has a record"
        self._first_seq, self._end_seq = run.first_seq, run.next_seq
        self._lengths = None if isinstance(run, SealedRun) else run.lengths
        self._mean_bytes = run.mean_bytes if isinstance(run, SealedRun) else 0


def _read_records(shard: ShardState, topic: Topic, member: ClaimInTurn) -> None:
    if member.claimed:
        seqs = [one.seq for one in member.claimed]
        read_job_records(shard, topic, seqs, partial(_on_records, shard, topic, member))
    else:
        _send_answer(topic, {}, member)


def _on_records(shard: ShardState, topic: Topic, member: ClaimInTurn, texts: JobRecords) -> None:
    queue = topic.queue
    if queue is not None and shard.clock.now_ms() >= member.deadline:
        # The read took longer than the lease: other workers may have claimed some of the jobs since.
        member.claimed = [one for one in member.claimed if queue.is_held(one.seq, member.node, one.lease)]
    if texts.away:
        _return_undelivered(shard, topic, member, texts)
    else:
        _answer_records(topic, member, texts)


def _return_undelivered(shard: ShardState, topic: Topic, member: ClaimInTurn, texts: JobRecords) -> None:
    """Return the jobs whose records the store did not deliver, then answer with the others."""
    queue = topic.queue
    is_refused = logs_leases(topic) and shard.log.admit_control() is not None
    if queue is None or is_refused or not shard.is_live(topic) or topic.deferred_requests is not None:
        # The leases expire.
        _answer_records(topic, member, texts)
        return
    # A lease may have expired during the read, and the job may have another holder.
    undelivered = [
        one
        for one in member.claimed
        if one.seq in texts.away and queue.is_held(one.seq, member.node, one.lease)
    ]
    before = [queue.job_state(one.seq) for one in undelivered]
    due = shard.clock.now_ms() + RETRY_AFTER_MS
    for state in before:
        queue.restore(JobState(state.seq, DELAYED, state.deliveries - 1, 0, due, "", state.reason))
    member.claimed = [one for one in member.claimed if one.seq not in texts.away]
    if shard.queue_timers.timers:
        shard.queue_timers.refresh(topic)
    log_lease(shard, topic, before, partial(_answer_records, topic, member, texts), member.reply)


def _answer_records(topic: Topic, member: ClaimInTurn, texts: JobRecords) -> None:
    by_seq = texts.by_seq
    if texts.away and not by_seq:
        call_reply(member.reply, store_unavailable(next(iter(texts.away.values()))))
        return
    if texts.damaged and not by_seq:
        seq, what = next(iter(texts.damaged.items()))
        message = f'seq {seq} of topic "{topic.name}" is damaged, claim again for other jobs: {what}'
        detail: dict[str, object] = {"first_seq": seq, "last_seq": max(texts.damaged), "next_from_seq": seq}
        call_reply(member.reply, Refusal(CORRUPT_SEGMENT, message, detail))
        return
    jobs = {
        one.seq: b'{"lease_id":"lease_%x","deadline":%d,"deliveries":%d,%b'
        % (one.lease, member.deadline, one.deliveries, by_seq[one.seq][1:])
        for one in member.claimed
        if one.seq in by_seq
    }
    _send_answer(topic, jobs, member)


def _send_answer(topic: Topic, jobs: dict[int, bytes], member: ClaimInTurn) -> None:
    assert topic.queue is not None
    call_reply(member.reply, ClaimAnswer(topic.name, jobs, member.claimed, topic.queue.counts().ready))


def _log_parked(shard: ShardState, topic: Topic, seqs: list[int]) -> None:
    queue = topic.queue
    assert queue is not None
    queue.mark_ending(seqs)  # Until the frame is in the log.

    if topic.config.dead_letter is not None:
        queue.mark_sent(seqs)

    def on_logged() -> None:
        queue.unmark_ending(seqs)
        apply_config_to_parked(topic, seqs)  # The configuration may have changed since.
        shard.parked.add(topic)

    if topic.is_ephemeral:
        on_logged()
        return
    states = [queue.job_state(seq) for seq in seqs]
    undo = partial(_restore_jobs, queue, [state._replace(state=READY) for state in states])
    pending = PendingControl(topic, on_logged, ignore_refusal, undo)
    pending.count_as_waiting()
    frames = [lease_frame(topic, states[at : at + FRAME_JOBS]) for at in range(0, len(states), FRAME_JOBS)]
    shard.log.join(frames, sum(map(len, frames)), len(frames), pending, wait_for_sync=True)


def log_lease(
    shard: ShardState, topic: Topic, before: list[JobState], then: Callable[[], object], refuse: Refuse
) -> None:
    """Log the new state of jobs, then call `then`; at once if no frame is needed.

    `before` holds the previous state, which is restored when the write fails.
    """
    queue = topic.queue
    assert queue is not None
    if not before or not logs_leases(topic):
        then()
        return
    pending = PendingControl(topic, then, refuse, undo=partial(_restore_jobs, queue, before))
    waits = topic.is_durable or shard.must_wait(topic)
    if waits:
        pending.count_as_waiting()
    frames = lease_frames(topic, [queue.job_state(state.seq) for state in before])
    shard.log.join(frames, sum(map(len, frames)), len(frames), pending, waits)


def _restore_jobs(queue: LeaseQueue, before: list[JobState]) -> None:
    """Restore the jobs that still exist: the frame of their new state was not written."""
    for state in before:
        if state.seq in queue.known_jobs:
            queue.unmark_ending([state.seq])
            queue.restore(state)


def logs_leases(topic: Topic) -> bool:
    return topic.config.leases_durable and not topic.is_ephemeral
