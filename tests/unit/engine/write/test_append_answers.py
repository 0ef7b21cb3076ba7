from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.requests import AppendAnswer, AppendRequest
from topicsd.engine.write.append import append


@pytest.mark.parametrize(
    ("durability", "after_write"), [("ephemeral", True), ("memory", True), ("disk", True), ("fsync", False)]
)
def test_a_write_is_visible_and_answered_when_its_class_is_satisfied(
    durability: str, after_write: bool
) -> None:
    one = OneShard()
    one.put("t", durability=durability)
    reply = one.send_append("t", 1)
    assert not reply.has_answer
    one.loop.run_until_idle()
    assert reply.has_answer is after_write
    assert one.state("t").head_seq == int(after_write)
    one.settle()
    assert (reply.answer.durability, one.state("t").head_seq) == (durability, 1)


def test_a_write_of_a_weaker_class_does_not_overtake_one_that_waits() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    put = one.send_put("t", durability="disk")
    first = one.send_append("t", 1)
    one.loop.run_until_idle()
    second = one.send_append("t", 2)
    one.loop.run_until_idle()
    assert [reply.has_answer for reply in (put, first, second)] == [False] * 3
    one.settle()
    assert (put.answer.config.durability, first.answer.first_seq, second.answer.first_seq) == ("disk", 1, 2)
    third = one.send_append("t", 3)
    one.loop.run_until_idle()
    assert third.has_answer


def test_a_write_to_a_topic_whose_creation_is_on_its_way_does_not_overtake_it() -> None:
    one = OneShard()
    put = one.send_put("t")
    reply = one.send_append("t", 1)
    one.loop.run_until_idle()
    assert (put.has_answer, reply.has_answer) == (False, False)
    one.settle()
    assert (put.answer.created, reply.answer.created, reply.answer.first_seq) == (True, False, 1)


def test_the_topics_of_a_shard_do_not_wait_for_each_other() -> None:
    one = OneShard()
    one.put("fsync", durability="fsync")
    one.put("disk")
    slow, quick = one.send_append("fsync", 1), one.send_append("disk", 1)
    one.loop.run_until_idle()
    assert (slow.has_answer, quick.has_answer) == (False, True)
    one.settle()
    assert slow.has_answer


def test_an_answer_may_set_off_the_next_write() -> None:
    one = OneShard()
    one.put("t")
    last = RecordedReply()

    def again(answer: AppendAnswer) -> None:
        if answer.last_seq == 50:
            last(answer)
        else:
            append(one.shard.state, "t", AppendRequest([record(1)]), again)

    append(one.shard.state, "t", AppendRequest([record(1)]), again)
    one.settle()
    assert last.answer.head_seq == 50
    assert one.seqs("t") == list(range(1, 51))


def test_a_failing_reply_does_not_stop_other_replies() -> None:
    def fails(answer: object) -> None:
        raise RuntimeError("the client is gone")

    for durability in ("disk", "fsync"):
        one = OneShard()
        one.put("t", durability=durability)
        append(one.shard.state, "t", AppendRequest([record(1)]), fails)
        reply = one.send_append("t", 2)
        one.settle()
        assert reply.answer.first_seq == 2
        assert one.seqs("t") == [1, 2]


def test_after_a_failed_disk_every_write_is_refused() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.disk.fail("sync_data")
    in_doubt = one.send_append("t", 1)
    one.settle()
    assert in_doubt.code == "storage_failed"
    assert len(one.failures) == 1
    for reply in (
        one.send_append("t", 2),
        one.send_append("new", 1),
        one.send_put("t", ttl_ms=1),
        one.send_put("new"),
        one.send_delete("t", before_seq=1),
        one.send_delete_topic("t"),
    ):
        one.settle()
        assert reply.code == "storage_failed"
    assert one.seqs("t") == []


def test_more_than_may_wait_is_throttled_and_gets_in_later() -> None:
    one = OneShard(max_waiting_requests=2)
    one.put("t", durability="fsync")
    replies = [one.send_append("t", 1), one.send_append("t", 2)]
    one.loop.run_until_idle()
    refused = one.send_append("t", 3)
    assert (refused.code, refused.answer.retry_after_ms) == ("throttled", 1000)
    one.settle()
    assert [answer.answer.first_seq for answer in replies] == [1, 2]
    assert one.append("t", 3).first_seq == 3
