"""Very many jobs reach max_deliveries: the next claim does not park all of them at once."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.queue import claim as queue_claim
from topicsd.engine.queue.job import Counts

JOBS = 40
AT_ONCE = 3


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_claim, "PARKED_AT_ONCE", AT_ONCE)


def begun(fresh: int, jitter_ms: int = 0) -> OneShard:
    """All but so many were delivered once, which was too often."""
    stage = OneShard()
    stage.put("q", type="queue", claim_jitter_ms=jitter_ms)
    stage.append("q", *range(JOBS))
    reply = stage.send_claim("q", "w", JOBS - fresh)
    stage.pass_time(100)
    stage.nack("q", "w", *[one.seq for one in reply.answer.claimed])
    stage.put("q", max_deliveries=1)
    return stage


def counts(stage: OneShard) -> Counts:
    queue = stage.state("q").queue
    assert queue is not None
    return queue


@pytest.mark.parametrize("jitter_ms", [0, 5])
def test_they_are_parked_a_few_a_turn_and_the_claim_gets_what_is_behind_them(jitter_ms: int) -> None:
    stage = begun(2, jitter_ms)
    claims = [stage.send_claim("q", node, 1) for node in "abc"]
    stage.clock.advance_ns(jitter_ms * 1_000_000)
    before = counts(stage).parked
    assert before <= 3 * AT_ONCE
    while not all(reply.has_answer for reply in claims):
        stage.turn()
        now = counts(stage).parked
        assert now - before <= 3 * AT_ONCE
        before = now
    assert sorted(one.seq for reply in claims for one in reply.answer.claimed) == [JOBS - 1, JOBS]
    stage.settle()
    assert counts(stage) == Counts(0, 2, 0, JOBS - 2, 0)
    stage.kill()
    assert counts(stage).parked == JOBS - 2


def test_a_claim_that_got_something_in_front_of_them_does_not_wait_for_the_others() -> None:
    stage = begun(0)
    stage.put("q", max_deliveries=0)
    first = stage.claimed("q", "w", 1)
    stage.put("q", max_deliveries=2)
    stage.nack("q", "w", *first)
    stage.claim("q", "w", 1)
    stage.put("q", max_deliveries=1)
    assert stage.claimed("q", "v", 5) == []
    assert counts(stage) == Counts(0, 1, 0, JOBS - 1, 0)


def test_deleting_the_topic_ends_all_waits() -> None:
    stage = begun(1)
    reply = stage.send_claim("q", "a", 1)
    assert not reply.has_answer
    gone = stage.send_delete_topic("q")
    stage.settle()
    assert gone.answer.deleted
    assert reply.has_answer
