"""The state of one job by its seq: why it is not being delivered.

A job that no longer exists was acked, deleted, or is in the dead-letter topic, where `$dead_letter_src_seq`
names it. Which of these is remembered for a limited number of jobs, and not for seqs before an eviction.
"""

from __future__ import annotations

from shared.contract.errors import Refusal
from topicsd.engine.queue.claim import queue_of
from topicsd.engine.queue.job import ACKED, ASIDE, DELAYED, IN_FLIGHT, UNKNOWN, Job, last_reason
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic


def explain(shard: ShardState, name: str, seq: int) -> dict[str, object] | Refusal:
    """Return the `state` of a job, with details."""
    result = queue_of(shard, name)
    if isinstance(result, Refusal):
        return result
    topic, queue = result
    now_ms = shard.clock.now_ms()
    evict_expired(shard, topic, now_ms)
    queue.collect(now_ms)
    queue.collect_job(seq, now_ms)
    return {"topic": name, "seq": seq, **state_of(topic, queue, seq), "paused": topic.config.paused}


def state_of(topic: Topic, queue: LeaseQueue, seq: int) -> dict[str, object]:
    """Describe a job, which may no longer exist or not be written yet."""
    if seq > topic.head:
        return {"state": "not_written", "head_seq": topic.head}
    if seq < 1 or topic.next_live(seq) != seq:
        return {"state": _ending(topic, queue, seq), "evict_floor": topic.evict_floor}
    job = queue.known_jobs.get(seq) or Job()
    details: dict[str, object] = {"deliveries": job.deliveries}
    if job.priority:
        details["priority"] = job.priority
    if reason := last_reason(job):
        details["reason"] = reason
    if job.state in ASIDE:
        return {"state": "parked", "dead_letter": topic.config.dead_letter, **details}
    if job.is_ending:
        return {"state": "ending", **details}
    if job.state == IN_FLIGHT:
        return {"state": "in_flight", "node": job.node, "deadline": job.deadline, **details}
    if job.state == DELAYED:
        return {"state": "delayed", "until": job.deadline, **details}
    blocked_by = queue.blocked_by(seq)
    if blocked_by:
        return {"state": "blocked", "blocked_by": blocked_by, **details}
    return {"state": "paused" if topic.config.paused else "ready", **details}


def skip_reason(topic: Topic, queue: LeaseQueue, seq: int, node: str) -> str:
    """Return why a node does not hold the job under the lease that it named."""
    state = str(state_of(topic, queue, seq)["state"])
    if state != "in_flight":
        return state
    return "other_lease" if queue.known_jobs[seq].node == node else "other_node"


def _ending(topic: Topic, queue: LeaseQueue, seq: int) -> str:
    ending = queue.outcomes.of(seq)
    lost = topic.lost.next_after(seq - 1)
    is_lost = seq < topic.evict_floor or (lost is not None and lost.first <= seq)
    return UNKNOWN if ending == ACKED and is_lost else ending
