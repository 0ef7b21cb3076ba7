from __future__ import annotations

from random import Random

import pytest

from shared.contract.topic_config import TopicConfigPatch
from tests.harness.shard.one_shard import OneShard
from topicsd.engine import topic_create


def test_a_topic_that_is_not_there_is_created_with_the_configuration_of_the_write() -> None:
    one = OneShard()
    patch = TopicConfigPatch(durability="fsync", cap_records=2)
    answer = one.append("t", 1, 2, 3, config=patch)
    assert (answer.created, answer.durability, answer.last_seq) == (True, "fsync", 3)
    assert one.state("t").config.cap_records == 2
    assert one.seqs("t", 1) == [2, 3]
    one.append("t", 4, config=TopicConfigPatch(cap_records=9))
    assert one.state("t").config.cap_records == 2


def test_a_write_that_creates_is_answered_when_the_creation_is_on_the_disk() -> None:
    one = OneShard()
    reply = one.send_append("t", 1)
    one.loop.run_until_idle()
    assert not reply.has_answer
    assert one.shard.topic_names() == []
    one.settle()
    assert reply.answer.created
    for seed in range(10):
        other = OneShard(disk=one.disk.after_power_cut(Random(seed)))
        assert other.seqs("t") == [1]


def test_only_the_first_of_two_writes_created_the_topic() -> None:
    one = OneShard()
    replies = [one.send_append("t", number) for number in range(3)]
    one.settle()
    assert [answer.answer.created for answer in replies] == [True, False, False]
    assert [answer.answer.first_seq for answer in replies] == [1, 2, 3]


def test_a_write_may_ask_not_to_create() -> None:
    one = OneShard()
    assert one.refused_append("t", 1, create=False).code == "topic_not_found"
    assert one.shard.topic_names() == []
    one.append("t", 1, create=True)
    assert one.append("t", 2, create=False).first_seq == 2


def test_a_name_that_is_none_is_refused() -> None:
    one = OneShard()
    for name in ("", ".hidden", "a b", "x" * 256):
        refusal = one.refused_append(name, 1)
        assert (refusal.code, refusal.detail) == ("invalid_request", {"field": "topic"})


def test_a_configuration_that_is_refused_creates_nothing() -> None:
    one = OneShard()
    refusal = one.refused_append("t", 1, config=TopicConfigPatch(cap_records=-1))
    assert (refusal.code, refusal.detail) == ("invalid_request", {"field": "config.cap_records"})
    assert one.shard.topic_names() == []


def test_two_names_with_one_id_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_create, "topic_id", lambda name: 7)
    one = OneShard()
    one.append("first", 1)
    for reply in (one.send_append("second", 1), one.send_put("second")):
        assert reply.code == "topic_exists_incompatible"
        assert reply.answer.detail == {"reason": "id_collision"}
        assert '"first"' in reply.answer.message
    assert one.shard.topic_names() == ["first"]
    one.delete_topic("first")
    assert one.append("second", 1).created


def test_the_number_of_topics_is_bounded_and_only_new_ones_count() -> None:
    one = OneShard(max_topics=2)
    one.append("a", 1)
    one.put("b")
    refusal = one.refused_append("c", 1)
    assert (refusal.code, refusal.detail) == ("throttled", {"limit": "max_topics", "max": 2})
    one.append("a", 2)
    one.put("b", ttl_ms=5)
    one.delete_topic("a")
    assert one.append("c", 1).created


def test_no_bound_of_topics_is_none() -> None:
    one = OneShard(max_topics=0)
    for number in range(30):
        one.append(f"t{number}", 1)
    assert len(one.shard.topic_names()) == 30
