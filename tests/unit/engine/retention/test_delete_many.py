"""Deletes by tag of very many records: a thread finds them, and the loop takes them out in one step.

What happens between the two changes nothing: the answer is what a replay finds.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.records import tag_index
from topicsd.engine.records.tag_index import TAKEN_AT_ONCE
from topicsd.engine.retention import delete as find_tagged

COUNT = 3 * TAKEN_AT_ONCE


@pytest.fixture(autouse=True)
def many_is_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_tagged, "FEW_RECORDS", 8)


def filled(is_sealed: bool, **config: Any) -> OneShard:
    """Two of three records have the tag "a", with numbers behind it for a prefix."""
    stage = OneShard(segment_max_events=500, wal_file_bytes=1 << 22)
    stage.put("t", **config)
    _append(stage, COUNT // 2)
    if is_sealed:
        stage.checkpoint()
    _append(stage, COUNT - COUNT // 2)
    return stage


def _append(stage: OneShard, count: int) -> None:
    first = stage.topic("t").head + 1
    records = [record(seq, tag="b" if seq % 3 == 0 else "a") for seq in range(first, first + count)]
    stage.append("t", *records)


def expected(head: int = COUNT) -> list[int]:
    return [seq for seq in range(1, head + 1) if seq % 3 == 0]


def same_after_a_kill(stage: OneShard) -> None:
    before = _all_that_counts(stage)
    assert stage.state("t").bytes == _bytes(stage)
    stage.kill()
    assert _all_that_counts(stage) == before


def _all_that_counts(stage: OneShard) -> tuple[object, ...]:
    state = stage.state("t")
    return stage.seqs("t"), state.count, state.bytes, state.earliest_seq, state.evict_floor


def _bytes(stage: OneShard) -> int:
    total = 0
    for seq in stage.seqs("t"):
        run = stage.topic("t").run_of(seq)
        assert run is not None
        total += run.lengths[seq - run.first_seq]
    return total


@pytest.mark.parametrize("is_prefix", [False, True])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_what_carries_the_tag_goes_and_only_what_is_there_at_the_call(
    is_sealed: bool, is_prefix: bool
) -> None:
    stage = filled(is_sealed)
    reply = stage.send_delete("t", tag="a", is_prefix=is_prefix)
    stage.loop.run_until_idle()
    assert not reply.has_answer
    assert stage.state("t").count == COUNT
    late = stage.send_append("t", record("late", tag="a"))
    stage.settle()
    assert reply.answer.deleted == COUNT - len(expected())
    assert stage.seqs("t") == [*expected(), late.answer.first_seq]
    same_after_a_kill(stage)
    assert stage.delete("t", tag="a", is_prefix=is_prefix).deleted == 1


def test_a_bound_holds_too() -> None:
    stage = filled(is_sealed=True)
    reply = stage.send_delete("t", tag="a", before_seq=COUNT - 10)
    stage.settle()
    assert stage.seqs("t", COUNT - 11) == [*range(COUNT - 10, COUNT + 1)]
    assert reply.answer.deleted == sum(seq % 3 != 0 for seq in range(1, COUNT - 10))
    same_after_a_kill(stage)


MEANWHILE: dict[str, Callable[[OneShard], RecordedReply]] = {
    "some are deleted": lambda stage: stage.send_delete("t", seqs=[*range(400, 700, 7), COUNT - 1]),
    "the front is deleted": lambda stage: stage.send_delete("t", before_seq=COUNT // 4),
    "nearly all is deleted": lambda stage: stage.send_delete("t", before_seq=COUNT - 5),
    "the other tag is deleted": lambda stage: stage.send_delete("t", tag="b"),
    "the same is deleted up to a bound": lambda stage: stage.send_delete("t", tag="a", before_seq=900),
    "a cap takes the front": lambda stage: stage.send_put("t", cap_records=COUNT - 700),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("is_looked_up", [False, True])
def test_what_goes_between_the_look_and_the_delete_is_counted_once(
    is_sealed: bool, is_looked_up: bool, meanwhile: str
) -> None:
    stage = filled(is_sealed)
    reply = stage.send_delete("t", tag="a")
    if is_looked_up:
        stage.loop.run_until_idle()
        stage.copy_thread.run_one()
    before = stage.state("t").count
    other = MEANWHILE[meanwhile](stage)
    stage.settle()
    left = stage.seqs("t")
    assert [seq for seq in left if seq % 3] == []
    assert stage.state("t").count == len(left)
    if not meanwhile.startswith("a cap"):
        assert reply.answer.deleted + other.answer.deleted == before - len(left)
    same_after_a_kill(stage)


@pytest.mark.parametrize("turns", range(16))
def test_a_checkpoint_that_copies_them_meanwhile_changes_nothing(turns: int) -> None:
    stage = filled(is_sealed=True)
    reply = stage.send_delete("t", tag="a")
    stage.loop.run_until_idle()
    stage.copy_thread.run_one()
    stage.shard.start_checkpoint()
    for _ in range(turns):
        stage.turn()
    stage.settle()
    assert reply.answer.deleted == COUNT - len(expected())
    assert stage.seqs("t") == expected()
    same_after_a_kill(stage)


def test_a_run_that_was_replaced_since_is_found_where_its_records_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tag_index, "TAKEN_AT_ONCE", -1)
    replaced_count = 0
    for seed in range(300):
        random = Random(seed)
        stage = OneShard()
        stage.put("t", durability="fsync")
        _append(stage, 60)
        steps = [stage.loop.run_turn, stage.copy_thread.run_one, stage.thread.run_one]
        stage.shard.start_checkpoint()
        for _ in range(random.randrange(200)):
            random.choice(steps)()
        first = stage.topic("t").runs[0]
        reply = stage.send_delete("t", tag="a")
        while not reply.has_answer and stage.topic("t").runs[0] is first:
            random.choice(steps)()
        replaced_count += not reply.has_answer
        stage.settle()
        assert reply.answer.deleted == 40
        assert stage.seqs("t") == expected(60)
        same_after_a_kill(stage)
    assert replaced_count


def test_jobs_leave_with_their_records_and_a_claim_gets_the_others() -> None:
    stage = filled(is_sealed=True, type="queue")
    first = stage.send_claim("t", "w", 1000)
    stage.settle()
    assert len(first.answer.claimed) == 1000
    reply = stage.send_delete("t", tag="a")
    claim = stage.send_claim("t", "w", 1000)
    stage.settle()
    assert reply.answer.deleted == COUNT - len(expected())
    assert claim.has_answer
    counts = stage.state("t").queue
    assert counts is not None
    assert counts.in_flight == sum(one.seq % 3 == 0 for one in [*first.answer.claimed, *claim.answer.claimed])
    assert counts.ready + counts.in_flight == len(expected())
    rest = stage.claimed("t", "v", 1000)
    assert all(seq % 3 == 0 for seq in rest)


# -- ranges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_left", [0, 3, 499, 500, 501, COUNT // 2, COUNT - 1])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_truncation_of_whole_and_parts_of_segments_is_exact(is_sealed: bool, first_left: int) -> None:
    stage = filled(is_sealed)
    stage.delete("t", seqs=[5, 600, COUNT - 3])
    reply = stage.send_delete("t", after_seq=first_left)
    late = stage.send_append("t", record("late"))
    stage.settle()
    left = [seq for seq in range(1, first_left + 1) if seq not in (5, 600, COUNT - 3)]
    assert reply.answer.deleted == COUNT - 3 - len(left)
    assert stage.seqs("t") == [*left, late.answer.first_seq]
    assert late.answer.first_seq == COUNT + 1
    same_after_a_kill(stage)
    stage.checkpoint()
    same_after_a_kill(stage)
    assert stage.append("t", record("more")).first_seq == COUNT + 2


@pytest.mark.parametrize("turns", range(0, 16, 3))
def test_a_checkpoint_meanwhile_changes_no_truncation(turns: int) -> None:
    stage = filled(is_sealed=True)
    reply = stage.send_delete("t", after_seq=700, before_seq=COUNT - 20)
    stage.loop.run_until_idle()
    stage.copy_thread.run_one()
    stage.shard.start_checkpoint()
    for _ in range(turns):
        stage.turn()
    stage.settle()
    assert reply.answer.deleted == COUNT - 21 - 700
    assert stage.seqs("t") == [*range(1, 701), *range(COUNT - 20, COUNT + 1)]
    same_after_a_kill(stage)


def test_a_truncated_queue_removes_its_jobs_in_steps() -> None:
    stage = filled(True, type="queue")
    claimed = stage.claimed("t", "n", 3)
    reply = stage.send_delete("t", after_seq=2)
    stage.settle()
    assert reply.answer.deleted == COUNT - 2
    queue = stage.state("t").queue
    assert queue is not None
    assert (queue.ready, queue.in_flight) == (0, 2)
    assert claimed == [1, 2, 3]
    same_after_a_kill(stage)
    assert stage.claimed("t", "n", 10) == [1, 2]
