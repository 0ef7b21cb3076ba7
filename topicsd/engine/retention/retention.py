"""Eviction and removal of records, and their effect on the floors. Pure: the topic and the time; no I/O.

Loss by a cap or by age is *eviction*: it raises `evict_floor` and is reported to readers. A delete raises
`earliest_seq` only. Both floors are exact at once; index entries before them are dropped later, when that is
cheap.

A topic that protects its cursors keeps the records after its lowest cursor, up to twice its caps and its age.
Beyond that a reader that has stopped no longer holds records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from topicsd.engine.queue.job import DeletedSeqs
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.records.durable_seq import note_forgotten
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TRIM_RECORDS, TailRun
from topicsd.engine.retention.delete_marks import DeleteMarks, mark_range, take_marked
from topicsd.engine.topic import NEVER, Topic
from topicsd.segment.entry import DroppedSegment

# Jobs that are removed from their queue one by one: as many as an ack names.
EACH_MAX: Final = 1000
HARD_FACTOR: Final = 2
"""The limit for records kept for cursors, as a multiple of the caps and the age."""


def expire(topic: Topic, now_ms: int) -> None:
    """Evict the records older than the TTL: `now - ts > ttl_ms`."""
    ttl_ms = topic.config.ttl_ms
    if not ttl_ms or not topic.live_count:
        return
    if topic.protected_seq == NEVER:
        last = _last_older(topic, now_ms - ttl_ms)
    else:
        unprotected = min(_last_older(topic, now_ms - ttl_ms), topic.protected_seq)
        last = max(unprotected, _last_older(topic, now_ms - HARD_FACTOR * ttl_ms))
    if last >= topic.earliest_seq:
        evict(topic, last, "ttl")


def _last_older(topic: Topic, oldest_ts: int) -> int:
    """Return the last seq at the front older than `oldest_ts`, or `earliest_seq - 1`."""
    last = topic.earliest_seq - 1
    for run in topic.runs:
        if isinstance(run, SealedRun) and topic.protected_seq != NEVER:
            young = run.find_seq_at_or_after(oldest_ts)
        else:
            young = run.seq_at_or_after(oldest_ts)
        # If a run begins with a young record, the gap before it is not counted as old.
        last = max(last, young - 1) if young > run.first_seq else last
        if young < run.next_seq:
            break
    return last


def enforce_caps(topic: Topic) -> None:
    """Evict records from the front until the topic is within its caps."""
    if topic.protected_seq == NEVER:
        _evict_over(topic, 1, NEVER)
        return
    if topic.earliest_seq <= topic.protected_seq:
        _evict_over(topic, 1, topic.protected_seq)
    _evict_over(topic, HARD_FACTOR, NEVER)


def _evict_over(topic: Topic, factor: int, last: int) -> None:
    """Evict what exceeds `factor` times the caps, up to seq `last`."""
    config = topic.config
    over = topic.live_count - factor * config.cap_records if config.cap_records else 0
    if over > 0:
        evict(topic, min(nth_live(topic, over), last), "cap")
    if config.cap_bytes and topic.live_bytes > factor * config.cap_bytes:
        over = topic.live_bytes - factor * config.cap_bytes
        evict(topic, min(_last_over_bytes(topic, over), last), "cap")


def evict(topic: Topic, last: int, reason: str) -> None:
    """Evict every live record up to `last`."""
    before = topic.live_count
    lost = _drop_front(topic, last)
    if lost:
        topic.totals.evicted_count += before - topic.live_count
        note_evicted(topic, lost, reason)


def replay_eviction(topic: Topic, last: int, reason: str) -> None:
    """Replay a logged eviction up to `last`: readers may have seen it, so it is final."""
    _drop_front(topic, last)
    note_evicted(topic, last, reason)


def note_evicted(topic: Topic, last_lost: int, reason: str) -> None:
    """Raise the floor above an evicted record."""
    topic.evicted_to[reason] = max(topic.evicted_to.get(reason, 0), last_lost)
    topic.evict_floor = max(topic.evict_floor, last_lost + 1)
    topic.lost.forget_below(topic.evict_floor)
    assert topic.evict_floor <= topic.earliest_seq


def delete_front(topic: Topic, last: int) -> int:
    """Delete every live record up to `last`; return how many there were."""
    before = topic.live_count
    _drop_front(topic, last)
    return before - topic.live_count


def delete_range(topic: Topic, first: int, last: int, taken: DeletedSeqs | None = None) -> int:
    """Delete every live record from `first` to `last`; return how many there were."""
    return delete_matches(topic, _range_marks(topic, first, last), taken)


def _range_marks(topic: Topic, first: int, last: int) -> Iterator[tuple[Run, DeleteMarks]]:
    for run in topic.runs:
        low = max(first, run.first_seq, topic.earliest_seq)
        high = min(last, run.next_seq - 1)
        if low <= high:
            yield run, mark_range(run, low, high)


def delete_each(topic: Topic, seqs: Iterable[int], taken: DeletedSeqs | None = None) -> int:
    """Delete these records; return how many were live, and add them to `taken` if given."""
    return delete_matches(topic, _by_run(topic, dict.fromkeys(seqs)), taken)


def _by_run(topic: Topic, seqs: Iterable[int]) -> Iterator[tuple[Run, list[int]]]:
    """Group consecutive seqs of the same run."""
    run: Run | None = None
    first = end = 0
    group: list[int] = []
    for seq in seqs:
        if not first <= seq < end:
            if run is not None:
                yield run, group
            run, group = topic.run_of(seq), []
            first, end = (0, 0) if run is None else (run.first_seq, run.next_seq)
        if first <= seq < end:
            group.append(seq)
    if run is not None:
        yield run, group


def delete_matches(
    topic: Topic, matches: Iterable[tuple[Run, list[int] | DeleteMarks]], taken: DeletedSeqs | None = None
) -> int:
    """Delete records given with their runs, however many; see `delete_each`."""
    earliest = topic.earliest_seq
    count = 0
    outside: list[int] = []
    try:
        for run, run_matches in matches:
            seqs: list[int] | DeleteMarks
            if isinstance(run_matches, DeleteMarks):
                seqs = take_marked(run, run_matches, earliest)
                size = seqs.size
            else:
                seqs, size = run.mark_all_dead(run_matches, max(earliest, run.first_seq))
                # The tags of an active segment include records after it that a checkpoint is copying.
                low, high = run.first_seq, run.next_seq
                outside += [seq for seq in run_matches if not low <= seq < high]
            topic.add_live(-len(seqs), -size)
            count += len(seqs)
            if topic.queue is not None:
                _remove_jobs(topic.queue, seqs, count)
            if taken is not None:
                last = seqs.last_seq if isinstance(seqs, DeleteMarks) else max(seqs, default=0)
                taken.add(seqs, len(seqs), last)
    finally:
        # The records before an unreadable segment are removed.
        if count and topic.next_live(earliest) != earliest:
            move_earliest(topic, earliest)
    return count + delete_each(topic, outside, taken) if outside else count


def _remove_jobs(queue: LeaseQueue, seqs: list[int] | DeleteMarks, count_so_far: int) -> None:
    if count_so_far > EACH_MAX:
        # A list is slow to search.
        queue.remove_many(seqs if isinstance(seqs, DeleteMarks) else dict.fromkeys(seqs))
        return
    for seq in seqs:
        queue.remove(seq)


def current_runs(
    topic: Topic, matches: Mapping[Run, list[int] | DeleteMarks]
) -> Iterator[tuple[Run, list[int] | DeleteMarks]]:
    """Map the found records to the current runs: a checkpoint may have replaced some."""
    runs = set(topic.runs)
    for run, run_matches in matches.items():
        if run in runs:
            yield run, run_matches
        else:
            yield from _by_run(topic, run_matches)


def nth_live(topic: Topic, count: int) -> int:
    """Return the seq of the n-th live record from the front."""
    seq = topic.earliest_seq
    for run in topic.runs:
        if run.next_seq <= seq:
            continue
        seq = max(seq, run.first_seq)
        if run.dead is None:
            available = run.next_seq - seq
            if count <= available:
                return seq + count - 1
            count -= available
            continue
        while (seq := run.next_live(seq)) < run.next_seq:
            count -= 1
            if not count:
                return seq
            seq += 1
    return topic.head


def _last_over_bytes(topic: Topic, over: int) -> int:
    """Return the last seq at the front to evict, so that `over` bytes are freed."""
    seq = topic.earliest_seq
    for run in topic.runs:
        if run.next_seq <= seq:
            continue
        seq = max(seq, run.first_seq)
        if isinstance(run, SealedRun) and run.live_bytes < over:
            over -= run.live_bytes
            seq = run.next_seq
            continue
        while (seq := run.next_live(seq)) < run.next_seq:
            (size,) = run.lengths_of(seq, seq)
            over -= size
            if over <= 0:
                return seq
            seq += 1
    return topic.head


def _drop_front(topic: Topic, last: int) -> int:
    """Remove every live record up to `last`; return the highest, or 0 if there was none."""
    last = min(last, topic.head)
    end = topic.run_of(last)
    if isinstance(end, SealedRun) and last < end.next_seq - 1:
        first = max(topic.earliest_seq, end.first_seq)
        if first <= last:
            # A damaged index has to raise before any state changes.
            end.lengths_of(first, last)
    highest = 0
    for run in topic.runs:
        if run.first_seq > last:
            break
        low, high = max(topic.earliest_seq, run.first_seq), min(last, run.next_seq - 1)
        if low > high:
            continue
        count, size = run.take_front(low, high)
        topic.add_live(-count, -size)
        highest = run.last_live(low, high) or highest
    if last >= topic.earliest_seq:
        if topic.queue is not None:
            topic.queue.remove_range(topic.earliest_seq, last)
        move_earliest(topic, last + 1)
    return highest


def drop_run(topic: Topic, run: Run) -> None:
    """Schedule the files of a run without live records for removal."""
    if isinstance(run, SealedRun):
        topic.dropped.append(DroppedSegment.of(run.name, run.entry))
    elif isinstance(run, TailRun) and run.source is not None:
        topic.dropped.append(DroppedSegment.of(run.source.name, run.source.entry))


def move_earliest(topic: Topic, seq: int) -> None:
    """Set `earliest_seq` to the first live seq from `seq` on; drop runs and columns before it."""
    topic.earliest_seq = seq
    topic.earliest_seq = earliest = topic.next_live(seq)
    dropped = 0
    while dropped < len(topic.runs) - 1 and topic.runs[dropped].next_seq <= earliest:
        dropped += 1
    if dropped:
        for run in topic.runs[:dropped]:
            if isinstance(run, TailRun):
                note_forgotten(topic, run, run.next_seq - 1)
            drop_run(topic, run)
        del topic.runs[:dropped]
    first = topic.runs[0]
    if isinstance(first, TailRun) and earliest - first.first_seq >= TRIM_RECORDS:
        if first.can_forget_before(earliest):
            note_forgotten(topic, first, earliest - 1)
        topic.totals.tags_to_free += first.forget_before(earliest)
