from __future__ import annotations

from shared.contract.topic_config import TopicConfig
from tests.harness.shard.one_shard import OneShard
from topicsd.engine.requests import TopicDeleted


def test_a_deleted_topic_is_gone_over_every_end() -> None:
    one = OneShard()
    one.append("t", 1, 2)
    one.append("other", 1)
    assert one.delete_topic("t") == TopicDeleted("t", True)
    assert one.delete_topic("t") == TopicDeleted("t", False)
    for end in ("kill", "restart", "reboot", "cut_power"):
        getattr(one, end)()
        assert one.shard.topic_names() == ["other"]
        assert one.refused_read("t").code == "topic_not_found"


def test_a_topic_created_again_is_a_new_one() -> None:
    one = OneShard()
    one.put("t", cap_records=2, durability="fsync")
    one.append("t", 1, 2, 3)
    before = one.state("t")
    one.delete_topic("t")
    answer = one.append("t", "new")
    after = one.state("t")
    assert (answer.first_seq, answer.created) == (1, True)
    assert after.epoch > before.epoch
    assert (after.config, after.evict_floor, after.count) == (TopicConfig(), 1, 1)
    one.kill()
    assert one.state("t") == after
    assert [record.data for record in one.read("t").records] == [b'"new"']


def test_a_topic_with_records_is_not_deleted_as_an_empty_one() -> None:
    one = OneShard()
    one.append("t", 1)
    reply = one.send_delete_topic("t", if_empty=True)
    assert (reply.code, reply.answer.detail) == ("topic_not_empty", {"count": 1})
    one.delete("t", before_seq=5)
    assert one.delete_topic("t", if_empty=True).deleted


def test_a_topic_is_not_empty_while_records_are_on_their_way() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.send_append("t", 1)
    assert one.send_delete_topic("t", if_empty=True).code == "topic_not_empty"
    one.settle()


def test_a_topic_of_which_all_has_expired_is_empty() -> None:
    one = OneShard()
    one.put("t", ttl_ms=1000)
    one.append("t", 1)
    one.clock.advance(1001)
    assert one.delete_topic("t", if_empty=True).deleted
    one.kill()
    assert one.shard.topic_names() == []


def test_what_comes_while_a_deletion_is_on_its_way_is_for_the_next_topic_of_that_name() -> None:
    one = OneShard()
    one.append("t", "old")
    epoch = one.state("t").epoch
    deletion = one.send_delete_topic("t")
    one.loop.run_until_idle()
    replies = [
        one.send_append("t", "new"),
        one.send_put("t", cap_records=3),
        one.send_delete("t", before_seq=2),
        one.send_append("t", "newer"),
    ]
    assert [answer.has_answer for answer in replies] == [False] * 4
    assert one.seqs("t") == [1], "it is there until its deletion is on the disk"
    one.settle()
    assert deletion.answer.deleted
    append, put, _, second = (answer.answer for answer in replies)
    assert (append.first_seq, append.created) == (1, True)
    assert (put.created, put.config.cap_records) == (False, 3)
    assert second.first_seq == 2
    assert one.state("t").epoch > epoch
    before = one.read("t", 0)
    one.kill()
    assert one.read("t", 0) == before


def test_a_second_deletion_on_the_way_finds_nothing_left_to_delete() -> None:
    one = OneShard()
    one.append("t", 1)
    replies = [one.send_delete_topic("t") for _ in range(3)]
    one.settle()
    assert [answer.answer.deleted for answer in replies] == [True, False, False]


def test_a_topic_may_be_deleted_and_created_again_and_again_in_one_turn() -> None:
    one = OneShard()
    one.append("t", 0)
    epochs = {one.state("t").epoch}
    replies = []
    for number in range(5):
        replies += [one.send_delete_topic("t"), one.send_append("t", number)]
    one.settle()
    assert [answer.answer.deleted for answer in replies[::2]] == [True] * 5
    assert [answer.answer.first_seq for answer in replies[1::2]] == [1] * 5
    assert one.state("t").epoch not in epochs
    one.kill()
    assert [record.data for record in one.read("t").records] == [b"4"]


def test_a_deletion_behind_writes_on_their_way_lets_them_finish() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    reply = one.send_append("t", 1)
    deletion = one.send_delete_topic("t")
    one.settle()
    assert (reply.answer.first_seq, deletion.answer.deleted) == (1, True)
    assert one.shard.topic_names() == []
    one.kill()
    assert one.shard.topic_names() == []


def test_waiting_requests_continue_when_a_deletion_has_no_room() -> None:
    one = OneShard()
    one.append("t", 1)
    one.pass_time(100)
    one.disk.fail("pwrite", error=28)
    deletion = one.send_delete_topic("t")
    waited = one.send_append("t", 2)
    one.settle()
    assert deletion.code == "storage_full"
    assert (waited.answer.first_seq, waited.answer.created) == (2, False)
    one.pass_time(6000)
    one.kill()
    assert one.seqs("t") == [1, 2]


def test_after_a_failed_disk_those_who_waited_are_refused_with_the_deletion() -> None:
    one = OneShard()
    one.append("t", 1)
    one.pass_time(100)
    deletion = one.send_delete_topic("t")
    waited = [one.send_append("t", 2), one.send_put("t", ttl_ms=1), one.send_delete("t", before_seq=1)]
    one.disk.fail("sync_data")
    one.settle()
    assert [reply.code for reply in (deletion, *waited)] == ["storage_failed"] * 4


def test_reads_and_age_while_a_deletion_is_on_its_way_leave_a_log_that_can_be_read() -> None:
    one = OneShard()
    one.put("t", ttl_ms=1000)
    one.append("t", 1, 2)
    one.pass_time(500)
    one.clock.advance(1001)
    one.send_delete_topic("t")
    one.loop.run_until_idle()
    assert one.read("t").tombstone is not None
    one.loop.advance(3000)
    one.settle()
    one.pass_time(3000)
    one.kill()
    assert one.shard.topic_names() == []
