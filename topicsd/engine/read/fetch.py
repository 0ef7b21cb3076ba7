"""Reads that may wait for the disk: a thread reads frames of a sealed segment, then the read runs again.

One fetch is bounded in bytes, and in records because they are rendered on the loop. Reads of cached pages do
not wait. An unexpected error is answered like any other: a reader that waits for the disk would otherwise get
no answer.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from functools import partial
from itertools import accumulate

from shared.contract.errors import Refusal
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.pending import call_reply
from topicsd.engine.read.fill_page import Fetched, Unfetched, keep_fetched
from topicsd.engine.read.page import VARIANTS, Frames
from topicsd.engine.read.read import read
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import ReadAnswer, ReadRequest, Reply
from topicsd.engine.state import ShardState
from topicsd.segment.entry import SegmentDamage
from topicsd.segment.reader import SegmentReader

logger = logging.getLogger("topicsd.engine")

FETCH_BYTES_MIN = 64 << 10
FETCH_BYTES_MAX = 1 << 20
# Rendering these 16 pages takes well under a millisecond of the loop.
FETCH_RECORDS_MAX = 1024


def read_through(shard: ShardState, name: str, request: ReadRequest, reply: Reply[ReadAnswer]) -> None:
    """Read, now or after a disk read; `reply` gets `ReadAnswer` or a `Refusal`."""
    try:
        answer = read(shard, name, request)
    except Exception as error:
        answer = refuse_unexpected_error(logger, "a read", error)
    if isinstance(answer, Unfetched):
        read_after_fetch(shard, name, request, answer, reply)
    else:
        reply(answer)


def read_now(shard: ShardState, name: str, request: ReadRequest) -> ReadAnswer | Refusal:
    """Read, and block until the disk has answered."""
    fetched: list[Fetched] = []
    while isinstance(answer := read(shard, name, request, fetched), Unfetched):
        fetched.append(fetch(shard.segments, answer.run, answer.first_seq, answer.bytes_wanted))
        _keep(shard, name, request, fetched[-1])
    return answer


def _keep(shard: ShardState, name: str, request: ReadRequest, fetched: Fetched) -> None:
    topic = shard.visible_topic(name)
    if topic is not None and fetched.frames is not None:
        keep_fetched(shard, topic, VARIANTS[request.with_tags, request.with_meta], fetched)


def read_after_fetch(
    shard: ShardState,
    name: str,
    request: ReadRequest,
    missing: Unfetched,
    reply: Reply[ReadAnswer],
    fetched: tuple[Fetched, ...] = (),
) -> None:
    """Fetch the records that a read found in no page, and run it again with them."""

    def on_fetched(one: Fetched | OSError) -> None:
        try:
            assert isinstance(one, Fetched), one
            _keep(shard, name, request, one)
            answer = read(shard, name, request, (*fetched, one))
            if isinstance(answer, Unfetched):
                read_after_fetch(shard, name, request, answer, reply, (*fetched, one))
                return
        except Exception as error:
            answer = refuse_unexpected_error(logger, "a read", error)
        call_reply(reply, answer)

    fetch_missing = partial(fetch, shard.segments, missing.run, missing.first_seq, missing.bytes_wanted)
    shard.read_on_thread(missing.run, fetch_missing, on_fetched)


def fetch(reader: SegmentReader, run: SealedRun, first: int, bytes_wanted: int) -> Fetched:
    """Read frames of a segment from `first` on, as many as suit one disk read; runs on a thread."""
    name, entry = run.name, run.entry
    last = first
    try:
        index = reader.index(name, entry)
        budget = min(max(bytes_wanted, FETCH_BYTES_MIN), FETCH_BYTES_MAX)
        at = first - index.first_seq
        end = bisect_right(index.offsets, index.offsets[at] + budget, at) - 1
        last = min(index.first_seq + end, first + FETCH_RECORDS_MAX - 1, run.next_seq - 1)
        try:
            data, _ = reader.frames(name, entry, index, first, last)
        except SegmentDamage as damage:
            if damage.first_seq <= first:
                return Fetched(run, first, max(first, min(damage.last_seq, last)), None, damage.what)
            # Return the good records before the damage first.
            last = damage.first_seq - 1
            data, _ = reader.frames(name, entry, index, first, last)
    except SegmentDamage as damage:
        return Fetched(run, first, max(first, damage.last_seq), None, damage.what)
    except OSError as error:
        return Fetched(run, first, last, None, f"it cannot be read: {error.strerror}")
    lengths = index.lengths[at : last + 1 - index.first_seq]
    # Each frame begins at the end of the previous one.
    starts = array("I", accumulate(lengths, initial=0))
    starts.pop()
    return Fetched(run, first, last, Frames(first, data, starts, lengths))
