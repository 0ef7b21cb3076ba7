"""Appends of a broker: batches, commits whose answers are lost, condemned blobs, back-pressure."""

from __future__ import annotations

from collections import deque
from typing import Literal

import pytest

from shared.contract.errors import Refusal
from tests.harness.brokers.one_broker import OneBroker
from topicsd.broker.broker import ReadLimits
from topicsd.broker.write import committer
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.committer import COMMIT_SECONDS
from topicsd.broker.write.open_blob import Appended
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, Producer

NO_CACHE = ReadLimits(tail_cache_bytes=0)


def blobs(broker: OneBroker) -> list[str]:
    return [key for key in broker.store.objects if key.startswith("llog/wal-shared/")]


def seqs(answers: list[Appended | Refusal]) -> tuple[int, int]:
    (answer,) = answers
    assert isinstance(answer, Appended), answer
    return answer.first_seq, answer.last_seq


def code(answers: list[Appended | Refusal]) -> str:
    (answer,) = answers
    assert isinstance(answer, Refusal), answer
    return answer.code


def test_many_requests_are_one_object_and_one_commit() -> None:
    one = OneBroker()
    one.create("a")
    one.create("b:2", 8)
    answers = [one.append("a", b"1"), one.append("b:2", b"2", b"3"), one.append("a", b"4")]
    one.settle()
    one.advance(240)
    assert not blobs(one)
    assert answers == [[], [], []]
    one.advance(20)
    assert [seqs(answer) for answer in answers] == [(1, 1), (1, 2), (2, 2)]
    assert len(blobs(one)) == 1
    assert one.catalog.calls["commit"] == 1
    assert one.catalog.calls["topics"] <= 2
    assert one.values("a") == [(1, b"1"), (2, b"4")]
    assert one.values("b:2", 2) == [(2, b"3")]


def test_a_group_of_the_low_latency_class_closes_the_blob_of_all() -> None:
    one = OneBroker()
    one.create("a")
    first = one.append("a", b"1")
    one.settle()
    one.advance(30)
    second = one.append("a", b"2", is_urgent=True)
    one.advance(60)
    assert (seqs(first), seqs(second)) == ((1, 1), (2, 2))


def test_a_blob_is_closed_at_its_size_without_waiting() -> None:
    one = OneBroker(BatchLimits(batch_bytes=1000))
    one.create("a")
    one.append("a", b"x")
    one.settle()
    answers = one.append("a", b"y" * 1000)
    one.settle()
    assert seqs(answers) == (2, 2)


def test_a_commit_whose_answer_is_lost_is_repeated_and_appends_once() -> None:
    one = OneBroker(read_limits=NO_CACHE)
    one.create("a")
    one.catalog.faults["commit"] = deque(["lost answer", "lost request", "lost answer"])
    answer = one.append("a", b"1", b"2")
    one.settle()
    one.advance(10_000)
    assert seqs(answer) == (1, 2)
    assert one.catalog.calls["commit"] == 4
    assert one.values("a") == [(1, b"1"), (2, b"2")]


def test_a_commit_is_not_repeated_after_the_catalog_may_have_forgotten_it() -> None:
    one, answer = stopped_in_a_commit()
    assert code(answer) == "in_doubt"
    assert one.catalog.calls["commit"] == 1
    assert one.values("a") == [(1, b"1")]


def test_a_broker_that_repeats_a_commit_at_any_time_appends_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "COMMIT_SECONDS", 1e9)
    one, answer = stopped_in_a_commit()
    assert seqs(answer) == (2, 2)
    assert one.values("a") == [(1, b"1"), (2, b"1")]


def stopped_in_a_commit() -> tuple[OneBroker, list[Appended | Refusal]]:
    """Stop the process after a commit whose answer is lost, for longer than append ids are remembered."""
    one = OneBroker(read_limits=NO_CACHE)
    one.create("a")
    one.catalog.faults["commit"] = deque(["lost answer"])
    answer = one.append("a", b"1")
    one.settle()
    one.loop.advance(250)
    while one.catalog.calls["commit"] < 1:
        one.threads[0].run_one()
        one.settle()
    one.clock.advance(REPEATED_MS + 1000)
    one.advance(1_000)
    return one, answer


def test_a_blob_that_was_never_committed_in_time_is_refused_and_not_appended() -> None:
    one = OneBroker()
    one.create("a")
    answer = one.append("a", b"1")
    one.settle()
    one.clock.advance(COMMIT_SECONDS * 1000 + 1)
    one.advance(1_000)
    assert code(answer) == "catalog_unavailable"
    assert one.catalog.calls["commit"] == 0
    assert one.topics.heads([("a", 7)]) == [0]


@pytest.mark.parametrize(("fault", "outcome"), [("lost request", "in_doubt"), (None, "topic_fenced")])
def test_a_fence_is_final_only_if_no_earlier_request_may_still_arrive(
    fault: Literal["lost request"] | None, outcome: str
) -> None:
    one = OneBroker()
    one.create("a")
    one.append("a", b"0")
    one.settle()
    one.advance(300)
    one.catalog.faults["commit"] = deque([fault])
    one.topics.fence("a", 7, "FENCED")
    answer = one.append("a", b"1")
    one.settle()
    one.advance(5_000)
    assert code(answer) == outcome


def test_a_topic_that_was_deleted_after_a_lost_answer_leaves_the_append_in_doubt() -> None:
    one = OneBroker()
    one.create("a")
    one.catalog.faults["commit"] = deque(["lost answer"])
    answer = one.append("a", b"1")
    one.settle()
    one.advance(255, step_ms=5)
    assert one.topics.heads([("a", 7)]) == [1]
    one.topics.forget("a", 7)
    one.advance(5_000)
    assert code(answer) == "in_doubt"
    again = one.append("a", b"2")
    one.settle()
    assert code(again) == "topic_not_found"


def test_a_condemned_blob_is_put_again_under_another_key() -> None:
    one = OneBroker(read_limits=NO_CACHE)
    one.create("a")
    one.topics.commit("other", "frames-v1", [])
    answer = one.append("a", b"1", b"2")
    one.settle()
    one.loop.advance(250)
    while not blobs(one):
        assert any(thread.run_one() for thread in one.threads)
    (first,) = blobs(one)
    assert one.topics.condemn([first]) == {first}
    one.advance(100)
    (appended,) = answer
    assert isinstance(appended, Appended)
    assert appended.key != first
    assert one.values("a") == [(1, b"1"), (2, b"2")]


def test_each_topic_of_a_blob_has_its_own_result() -> None:
    one = OneBroker()
    for number, name in enumerate(("open", "fenced", "gone")):
        one.create(name, 10 + number)
    one.topics.fence("fenced", 11, "FENCED")
    answers = {name: one.append(name, b"1") for name in ("open", "fenced", "gone", "never")}
    one.settle()
    one.topics.forget("gone", 12)
    one.advance(300)
    assert seqs(answers["open"]) == (1, 1)
    assert code(answers["fenced"]) == "topic_fenced"
    assert code(answers["gone"]) == "not_ready"
    assert code(answers["never"]) == "topic_not_found"
    again = one.append("gone", b"1")
    one.settle()
    assert code(again) == "topic_not_found"


def test_an_idempotency_key_and_a_producer_append_once() -> None:
    one = OneBroker()
    one.create("a")
    keyed = [one.append("a", b"1", append_id="k", digest="d") for _ in range(2)]
    other = one.append("a", b"2", append_id="k", digest="e")
    numbered = [one.append("a", b"%d" % n, producer=Producer("p", n, n)) for n in (1, 2, 2, 4)]
    one.settle()
    one.advance(300)
    assert [seqs(answer) for answer in keyed] == [(1, 1), (1, 1)]
    assert code(other) == "idempotency_mismatch"
    assert [seqs(answer) for answer in numbered[:3]] == [(2, 2), (3, 3), (3, 3)]
    (gap,) = numbered[3]
    assert isinstance(gap, Refusal)
    assert gap.code == "producer_gap"
    assert gap.detail == {"field": "producer", "next_seq": 3}
    assert one.values("a") == [(1, b"1"), (2, b"1"), (3, b"2")]


def test_writes_are_refused_while_too_many_bytes_wait() -> None:
    one = OneBroker(BatchLimits(pending_bytes=1000))
    one.create("a")
    first = one.append("a", b"x" * 2000)
    one.settle()
    assert code(one.append("a", b"y")) == "throttled"
    one.advance(300)
    assert seqs(first) == (1, 1)
    assert one.broker.batcher.pending_bytes == 0
    assert one.appended("a", b"z").first_seq == 2


def test_small_records_that_wait_for_a_lookup_count_with_their_frames() -> None:
    one = OneBroker(BatchLimits(pending_bytes=1000))
    one.create("a")
    answers = [one.append("a", b"x") for _ in range(100)]
    assert code(answers[-1]) == "throttled"
    one.settle()
    assert one.broker.batcher.pending_bytes < 1100
    one.advance(300)
    assert one.broker.batcher.pending_bytes == 0


def test_writes_are_refused_while_the_oldest_waits_too_long() -> None:
    one = OneBroker(BatchLimits(pending_seconds=5.0))
    one.create("a")
    one.catalog.faults["commit"] = deque(["lost request"] * 40)
    first = one.append("a", b"x")
    one.settle()
    one.advance(6_000)
    assert code(one.append("a", b"y")) == "throttled"
    one.catalog.faults["commit"].clear()
    one.advance(10_000)
    assert seqs(first) == (1, 1)
    assert one.appended("a", b"z").first_seq == 2


def test_a_store_that_is_away_refuses_the_records_and_appends_none() -> None:
    one = OneBroker()
    one.create("a")
    one.store.faults = ["lost request"] * 1000
    answer = one.append("a", b"1")
    one.settle()
    one.advance(1_000)
    assert code(answer) == "store_unavailable"
    assert one.topics.heads([("a", 7)]) == [0]


def test_blobs_without_a_common_topic_do_not_wait_for_each_other() -> None:
    one = OneBroker(BatchLimits(batch_bytes=1))
    one.create("a")
    one.create("b", 8)
    for name in ("a", "b"):
        one.appended(name, b"0")
    first = one.append("a", b"1")
    # The object of the first blob is slow: its thread does not run.
    (slow,) = (thread for thread in one.threads if thread.pending)
    answers = [first, one.append("a", b"2"), one.append("b", b"3")]
    others = [thread for thread in one.threads if thread is not slow]
    for _ in range(50):
        one.loop.run_until_idle()
        for thread in others:
            thread.run_one()
    assert [bool(answer) for answer in answers] == [False, False, True]
    one.settle()
    assert [seqs(answer) for answer in answers] == [(2, 2), (3, 3), (2, 2)]


def test_a_closing_broker_refuses_new_writes_and_commits_the_open_ones() -> None:
    one = OneBroker()
    one.create("a")
    answer = one.append("a", b"1")
    one.settle()
    one.broker.close()
    assert code(one.append("a", b"2")) == "shutting_down"
    assert not one.broker.is_drained
    one.settle()
    assert seqs(answer) == (1, 1)
    assert one.broker.is_drained
