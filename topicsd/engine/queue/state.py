"""The state of a queue's jobs in the log and in snapshots, and how recovery restores it.

A `Lease` frame has the complete state of its jobs, so replaying a frame that a snapshot already contains is
harmless. Leases are logged with `leases_durable`; without it a restart ends them all, and the delivery counts
resume from the last snapshot. Parking is always logged, and so is the delay of a fresh job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from topicsd.engine.queue.delay import NewJobs
from topicsd.engine.queue.job import (
    ASIDE,
    BLOCKED,
    DELAYED,
    IN_FLIGHT,
    PARKED,
    READY,
    JobState,
    Outcomes,
    last_reason,
)
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import Lease, encode_control

QUEUE: Final = "queue"


class QueueSection(msgspec.Struct, frozen=True, array_like=True):
    """The part of a topic's snapshot entry that describes its jobs."""

    dead_lettered: int
    jobs: list[JobState]
    delays: list[tuple[int, int]] = []
    """Seq and time of delayed jobs that were never claimed. Compact: there may be very many, written in one
    step."""
    dead: list[int] = []
    deleted: list[int] = []
    known_from: int = 1
    """With `dead` and `deleted`: the known outcomes of jobs (`engine/queue/job.py`)."""
    delivered: list[tuple[int, int]] = []
    """Seq and delivery count of jobs of which nothing else is known. Compact for the same reason as `delays`.
    """
    former: list[str] = []
    priorities: list[tuple[int, int]] = []
    """Seq and priority of the jobs that have one."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(QueueSection).decode


def queue_section(topic: Topic, with_leases: bool = False) -> dict[str, bytes]:
    """Encode the jobs of a queue; leases are included if they survive a restart, or `with_leases`."""
    queue = topic.queue
    if queue is None:
        return {}
    with_leases = with_leases or topic.config.leases_durable
    jobs: list[JobState] = []
    delays: list[tuple[int, int]] = []
    delivered: list[tuple[int, int]] = []
    for seq, job in queue.known_jobs.items():
        if job.state == DELAYED and not job.deliveries:
            delays.append((seq, job.deadline))
        elif with_leases:
            jobs.append(queue.job_state(seq))
        elif job.state not in (READY, IN_FLIGHT, BLOCKED) or last_reason(job):
            jobs.append(_without_lease(queue.job_state(seq)))
        else:
            delivered.append((seq, job.deliveries))
    outcomes = queue.outcomes
    if not (
        jobs or delays or delivered or queue.dead_lettered or outcomes.deleted or outcomes.known_from > 1
    ):
        return {}
    known = sorted(outcomes.dead), sorted(outcomes.deleted), outcomes.known_from
    former = [*queue.former_dead_letters]
    priorities = [(seq, job.priority) for seq, job in queue.known_jobs.items() if job.priority]
    section = QueueSection(queue.dead_lettered, jobs, delays, *known, delivered, former, priorities)
    return {QUEUE: _encode(section)}


def load_queue(topic: Topic, sections: dict[str, bytes]) -> None:
    queue, encoded = topic.queue, sections.get(QUEUE)
    if queue is None or encoded is None:
        return
    section = _decode(encoded)
    queue.dead_lettered = section.dead_lettered
    queue.outcomes = Outcomes(section.dead, section.deleted, section.known_from)
    queue.former_dead_letters = dict.fromkeys(section.former)
    states = section.jobs
    states += [JobState(seq, DELAYED, 0, 0, due, "", "") for seq, due in section.delays]
    states += [JobState(seq, READY, count, 0, 0, "", "") for seq, count in section.delivered]
    # In order of seq, so that `FreshJobs` keeps them as ranges.
    for state in sorted(states, key=_seq_of):
        _restore_job(topic, state)
    for seq, priority in section.priorities:
        _prioritize(topic, seq, priority)
    apply_config_to_parked(topic)


def without_leases(sections: dict[str, bytes]) -> dict[str, bytes]:
    """Return the sections with all leases ended, as by a restart of a queue that does not log them."""
    if QUEUE not in sections:
        return sections
    section = _decode(sections[QUEUE])
    jobs = [_without_lease(job) for job in section.jobs]
    return {**sections, QUEUE: _encode(msgspec.structs.replace(section, jobs=jobs))}


def _without_lease(state: JobState) -> JobState:
    """Return the state without the lease, valid or expired; an expired one is its reason."""
    reason = last_reason(state)
    if state.state in (READY, IN_FLIGHT, BLOCKED):
        return JobState(state.seq, READY, state.deliveries, 0, 0, "", reason)
    return state._replace(lease=0, node="", reason=reason)


def queue_up_to(sections: dict[str, bytes], last_seq: int) -> dict[str, bytes]:
    """Return the sections without what is known of the jobs after `last_seq`."""
    if QUEUE not in sections:
        return sections
    section = _decode(sections[QUEUE])
    section = msgspec.structs.replace(
        section,
        jobs=[job for job in section.jobs if job.seq <= last_seq],
        delays=[one for one in section.delays if one[0] <= last_seq],
        dead=[seq for seq in section.dead if seq <= last_seq],
        deleted=[seq for seq in section.deleted if seq <= last_seq],
        known_from=min(section.known_from, last_seq + 1),
        delivered=[one for one in section.delivered if one[0] <= last_seq],
        priorities=[one for one in section.priorities if one[0] <= last_seq],
    )
    return {**sections, QUEUE: _encode(section)}


def leases_of(sections: dict[str, bytes]) -> list[tuple[int, int]]:
    """Return seq and lease number of the jobs that are leased in a snapshot."""
    encoded = sections.get(QUEUE)
    return [] if encoded is None else [(job.seq, job.lease) for job in _decode(encoded).jobs if job.lease]


def add_jobs(
    queue: LeaseQueue, first_seq: int, count: int, tags: list[bytes] | None, jobs: NewJobs | None = None
) -> None:
    """Enter published records in the queue, with what distinguishes them from fresh jobs."""
    for at in range(count if queue.needs_tags else 0):
        queue.add_record(first_seq + at, tags[at] if tags is not None else b"")
    if jobs is not None and jobs.due:
        queue.delay(range(first_seq, first_seq + count), jobs.due)
    if jobs is not None and jobs.priority:
        queue.prioritize(range(first_seq, first_seq + count), jobs.priority)


def apply_config_to_parked(topic: Topic, seqs: Iterable[int] | None = None) -> None:
    """Apply the topic's configuration to parked jobs, all or `seqs`.

    With a dead-letter topic, jobs are marked as sent: that topic may have them from now on. Without one, jobs
    below a raised `max_deliveries` are ready again.
    """
    queue, config = topic.queue, topic.config
    if queue is None or not queue.parked:
        return
    parked = [*queue.parked] if seqs is None else [seq for seq in seqs if seq in queue.parked]
    if config.dead_letter is None:
        queue.unpark(parked, config.max_deliveries)
    else:
        queue.mark_sent([seq for seq in parked if queue.known_jobs[seq].state == PARKED])


def note_former(topic: Topic, dead_letter: str | None) -> None:
    """Remember the dead-letter topic to be replaced: it may hold copies of parked jobs."""
    queue, before = topic.queue, topic.config.dead_letter
    if queue is not None and queue.parked and before not in (None, dead_letter):
        queue.former_dead_letters[before] = None


def lease_frames(topic: Topic, states: list[JobState]) -> list[bytes]:
    """Encode the current state of these jobs, which may differ in when their back-off ends."""
    if topic.config.retry is None:
        return [lease_frame(topic, states)]
    by_deadline: dict[int, list[JobState]] = {}
    for state in states:
        by_deadline.setdefault(state.deadline, []).append(state)
    return [lease_frame(topic, group) for group in by_deadline.values()]


def lease_frame(topic: Topic, states: list[JobState]) -> bytes:
    """Encode a frame with the current state of these jobs, which differ only in their numbers and reasons.

    Different reasons are those of earlier nacks, which a replay keeps; those of parked jobs are in the frame.
    """
    first = states[0]
    is_same = all(state.reason == first.reason for state in states)
    control = Lease(
        first.state,
        [state.seq for state in states],
        [state.deliveries for state in states],
        [state.lease for state in states] if first.lease else [],
        first.deadline,
        first.node,
        first.reason if is_same and first.state != IN_FLIGHT and first.state not in ASIDE else "",
        [state.reason for state in states] if first.state in ASIDE else [],
    )
    durable = topic.config.durable
    return encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=durable)


def apply_lease(topic: Topic, control: Lease) -> None:
    leases = control.leases or [0] * len(control.seqs)
    reasons = control.reasons or [control.reason] * len(control.seqs)
    for seq, deliveries, lease, frame_reason in zip(
        control.seqs, control.deliveries, leases, reasons, strict=True
    ):
        known = None if topic.queue is None else topic.queue.known_jobs.get(seq)
        # A claim keeps the reason of the last nack.
        reason = frame_reason or (known.reason if known is not None else "")
        _restore_job(
            topic, JobState(seq, control.state, deliveries, lease, control.deadline, control.node, reason)
        )
        if control.priority:
            _prioritize(topic, seq, control.priority)
    if control.state == PARKED:
        apply_config_to_parked(topic, control.seqs)


def _seq_of(state: JobState) -> int:
    return state.seq


def _restore_job(topic: Topic, state: JobState) -> None:
    """Restore a job if its record is live.

    A snapshot's marks and frames may describe jobs whose records are removed.
    """
    if topic.queue is not None and topic.next_live(state.seq) == state.seq <= topic.head:
        topic.queue.restore(state)


def _prioritize(topic: Topic, seq: int, priority: int) -> None:
    if topic.queue is not None and seq in topic.queue.known_jobs:
        topic.queue.prioritize([seq], priority)
