"""Reads that block, and the contents of a topic as a reader from the start sees them until it is caught up.

Promises: it reads in small pages, so that page boundaries fall everywhere, and checks what each answer
promises the next: the cursor advances, tombstones begin where reading stopped, records lie between the
cursors. Floor and lost ranges have the form that the judge needs.
"""

from __future__ import annotations

from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from tests.harness.books.ledger_entries import TopicContents
from topicsd.engine.read.fetch_selected import SelectedFrames
from topicsd.engine.read.fill_page import Fetched
from topicsd.engine.read.read import keep, try_read, work_of
from topicsd.engine.requests import ReadAnswer, ReadRequest, TopicState
from topicsd.engine.shard import Shard
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import topic_state

PAGE_RECORDS = 7


def read_now(shard: ShardState, name: str, request: ReadRequest) -> ReadAnswer | Refusal:
    """Read as `engine.read` does, but fetch in this thread."""
    fetched: list[Fetched | SelectedFrames] = []
    answer = try_read(shard, name, request, fetched)
    while not isinstance(answer, ReadAnswer | Refusal):
        refusal = keep(shard, name, request, answer, work_of(shard, answer)(), fetched)
        answer = refusal or try_read(shard, name, request, fetched)
    return answer


def contents_of(shard: Shard, name: str, page_records: int = PAGE_RECORDS) -> TopicContents:
    state = topic_state(shard.state, name)
    assert isinstance(state, TopicState), state
    contents = TopicContents(state.head_seq, state.evict_floor, state.earliest_seq)
    cursor = 0
    while True:
        answer = read_now(shard.state, name, ReadRequest(cursor, ReaderOptions(limit=page_records)))
        assert isinstance(answer, ReadAnswer), answer
        assert answer.epoch == state.epoch
        assert (answer.head_seq, answer.earliest_seq) == (state.head_seq, state.earliest_seq)
        _take(answer, cursor, contents)
        if answer.caught_up:
            break
        assert answer.next_from_seq > cursor, f"{name}: the read does not advance from {cursor}: {answer}"
        cursor = answer.next_from_seq
    assert len(contents.records) == state.count, (
        f"{name}: {len(contents.records)} records, the count is {state}"
    )
    return contents


def _take(answer: ReadAnswer, cursor: int, contents: TopicContents) -> None:
    gap = answer.tombstone
    if gap is not None:
        assert gap.gap_from == cursor + 1, f"{gap} does not begin after the cursor {cursor}"
        assert gap.gap_to <= answer.next_from_seq
        if gap.gap_to >= contents.evict_floor:
            contents.lost.append((gap.gap_from, gap.gap_to, gap.reason))
        else:
            assert gap.gap_to == contents.evict_floor - 1
        cursor = gap.gap_to
    for record in answer.records:
        assert cursor < record.seq <= answer.next_from_seq
        cursor = record.seq
        tag = record.tag.decode() or None
        contents.records.append((record.seq, record.data, tag))
