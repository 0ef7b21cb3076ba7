"""What leaves a topic, and what that does to its floors. Pure: the topic, a number, the time; no I/O.

Loss by a cap or by age is *eviction*: `evict_floor` rises and readers are told. What a user deletes moves
`earliest_seq` only. Both are exact at once; what is forgotten of the index behind them is not their
business but a question of cost.

A topic that protects its cursors keeps what is behind the one furthest back, to twice its caps and its age:
that is where a reader that does not come any more stops being waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from topicsd.engine.queue.job import Taken
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.records.durable_seq import note_forgotten
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TRIM_RECORDS, TailRun
from topicsd.engine.retention.delete_marks import Marks, take_marked
from topicsd.engine.topic import NEVER, Topic

# Jobs that are told to their queue one by one: as many as an ack names.
EACH_MAX: Final = 1000
HARD_FACTOR: Final = 2
"""How many times the caps and the age a topic holds at the most for its cursors."""


def expire(topic: Topic, now_ms: int) -> None:
    """Evict what is older than the TTL: `now - ts > ttl_ms`."""
    ttl_ms = topic.config.ttl_ms
    if not ttl_ms or not topic.live_count:
        return
    if topic.protected_seq == NEVER:
        last = _last_older(topic, now_ms - ttl_ms)
    else:
        held = min(_last_older(topic, now_ms - ttl_ms), topic.protected_seq)
        last = max(held, _last_older(topic, now_ms - HARD_FACTOR * ttl_ms))
    if last >= topic.earliest_seq:
        evict(topic, last, "ttl")


def _last_older(topic: Topic, oldest_ts: int) -> int:
    """The last seq of the front that is older; the one before the earliest when none is."""
    last = topic.earliest_seq - 1
    for run in topic.runs:
        if isinstance(run, SealedRun) and topic.protected_seq != NEVER:
            young = run.first_not_older_of_all(oldest_ts)
        else:
            young = run.first_not_older(oldest_ts)
        # A run that begins young says nothing about what is in front of the gap before it.
        last = max(last, young - 1) if young > run.first_seq else last
        if young < run.next_seq:
            break
    return last


def enforce_caps(topic: Topic) -> None:
    """Evict from the front what the caps have no room for."""
    if topic.protected_seq == NEVER:
        _keep_to_caps(topic, 1, NEVER)
        return
    if topic.earliest_seq <= topic.protected_seq:
        _keep_to_caps(topic, 1, topic.protected_seq)
    _keep_to_caps(topic, HARD_FACTOR, NEVER)


def _keep_to_caps(topic: Topic, factor: int, upto: int) -> None:
    """To so many times the caps, but for what is behind `upto`."""
    config = topic.config
    over = topic.live_count - factor * config.cap_records if config.cap_records else 0
    if over > 0:
        evict(topic, min(nth_live(topic, over), upto), "cap")
    if config.cap_bytes and topic.live_bytes > factor * config.cap_bytes:
        over = topic.live_bytes - factor * config.cap_bytes
        evict(topic, min(_last_over_bytes(topic, over), upto), "cap")


def evict(topic: Topic, last: int, reason: str) -> None:
    """Lose every live record up to `last`."""
    before = topic.live_count
    lost = _drop_front(topic, last)
    if lost:
        topic.totals.evicted_count += before - topic.live_count
        note_evicted(topic, lost, reason)


def evict_again(topic: Topic, last: int, reason: str) -> None:
    """The log says that everything up to `last` was lost, and that readers were told; so it stays."""
    _drop_front(topic, last)
    note_evicted(topic, last, reason)


def note_evicted(topic: Topic, last_lost: int, reason: str) -> None:
    """Raise the floor over a live record that was lost."""
    topic.evicted_to[reason] = max(topic.evicted_to.get(reason, 0), last_lost)
    topic.evict_floor = max(topic.evict_floor, last_lost + 1)
    topic.lost.forget_below(topic.evict_floor)
    assert topic.evict_floor <= topic.earliest_seq


def delete_front(topic: Topic, last: int) -> int:
    """Take every live record up to `last` out on purpose; how many there were."""
    before = topic.live_count
    _drop_front(topic, last)
    return before - topic.live_count


def delete_each(topic: Topic, seqs: Iterable[int], taken: Taken | None = None) -> int:
    """Take these records out on purpose; how many were alive, and which of them, if asked for."""
    return delete_found(topic, _by_run(topic, dict.fromkeys(seqs)), taken)


def _by_run(topic: Topic, seqs: Iterable[int]) -> Iterator[tuple[Run, list[int]]]:
    """Those that are named behind each other and stand in one run are found together."""
    run: Run | None = None
    first = end = 0
    here: list[int] = []
    for seq in seqs:
        if not first <= seq < end:
            if run is not None:
                yield run, here
            run, here = topic.run_of(seq), []
            first, end = (0, 0) if run is None else (run.first_seq, run.next_seq)
        if first <= seq < end:
            here.append(seq)
    if run is not None:
        yield run, here


def delete_found(
    topic: Topic, found: Iterable[tuple[Run, list[int] | Marks]], taken: Taken | None = None
) -> int:
    """The same for what was found with the runs of the topic, however much that is."""
    earliest = topic.earliest_seq
    count = 0
    elsewhere: list[int] = []
    try:
        for run, matches in found:
            seqs: list[int] | Marks
            if isinstance(matches, Marks):
                seqs = take_marked(run, matches, earliest)
                size = seqs.size
            else:
                seqs, size = run.mark_all_dead(matches, max(earliest, run.first_seq))
                # The tags of an active segment know those of what a checkpoint is copying behind it.
                low, high = run.first_seq, run.next_seq
                elsewhere += [seq for seq in matches if not low <= seq < high]
            topic.add_live(-len(seqs), -size)
            count += len(seqs)
            if topic.queue is not None:
                _tell_queue(topic.queue, seqs, count)
            if taken is not None:
                last = seqs.last_seq if isinstance(seqs, Marks) else max(seqs, default=0)
                taken.add(seqs, len(seqs), last)
    finally:
        # What came before a segment that cannot be read is out.
        if count and topic.next_live(earliest) != earliest:
            move_earliest(topic, earliest)
    return count + delete_each(topic, elsewhere, taken) if elsewhere else count


def _tell_queue(queue: LeaseQueue, seqs: list[int] | Marks, count_so_far: int) -> None:
    if count_so_far > EACH_MAX:
        queue.all_gone(seqs)
        return
    for seq in seqs:
        queue.gone(seq)


def where_they_are(
    topic: Topic, found: Mapping[Run, list[int] | Marks]
) -> Iterator[tuple[Run, list[int] | Marks]]:
    """What was found in runs that a checkpoint has replaced since is in others now."""
    runs = set(topic.runs)
    for run, matches in found.items():
        if run in runs:
            yield run, matches
        else:
            yield from _by_run(topic, matches)


def nth_live(topic: Topic, count: int) -> int:
    """The seq of the n-th live record from the front."""
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
    """The last seq of the front that has to go to get rid of `over` bytes."""
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
    """Take out every live record up to `last`; the highest of them, 0 when there was none."""
    last = min(last, topic.head)
    end = topic.run_of(last)
    if isinstance(end, SealedRun) and last < end.next_seq - 1:
        first = max(topic.earliest_seq, end.first_seq)
        if first <= last:
            # Its index may be damaged: that is to be known before anything is changed.
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
            topic.queue.gone_to(topic.earliest_seq, last)
        move_earliest(topic, last + 1)
    return highest


def drop_run(topic: Topic, run: Run) -> None:
    """Nothing in it is alive."""
    if isinstance(run, SealedRun):
        topic.dropped.append((run.name, run.entry.tier))
    elif isinstance(run, TailRun) and run.source is not None:
        topic.dropped.append((run.source.name, run.source.entry.tier))


def move_earliest(topic: Topic, seq: int) -> None:
    """The first live seq is at or behind `seq`; forget what is far enough before it."""
    topic.earliest_seq = seq
    topic.earliest_seq = earliest = topic.next_live(seq)
    gone = 0
    while gone < len(topic.runs) - 1 and topic.runs[gone].next_seq <= earliest:
        gone += 1
    if gone:
        for run in topic.runs[:gone]:
            if isinstance(run, TailRun):
                note_forgotten(topic, run, run.next_seq - 1)
            drop_run(topic, run)
        del topic.runs[:gone]
    first = topic.runs[0]
    if isinstance(first, TailRun) and earliest - first.first_seq >= TRIM_RECORDS:
        if first.can_forget_before(earliest):
            note_forgotten(topic, first, earliest - 1)
        topic.totals.gone_tags += first.forget_before(earliest)
