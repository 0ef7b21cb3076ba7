"""Deletes: permanent, not reported to readers, and bounded by the head at the time of the call.

The frame in the log has the operation and that head, in the durability class of the topic; replay finds the
matching records again.

The records of a tag are looked up on a thread when that may take long: segments have to be read, and very
many records checked. All matching records exist at the call, so the lookup is complete whatever is appended
meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    INVALID_REQUEST,
    Refusal,
    excluded,
    invalid,
    reason_without_path,
    store_unavailable,
    too_many,
)
from topicsd.engine.pending import PendingControl, call_reply
from topicsd.engine.queue.job import DeletedSeqs
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tag_index import TagIndex
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import DeleteAnswer, DeleteRequest, Reply
from topicsd.engine.retention.delete_marks import DeleteMarks, mark_records
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.retention.retention import (
    current_runs,
    delete_each,
    delete_front,
    delete_matches,
    delete_range,
)
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.log.control_frame import Delete
from topicsd.segment.entry import DATA, SegmentDamage
from topicsd.store.object_store import StoreUnavailable

# Up to this many records of a run are removed faster one by one.
FEW_RECORDS: Final = 64

Matches = dict[Run, list[int] | DeleteMarks]
"""For each run a few seqs, some of which may be dead, or marks."""


class TagQuery(NamedTuple):
    """The records to find: those with the tag, or tag prefix, below a seq."""

    tag: bytes
    is_prefix: bool
    below: int


class _TailState(NamedTuple):
    """The state of a tail run at the call. The run itself keeps growing and loses its front."""

    run: TailRun
    first_seq: int
    lengths: array[int]
    dead: bytes | None


class Search(NamedTuple):
    """A lookup for a thread: the records to find, and the runs to search."""

    match: TagQuery
    earliest_seq: int
    sealed: list[SealedRun]
    tails: list[_TailState]


class LookupResult(NamedTuple):
    """The result of a lookup on a thread."""

    matches: Matches
    tags: dict[TailRun, TagIndex]
    """Tag indexes of active segments whose tags were not loaded since the start."""


def search_of(topic: Topic, match: TagQuery) -> Search | None:
    """Return the search for a thread, or None if the event loop finds the records as fast."""
    sealed = [run for run in topic.runs if isinstance(run, SealedRun) and run.entry.has_tags]
    tails = [run for run in topic.runs if isinstance(run, TailRun)]
    is_known = not any(run.tags.is_unknown for run in tails)
    if is_known and not sealed and not any(run.tags.is_much(match.tag, match.is_prefix) for run in tails):
        return None
    tail_states = [
        _TailState(run, run.first_seq, run.lengths[:], None if run.dead is None else bytes(run.dead))
        for run in tails
    ]
    return Search(match, topic.earliest_seq, sealed, tail_states)


def look_up(search: Search) -> LookupResult | SegmentDamage:
    """Find the records on a thread, and load what their removal needs."""
    tag, is_prefix, below = search.match
    matches: Matches = {}
    tags: dict[TailRun, TagIndex] = {}
    try:
        for run in search.sealed:
            seqs = run.find_tag(tag, is_prefix, below)
            if seqs:
                run.load_index()
            if len(seqs) > FEW_RECORDS:
                dead = None if run.dead is None else bytes(run.dead)
                matches[run] = mark_records(seqs, run.first_seq, run.lengths, dead, search.earliest_seq)
            elif seqs:
                matches[run] = seqs
        for tail in search.tails:
            index = tail.run.tags
            if index.is_unknown and tail.run.source is not None:
                index = tags[tail.run] = TagIndex.of(tail.run.source.tags())
            # The tags of an active segment include records after it that a checkpoint is copying: those are
            # found in their own run.
            end = min(below, tail.first_seq + len(tail.lengths))
            seqs = [seq for seq in index.find(tag, is_prefix, end) if seq >= tail.first_seq]
            if len(seqs) > FEW_RECORDS:
                marks = mark_records(seqs, tail.first_seq, tail.lengths, tail.dead, search.earliest_seq)
                matches[tail.run] = marks
            elif seqs:
                matches[tail.run] = seqs
        return LookupResult(matches, tags)
    except SegmentDamage as damage:
        return damage


SEQS_MAX: Final = 1000
"""The most seqs of one call."""


def delete_records(shard: ShardState, name: str, request: DeleteRequest, reply: Reply[DeleteAnswer]) -> None:
    """Delete what the request matches; `reply` gets `DeleteAnswer` or a `Refusal`."""
    topic = shard.topics.get(name)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, partial(delete_records, shard, name, request, reply), reply)
        return
    refusal = _refuse(request) or shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    if topic is None or not topic.visible:
        reply(missing_topic(shard, name))
        return
    evict_expired(shard, topic, shard.clock.now_ms())
    below = topic.head + 1 if request.before_seq is None else min(request.before_seq, topic.head + 1)
    control = Delete(below, request.tag, request.is_prefix)
    if request.seqs is not None:
        seqs = [seq for seq in request.seqs if 0 < seq <= topic.head]
        control = Delete(0, None, False, seqs, is_asked=True)
    if request.seqs is not None and not control.seqs:
        reply(_deleted(topic, 0))
        return
    if request.after_seq is not None:
        last = below - 1
        if request.after_seq >= last:
            reply(_deleted(topic, 0))
            return
        control = Delete(0, None, False, is_asked=True, after=request.after_seq, last=last)
    retry = partial(delete_records, shard, name, request, reply)
    on_result = partial(_on_looked_up, shard, topic, control, reply, retry)
    if control.last:
        edges = _edges(topic, control)
        if edges:
            shard.threads.read.submit(partial(_load_indexes, edges), on_result)
        else:
            join_delete(shard, topic, control, reply)
        return
    search = None
    if control.tag is not None:
        search = search_of(topic, TagQuery(control.tag.encode(), control.is_prefix, control.below))
    if search is None:
        join_delete(shard, topic, control, reply)
        return
    shard.threads.read.submit(partial(look_up, search), on_result)


def _edges(topic: Topic, control: Delete) -> list[SealedRun]:
    """Return the sealed runs of which a range has a part: their lengths are in their indexes."""
    first, last = max(control.after + 1, topic.earliest_seq), control.last
    return [
        run
        for run in topic.runs
        if isinstance(run, SealedRun)
        and (run.first_seq < first < run.next_seq or run.first_seq <= last < run.next_seq - 1)
    ]


def _load_indexes(runs: list[SealedRun]) -> LookupResult | SegmentDamage:
    """Load the indexes of runs, on a thread."""
    try:
        for run in runs:
            run.load_index()
    except SegmentDamage as damage:
        return damage
    return LookupResult({}, {})


def _on_looked_up(
    shard: ShardState,
    topic: Topic,
    control: Delete,
    reply: Reply[DeleteAnswer],
    retry: Callable[[], None],
    result: LookupResult | SegmentDamage | OSError,
) -> None:
    if isinstance(result, SegmentDamage):
        detail: dict[str, object] = {
            "segment": result.name.key(DATA),
            "first_seq": result.first_seq,
            "last_seq": result.last_seq,
        }
        call_reply(reply, Refusal(CORRUPT_SEGMENT, f"cannot find the records: {result}", detail))
    elif isinstance(result, StoreUnavailable):
        call_reply(reply, store_unavailable(f"cannot find the records: {result}"))
    elif isinstance(result, OSError):
        message = f"cannot find the records: {reason_without_path(result)}"
        call_reply(reply, Refusal(CORRUPT_SEGMENT, message))
    elif topic.is_frozen:
        shard.defer(topic, retry, reply)
    elif topic.deferred_requests is not None or shard.topics.get(topic.name) is not topic:
        call_reply(reply, missing_topic(shard, topic.name))
    elif (refusal := shard.log.admit_control()) is not None:
        call_reply(reply, refusal)
    else:
        for run, tags in result.tags.items():
            if run.tags.is_unknown:
                run.tags = tags
        join_delete(shard, topic, control, reply, result.matches)


def join_delete(
    shard: ShardState,
    topic: Topic,
    control: Delete,
    reply: Reply[DeleteAnswer],
    matches: Matches | None = None,
    waits_for_sync: bool = False,
) -> None:
    """Log a delete. No record is removed before the frame satisfies its durability class."""

    def publish() -> None:
        try:
            deleted = apply_delete(topic, control, matches)
        except (SegmentDamage, OSError) as error:
            # The frame is in the log: the next start that can read the segment applies it.
            message = f"the delete is logged, but its records cannot be read: {reason_without_path(error)}"
            call_reply(reply, Refusal(CORRUPT_SEGMENT, message))
            return
        if topic.queue is not None and topic.waiters is not None:
            # A job that blocked others of its tag may be removed.
            shard.wake_queue.wake(topic)
        shard.removals.after(topic, partial(call_reply, reply, _deleted(topic, deleted)))

    shard.join_control(topic, control, PendingControl(topic, publish, reply), waits_for_sync)


def apply_delete(topic: Topic, control: Delete, matches: Matches | None = None) -> int:
    """Remove the records of a delete frame; return how many were live.

    `matches` is the result of the lookup; without it, as in replay, the records are searched here.
    """
    if control.last:
        removed = None if topic.queue is None else DeletedSeqs()
        try:
            return delete_range(topic, control.after + 1, control.last, removed)
        finally:
            if topic.queue is not None and removed is not None:
                topic.queue.outcomes.note_deleted(removed)
    if control.seqs:
        if control.is_dead_letter and topic.queue is not None:
            # Includes records that a segment's marks list as dead already, as happens after a crash.
            topic.queue.dead_lettered += len(control.seqs)
            topic.queue.outcomes.note_dead(control.seqs)
        if not control.is_asked:
            return delete_each(topic, control.seqs)
    elif control.tag is None:
        count = delete_front(topic, control.below - 1)
        if count and topic.queue is not None:
            topic.queue.outcomes.forget_to(control.below - 1)
        return count
    # Remembered for a while: these jobs were deleted, not acked.
    taken = None if topic.queue is None else DeletedSeqs()
    try:
        return _delete_matches(topic, control, matches, taken)
    finally:
        if topic.queue is not None and taken is not None:
            topic.queue.outcomes.note_deleted(taken)


def _delete_matches(topic: Topic, control: Delete, matches: Matches | None, taken: DeletedSeqs | None) -> int:
    if control.tag is None:
        return delete_each(topic, control.seqs, taken)
    tag = control.tag.encode()
    if matches is not None:
        for run in matches:
            # The tags of a prefix stay in the index for now: there may be as many tags as records.
            if isinstance(run, TailRun) and not control.is_prefix:
                run.tags.drop(tag, control.below)
        return delete_matches(topic, current_runs(topic, matches), taken)
    runs_and_seqs = ((run, run.find_tag(tag, control.is_prefix, control.below)) for run in topic.runs)
    return delete_matches(topic, runs_and_seqs, taken)


def _refuse(request: DeleteRequest) -> Refusal | None:
    if request.seqs is not None:
        count = len(request.seqs)
        if count <= SEQS_MAX:
            return None
        return too_many("seqs", SEQS_MAX, count)
    if request.before_seq is None and request.tag is None and request.after_seq is None:
        return Refusal(INVALID_REQUEST, "before_seq, after_seq, match or seqs is required")
    if request.after_seq is not None and request.tag is not None:
        return excluded("after_seq", "match")
    if request.before_seq is not None and request.before_seq < 0:
        return invalid("before_seq", f"must be at least 0, got {request.before_seq}")
    return None


def _deleted(topic: Topic, count: int) -> DeleteAnswer:
    return DeleteAnswer(topic.name, count, topic.earliest_seq, topic.head, topic.live_count, topic.live_bytes)
