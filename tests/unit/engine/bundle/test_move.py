"""A topic that moves to another shard is there as it was here, and is no longer here."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.errors import Refusal
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.two_shards import MOVED, TwoShards
from topicsd.engine.bundle.gather import Gathered, resume
from topicsd.engine.topic import Topic


def described(one: OneShard, name: str) -> dict[str, Any]:
    """Return what clients can find out about a topic."""
    state = one.state(name)
    records = [(r.seq, bytes(r.data), r.tag) for r in one.read(name, limit=100_000).records]
    cursors = {key: cursor.from_seq for key, cursor in one.topic(name).cursors.items()}
    return {
        "epoch": state.epoch,
        "head": state.head_seq,
        "earliest": state.earliest_seq,
        "floor": state.evict_floor,
        "count": state.count,
        "bytes": state.bytes,
        "config": state.config,
        "queue": state.queue,
        "records": records,
        "cursors": cursors,
    }


def fill(one: OneShard, name: str = "t", **config: Any) -> None:
    one.put(name, **config)
    for number in range(30):
        one.append(name, record(number, tag=("x", "y", None)[number % 3]))
        if number in (9, 19):
            one.checkpoint()
    one.delete(name, seqs=[3, 12, 25])


@pytest.mark.parametrize("is_prepared", [True, False])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_moved_topic_is_as_it_was(is_prepared: bool, durability: str) -> None:
    two = TwoShards(segment_max_events=8)
    one, other = two.shards
    fill(one, durability=durability)
    before = described(one, "t")
    two.move("t", is_prepared=is_prepared)
    assert "t" not in one.shard.topic_names()
    assert described(other, "t") == before
    assert other.append("t", 99).first_seq == 31
    after = described(other, "t")
    for end in (other.kill, other.restart, other.checkpoint, other.kill, other.restart):
        end()
        assert described(other, "t") == after


def test_a_resumed_topic_is_as_it_was_and_runs_its_deferred_requests() -> None:
    two = TwoShards()
    one = two.shards[0]
    fill(one)
    before = described(one, "t")
    two.gather("t", is_prepared=False)
    assert described(one, "t") == before, "reads continue"
    waiting = one.send_append("t", "later")
    one.checkpoint()
    assert not waiting.has_answer
    resume(one.shard.state, one.topic("t"))
    one.settle()
    assert waiting.answer.first_seq == 31
    one.kill()
    assert one.seqs("t")[-1] == 31


def test_requests_that_waited_for_a_departure_get_its_refusal() -> None:
    two = TwoShards()
    one = two.shards[0]
    fill(one)
    gathered = two.gather("t")
    waiting = [one.send_append("t", 1), one.send_put("t", ttl_ms=5), one.send_delete("t", before_seq=9)]
    assert isinstance(two.adopt(gathered), Topic)
    two.depart("t")
    assert {reply.answer.message for reply in waiting} == {MOVED.message}
    assert one.refused_append("t", 1).message == MOVED.message
    assert one.refused_read("t").message == MOVED.message


def test_a_topic_returns_to_a_shard_that_it_left() -> None:
    two = TwoShards(segment_max_events=8)
    one, other = two.shards
    fill(one)
    for number in range(5):
        source = number % 2
        before = described(two.shards[source], "t")
        two.move("t", source)
        assert described(two.shards[1 - source], "t") == before
        two.shards[1 - source].append("t", number)
        two.kill()
    assert other.seqs("t")[-1] == 35
    for one in two.shards:
        one.checkpoint()
        one.checkpoint()
        one.checkpoint()
    two.kill()
    assert other.seqs("t")[-1] == 35


def test_an_existing_topic_refuses_an_adopt() -> None:
    two = TwoShards()
    one, other = two.shards
    fill(one)
    other.append("t", 1)
    refusal = two.adopt(two.gather("t"))
    assert isinstance(refusal, Refusal)
    assert refusal.detail == {"reason": "topic_exists"}
    resume(one.shard.state, one.topic("t"))


def test_a_topic_created_after_an_adopted_one_has_another_epoch() -> None:
    two = TwoShards()
    one, other = two.shards
    for number in range(100):
        one.append("filler", number)
    one.append("t", 1)
    epoch = one.state("t").epoch
    assert epoch > 100
    two.move("t")
    other.delete_topic("t")
    seen = {epoch}
    for _ in range(3):
        other.append("t", 1)
        seen.add(other.state("t").epoch)
        other.kill()
        assert other.state("t").epoch in seen
        other.delete_topic("t")
        other.checkpoint()
    assert len(seen) == 4


def test_the_holder_of_a_lease_ends_its_job_on_the_other_shard() -> None:
    two = TwoShards()
    one, other = two.shards
    one.put("q", type="queue")
    one.append("q", *range(4))
    claimed = one.claim("q", "w", 3, lease_ms=60_000).claimed
    leases = {job.seq: job.lease for job in claimed}
    two.move("q")
    assert other.claimed("q", "v", 9) == [4]
    assert other.ack("q", "w", 1, leases=[leases[1]]).skipped == []
    assert other.extend("q", "w", 2, leases=[leases[2]], ms=60_000).skipped == []
    assert other.nack("q", "w", 3).skipped == []
    assert other.claimed("q", "v", 9) == [3]
    other.kill()
    assert other.claimed("q", "v", 9) == [2, 3, 4], "a restart ends leases that are not logged"


def test_requests_during_an_adopt_wait_for_its_end() -> None:
    two = TwoShards()
    one, other = two.shards
    fill(one)
    gathered = two.gather("t")
    outcomes: list[object] = []
    job = other.shard.adopter.adopt(gathered.bundle, two.source_of(gathered))
    other.shard.state.jobs.start_now(job, outcomes.append)
    waiting = other.send_append("t", "new")
    assert not waiting.has_answer
    assert other.refused_read("t").code == "topic_not_found"
    other.settle()
    assert isinstance(outcomes[0], Topic)
    assert waiting.answer.first_seq == 31


def test_a_topic_that_stays_frozen_is_durable_and_accepts_requests_when_it_is_resumed() -> None:
    two = TwoShards()
    one, other = two.shards
    fill(one)
    topic = two.adopt(two.gather("t"), stays_frozen=True)
    waiting = other.send_append("t", 1)
    other.checkpoint()
    assert not waiting.has_answer
    resume(other.shard.state, topic)
    other.settle()
    assert waiting.answer.first_seq == 31
    other.kill()
    assert other.state("t").head_seq == 31


def test_a_stop_refuses_what_waits_for_a_frozen_topic() -> None:
    two = TwoShards()
    one = two.shards[0]
    fill(one)
    two.gather("t")
    waiting = one.send_append("t", 1)
    one.close()
    assert waiting.code == "shutting_down"
    one.open(two.disk)
    assert one.seqs("t")[-1] == 30


def test_a_checkpoint_waits_for_a_gather_and_a_gather_for_a_checkpoint() -> None:
    two = TwoShards()
    one = two.shards[0]
    fill(one)
    one.append("t", 1)
    ends: list[object] = []
    one.shard.start_checkpoint(ends.append)
    jobs = one.shard.state.jobs
    jobs.start(one.shard.gatherer.gather("t"), ends.append)
    one.loop.run_until_idle()
    one.shard.start_checkpoint(ends.append)
    one.settle()
    assert ends[0] is None
    assert {type(end) for end in ends} == {type(None), Gathered}
    assert len(ends) == 3
    resume(one.shard.state, one.topic("t"))
    one.kill()
    assert one.seqs("t")[-1] == 31
