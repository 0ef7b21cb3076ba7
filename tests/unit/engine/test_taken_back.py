"""What a disk without room refused has changed nothing, whatever was asked for in that turn."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.requests import TopicDeleted, TopicPut

NAMES = ("a", "b", "new", "newer")
TAGS = (None, "x", "xy")


def numbers(one: OneShard) -> dict[str, Any]:
    """Of every topic, what a request that is on its way changes."""
    return {
        name: (
            topic.epoch,
            topic.head,
            topic.next_seq,
            topic.last_ts,
            topic.pending_bytes,
            topic.waiting_count,
            topic.live_count,
            topic.live_bytes,
            topic.earliest_seq,
            topic.evict_floor,
            topic.config,
            topic.next_config,
            topic.ceiling,
            topic.ceiling_logged,
            topic.deferred_requests,
            topic.visible,
        )
        for name, topic in one.shard.state.topics.items()
    }


def filled() -> OneShard:
    one = OneShard()
    one.put("b", durability="fsync")
    for name in ("a", "b"):
        one.append(name, *[record(number, tag=TAGS[number % 3]) for number in range(9)])
    one.pass_time(3000)
    return one


def ask(one: OneShard, rng: Random) -> RecordedReply:
    name = rng.choice(NAMES)
    match rng.randrange(8):
        case 0:
            return one.send_put(
                name, cap_records=rng.choice((0, 2)), durability=rng.choice(("disk", "fsync"))
            )
        case 1:
            return one.send_delete_topic(name)
        case 2:
            return one.send_delete(name, tag="x", is_prefix=True)
        case 3:
            return one.send_delete(name, before_seq=rng.randrange(12))
        case _:
            records = [record(1, tag=rng.choice(TAGS)) for _ in range(rng.choice((1, 3, 300)))]
            return one.send_append(name, *records, idempotency_key=rng.choice((None, "k")))


@pytest.mark.parametrize("seed", range(30))
def test_a_turn_without_room_leaves_everything_as_it_was(seed: int) -> None:
    rng = Random(seed)
    one = filled()
    before = numbers(one)
    one.disk.fail("pwrite", error=errno.ENOSPC, forever=True)
    replies = [ask(one, rng) for _ in range(rng.randint(1, 12))]
    one.settle()
    for answer in replies:
        if answer.code is None:
            # What needed no log: there was nothing to delete, or nothing to change.
            assert isinstance(answer.answer, TopicDeleted | TopicPut)
        else:
            assert answer.code in ("storage_full", "topic_not_found", "idempotency_mismatch")
    assert numbers(one) == before
    assert one.shard.state.pending_keys == {}
    assert one.shard.topic_names() == ["a", "b"]
    one.disk.clear_faults()
    one.pass_time(6000)
    for _ in range(20):
        ask(one, rng)
        one.settle()
    one.pass_time(3000)
    after = {name: one.seqs(name) for name in one.shard.topic_names()}
    one.kill()
    assert {name: one.seqs(name) for name in one.shard.topic_names()} == after


def test_a_creation_without_room_is_none() -> None:
    one = filled()
    one.disk.fail("pwrite", error=errno.ENOSPC)
    replies = [one.send_append("new", 1), one.send_append("new", 2), one.send_put("new", ttl_ms=5)]
    one.settle()
    assert [answer.code for answer in replies] == ["storage_full"] * 3
    assert one.shard.topic_names() == ["a", "b"]
    one.pass_time(6000)
    assert one.append("new", 1).created


def test_a_ceiling_that_found_no_room_is_raised_by_the_next_write() -> None:
    one = OneShard()
    one.append("t", 0)
    room = one.topic("t").ceiling
    one.disk.fail("pwrite", error=errno.ENOSPC)
    assert one.send_append("t", *range(room // 2 + 10)).has_answer is False
    one.settle()
    assert (one.topic("t").ceiling, one.topic("t").ceiling_logged) == (room, room)
    one.pass_time(100)
    one.append("t", *range(room // 2 + 10))
    one.pass_time(60)
    assert one.topic("t").ceiling > room


def test_a_floor_that_found_no_room_is_logged_again_by_the_next_answer() -> None:
    one = OneShard()
    one.put("t", ttl_ms=1000)
    one.append("t", 1, 2)
    one.pass_time(3000)
    one.disk.fail("pwrite", error=errno.ENOSPC)
    assert one.state("t").evict_floor == 3
    one.settle()
    one.clock.step_wall(-100_000)
    assert one.state("t").evict_floor == 3
    one.settle()
    one.kill()
    assert one.state("t").evict_floor == 3


def test_more_requests_than_may_wait_are_throttled_whatever_they_ask() -> None:
    one = OneShard(max_waiting_requests=2)
    one.put("t", durability="fsync")
    for _ in range(2):
        one.send_append("t", 1)
    one.loop.run_until_idle()
    for reply in (
        one.send_append("t", 1),
        one.send_put("new"),
        one.send_put("t", ttl_ms=5),
        one.send_delete("t", before_seq=1),
        one.send_delete_topic("t"),
    ):
        assert reply.code == "throttled"
        assert reply.answer.retry_after_ms is not None
    one.settle()
    assert one.delete_topic("t").deleted


def test_more_requests_than_may_wait_behind_a_deletion_are_throttled() -> None:
    one = OneShard(max_waiting_requests=3)
    one.append("t", 1)
    deletion = one.send_delete_topic("t")
    waiting = [one.send_append("t", number) for number in range(3)]
    too_many = one.send_append("t", 3)
    assert too_many.code == "throttled"
    one.settle()
    assert deletion.answer.deleted
    assert [reply.answer.first_seq for reply in waiting] == [1, 2, 3]
