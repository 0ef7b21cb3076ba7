"""A topic is captured complete to one ordinal of the log, whatever of it is on its way."""

from __future__ import annotations

from tests.harness.shard.one_shard import OneShard

NEVER_MS = 1 << 40


def shard(**settings: int) -> OneShard:
    return OneShard(**{"checkpoint_interval_ms": NEVER_MS, **settings})


def at_the_first_sync(one: OneShard) -> None:
    """A checkpoint has begun and waits for what was there before it."""
    one.shard.start_checkpoint()
    one.loop.run_until_idle()
    assert one.thread.pending == 1


def test_records_behind_a_floor_that_is_not_synced_are_not_replayed_over_the_snapshot() -> None:
    one = shard()
    one.put("t", ttl_ms=1000)
    one.append("t", 1)
    one.pass_time(900)
    one.append("t", 2)
    at_the_first_sync(one)
    one.clock.advance(500)
    assert one.state("t").evict_floor == 2
    one.loop.run_until_idle()
    reply = one.send_append("t", 3)
    one.loop.run_until_idle()
    assert reply.has_answer, "it is published in front of the floor's sync"
    one.settle()
    one.kill()
    assert (one.seqs("t"), one.state("t").evict_floor) == ([2, 3], 2)


def test_records_behind_a_ceiling_that_is_not_synced_are_not_replayed_over_the_snapshot() -> None:
    one = shard()
    one.append("t", 0)
    at_the_first_sync(one)
    for _ in range(5):
        one.send_append("t", *range(30))
        one.loop.run_until_idle()
    assert one.topic("t").ceiling_logged > one.topic("t").ceiling
    one.settle()
    head = one.state("t").head_seq
    one.kill()
    assert one.state("t").head_seq == head
    one.reboot()
    assert one.append("t", 1).first_seq > head


def test_a_request_that_waits_for_its_sync_is_replayed_behind_the_snapshot() -> None:
    one = shard()
    one.put("t", durability="fsync")
    one.append("t", 1)
    at_the_first_sync(one)
    reply = one.send_append("t", 2)
    one.loop.run_turn()
    assert not reply.has_answer
    one.settle()
    assert reply.answer.first_seq == 2
    one.kill()
    assert one.seqs("t") == [1, 2]


def test_of_an_ephemeral_topic_only_the_ceiling_is_captured() -> None:
    one = shard()
    one.append("t", 1, 2, 3, config=None)
    one.put("e", durability="ephemeral")
    one.append("e", 1, 2)
    one.checkpoint()
    one.restart()
    assert one.seqs("e") == []
    assert one.state("e").evict_floor == one.append("e", 1).first_seq == 3


def test_a_topic_that_is_leaving_is_captured_only_if_it_stays() -> None:
    one = shard()
    one.append("t", 1)
    one.append("u", 1)
    at_the_first_sync(one)
    one.thread.run_one()
    reply = one.send_delete_topic("u")
    one.settle()
    assert reply.answer.deleted
    one.kill()
    assert one.shard.topic_names() == ["t"]
