"""Settling leased jobs: ack (done), nack (return it) and extend (lengthen the lease).

A request applies only to jobs whose lease the node holds; if it names a lease number, only to the current
one. An ack is the permanent delete of the record, in the durability class of the topic. While the delete is
on its way the job cannot be claimed; if it fails, the node holds the job as before. Nack and extend change
the lease, which is logged only with `leases_durable`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from shared.contract.errors import CORRUPT_SEGMENT, Refusal, reason_without_path
from shared.contract.topic_config import CLAMPED_FIELDS
from topicsd.engine.pending import PendingControl, Refuse, call_reply
from topicsd.engine.queue.claim import log_lease, logs_leases, queue_of
from topicsd.engine.queue.explain import skip_reason
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.requests import Reply, SettleAnswer, SettleRequest
from topicsd.engine.retention.delete import apply_delete
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import Delete
from topicsd.segment.entry import SegmentDamage

NACK_DELAY_MS_MAX = 86_400_000


class SkippedJobs(NamedTuple):
    """The seqs that a request named and the node does not hold, with the reasons."""

    seqs: list[int]
    reasons: dict[int, str]


Settle = Callable[[ShardState, str, SettleRequest, Reply[SettleAnswer]], None]


def ack(shard: ShardState, name: str, request: SettleRequest, reply: Reply[SettleAnswer]) -> None:
    """End jobs that are done; `reply` gets `SettleAnswer` or a `Refusal`."""
    split = _split_jobs(shard, name, request, reply, ack, is_logged=True)
    if split is None:
        return
    topic, queue, done, skipped = split
    if not done:
        _send_answer(shard, topic, done, skipped, 0, reply)
        return
    then = partial(_send_answer, shard, topic, done, skipped, 0, reply)
    end_jobs(shard, topic, queue, done, then, reply)


def nack(shard: ShardState, name: str, request: SettleRequest, reply: Reply[SettleAnswer]) -> None:
    """Return jobs, to be claimed again after a delay, after the back-off of the queue, or at once."""
    split = _split_jobs(shard, name, request, reply, nack)
    if split is None:
        return
    topic, queue, done, skipped = split
    now = shard.clock.now_ms()
    before = [queue.job_state(seq) for seq in done]
    for seq in done:
        if request.ms is None:
            delay_ms = topic.retry_wait_ms(queue.known_jobs[seq].deliveries)
        else:
            delay_ms = min(request.ms, NACK_DELAY_MS_MAX)
        queue.return_job(seq, now + delay_ms if delay_ms else 0, request.reason)
    if shard.queue_timers.timers:
        shard.queue_timers.refresh(topic)
    log_lease(shard, topic, before, partial(_send_answer, shard, topic, done, skipped, 0, reply), reply)


def extend(shard: ShardState, name: str, request: SettleRequest, reply: Reply[SettleAnswer]) -> None:
    """Lengthen leases: they end `ms` from now."""
    split = _split_jobs(shard, name, request, reply, extend, is_extend=True)
    if split is None:
        return
    topic, queue, done, skipped = split
    low, high = CLAMPED_FIELDS["lease_ms"]
    assert request.ms is not None
    deadline = shard.clock.now_ms() + min(max(request.ms, low), high)
    before = [queue.job_state(seq) for seq in done]
    for seq in done:
        queue.extend(seq, deadline)
    then = partial(_send_answer, shard, topic, done, skipped, deadline, reply)
    log_lease(shard, topic, before, then, reply)


def _split_jobs(
    shard: ShardState,
    name: str,
    request: SettleRequest,
    reply: Reply[SettleAnswer],
    operation: Settle,
    is_logged: bool = False,
    is_extend: bool = False,
) -> tuple[Topic, LeaseQueue, list[int], SkippedJobs] | None:
    """Split the named jobs into those that the node holds and the others.

    Return None if the request was answered or deferred.
    """
    topic = shard.topics.get(name)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, partial(operation, shard, name, request, reply), reply)
        return None
    result = queue_of(shard, name)
    if isinstance(result, Refusal):
        reply(result)
        return None
    topic, queue = result
    refusal = shard.log.admit_control() if is_logged or logs_leases(topic) else None
    if refusal is not None:
        reply(refusal)
        return None
    now = shard.clock.now_ms()
    evict_expired(shard, topic, now)
    queue.collect(now)
    leases = request.leases
    done: dict[int, None] = {}
    skipped = SkippedJobs([], {})
    for index, seq in enumerate(request.seqs):
        lease = None if leases is None else leases[index]
        if seq not in done and queue.is_held(seq, request.node, lease, is_extend):
            done[seq] = None
            continue
        skipped.seqs.append(seq)
        is_repeated = seq in done
        skipped.reasons[seq] = "repeated" if is_repeated else skip_reason(topic, queue, seq, request.node)
    return topic, queue, list(done), skipped


def _send_answer(
    shard: ShardState,
    topic: Topic,
    done: list[int],
    skipped: SkippedJobs,
    deadline: int,
    reply: Reply[SettleAnswer],
) -> None:
    assert topic.queue is not None
    if done and not deadline and topic.waiters is not None:
        # A job stream may have room for another job, or a job may be ready for it. Extending changes neither.
        shard.wake_queue.wake(topic)
    call_reply(
        reply, SettleAnswer(topic.name, done, skipped.seqs, skipped.reasons, topic.queue.counts(), deadline)
    )


def end_jobs(
    shard: ShardState,
    topic: Topic,
    queue: LeaseQueue,
    seqs: list[int],
    then: Callable[[], object],
    refuse: Refuse,
    is_dead_letter: bool = False,
) -> None:
    """Delete the records of jobs that are acked, or that the dead-letter topic has."""
    control = Delete(0, None, False, seqs, is_dead_letter)

    def publish() -> None:
        try:
            apply_delete(topic, control)
        except (SegmentDamage, OSError) as error:
            # The frame is in the log: the next start that can read the segment applies it.
            message = f"the ack is logged, but its segment cannot be read: {reason_without_path(error)}"
            call_reply(refuse, Refusal(CORRUPT_SEGMENT, message))
            return
        then()

    pending = PendingControl(topic, publish, refuse, undo=partial(queue.unmark_ending, seqs))
    queue.mark_ending(seqs)
    shard.join_control(topic, control, pending, waits_for_sync=is_dead_letter)
