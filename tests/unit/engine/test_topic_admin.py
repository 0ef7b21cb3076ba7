from __future__ import annotations

from random import Random

import pytest

from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfig
from shared.settings.settings import Settings
from tests.harness.shard.one_shard import OneShard
from topicsd.engine.requests import TopicPut
from topicsd.engine.topic_admin import topic_state


def test_a_put_creates_a_topic_and_the_next_one_finds_it() -> None:
    one = OneShard()
    config = TopicConfig(ttl_ms=5000, durability="fsync")
    assert one.put("t", ttl_ms=5000, durable=True) == TopicPut("t", True, config)
    assert one.put("t", ttl_ms=5000) == TopicPut("t", False, config)
    assert one.state("t").config == config
    assert one.shard.topic_names() == ["t"]


def test_a_put_is_answered_when_it_is_on_the_disk_whatever_the_class() -> None:
    one = OneShard()
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        reply = one.send_put(durability, durability=durability)
        one.loop.run_until_idle()
        assert not reply.has_answer
        one.settle()
        assert reply.answer.created
    for seed in range(5):
        other = OneShard(disk=one.disk.after_power_cut(Random(seed)))
        assert other.shard.topic_names() == ["disk", "ephemeral", "fsync", "memory"]


def test_a_put_merges_over_what_is_there() -> None:
    one = OneShard()
    one.put("t", cap_records=5, priority=9000)
    answer = one.put("t", ttl_ms=7)
    assert (answer.config.cap_records, answer.config.ttl_ms, answer.config.priority) == (5, 7, 1000)
    one.kill()
    assert one.state("t").config == answer.config


def test_puts_on_their_way_build_on_each_other() -> None:
    one = OneShard()
    replies = [
        one.send_put("t", cap_records=5),
        one.send_put("t", ttl_ms=7),
        one.send_put("t", priority=3),
        one.send_put("t", ttl_ms=8),
    ]
    one.settle()
    assert [answer.answer.created for answer in replies] == [True, False, False, False]
    final = one.state("t").config
    assert (final.cap_records, final.ttl_ms, final.priority) == (5, 8, 3)
    assert replies[1].answer.config == TopicConfig(cap_records=5, ttl_ms=7)
    one.kill()
    assert one.state("t").config == final


def test_a_put_that_changes_nothing_writes_nothing() -> None:
    one = OneShard()
    one.put("t", cap_records=5)
    before = one.disk.calls
    assert one.put("t", cap_records=5).created is False
    assert one.disk.calls == before


def test_a_put_that_changes_something_back_is_not_lost_behind_the_one_on_its_way() -> None:
    one = OneShard()
    one.put("t", cap_records=5)
    one.send_put("t", cap_records=6)
    back = one.send_put("t", cap_records=5)
    one.settle()
    assert back.answer.config.cap_records == 5
    assert one.state("t").config.cap_records == 5


def test_a_put_that_is_refused_changes_nothing() -> None:
    one = OneShard()
    one.put("t", cap_records=5)
    for patch, code in (
        ({"cap_records": -1}, "invalid_request"),
        ({"type": "queue"}, "topic_exists_incompatible"),
        ({"dead_letter": "t"}, "invalid_request"),
    ):
        assert one.send_put("t", **patch).code == code
    assert one.send_put("bad name").code == "invalid_request"
    assert one.state("t").config == TopicConfig(cap_records=5)


def test_a_put_for_which_there_is_no_room_takes_itself_back() -> None:
    one = OneShard(wal_file_bytes=2048)
    one.put("t", cap_records=5)
    one.disk.fail("pwrite", error=28, forever=True)
    replies = [one.send_put("t", cap_records=6), one.send_put("t", ttl_ms=7), one.send_put("new")]
    one.settle()
    assert [answer.code for answer in replies] == ["storage_full"] * 3
    assert one.shard.topic_names() == ["t"]
    one.disk.clear_faults()
    one.pass_time(6000)
    assert one.put("t", priority=1).config == TopicConfig(cap_records=5, priority=1)
    assert one.put("new").created


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("other", ["memory", "disk", "fsync"])
def test_a_class_may_be_changed_and_the_records_stay(durability: str, other: str) -> None:
    one = OneShard()
    one.put("t", durability=durability)
    one.append("t", 1, 2)
    assert one.put("t", durability=other).config.durability == other
    assert one.append("t", 3).durability == other
    one.kill()
    assert one.seqs("t") == [1, 2, 3]
    assert one.append("t", 4).first_seq == 4


@pytest.mark.parametrize("other", ["memory", "disk", "fsync"])
def test_a_topic_is_ephemeral_for_life_or_never(other: str) -> None:
    one = OneShard()
    one.put("t", durability="ephemeral")
    one.put("u", durability=other)
    assert one.send_put("t", durability=other).code == "topic_exists_incompatible"
    assert one.send_put("u", durability="ephemeral").code == "topic_exists_incompatible"
    assert one.put("t", ttl_ms=5).config.durability == "ephemeral"


def test_the_durable_shorthand_sets_the_class() -> None:
    one = OneShard()
    assert one.put("t", durable=True).config.durability == "fsync"
    assert one.put("t", durable=False).config.durability == "disk"
    assert one.put("t", durable=False, durability="memory").config.durability == "memory"


def test_what_was_appended_meanwhile_has_the_class_it_was_appended_under() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    put = one.send_put("t", durability="disk")
    reply = one.send_append("t", 1)
    one.settle()
    assert reply.answer.durability == "fsync"
    assert put.answer.config.durability == "disk"


# -- how it is ----------------------------------------------------------------------------------------------


def test_the_state_of_an_empty_topic() -> None:
    one = OneShard()
    one.put("t")
    state = one.state("t")
    assert (state.head_seq, state.earliest_seq, state.evict_floor) == (0, 1, 1)
    assert (state.count, state.bytes, state.durable_seq) == (0, 0, 0)


def test_a_topic_that_is_not_there_has_no_state() -> None:
    one = OneShard()
    answer = topic_state(one.shard.state, "t")
    assert isinstance(answer, Refusal)
    assert answer.code == "topic_not_found"
    one.send_append("t", 1)
    assert isinstance(topic_state(one.shard.state, "t"), Refusal), "it is not on the disk yet"


def test_the_state_counts_what_is_alive() -> None:
    one = OneShard()
    one.append("t", *range(10))
    one.delete("t", before_seq=4)
    state = one.state("t")
    assert (state.topic, state.head_seq, state.earliest_seq, state.evict_floor, state.count) == (
        "t",
        10,
        4,
        1,
        7,
    )
    assert state.bytes == sum(one.topic("t").run.lengths[3:])
    assert state.last_write_ts == one.clock.now_ms()


def test_names_come_sorted_and_only_of_topics_that_are_on_the_disk() -> None:
    one = OneShard()
    for name in ("b", "a", "c"):
        one.append(name, 1)
    one.send_append("d", 1)
    assert one.shard.topic_names() == ["a", "b", "c"]
    one.settle()
    assert one.shard.topic_names() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("default", "undurable"), [("memory", "memory"), ("fsync", "disk"), ("disk", "disk")]
)
def test_a_topic_without_a_class_gets_that_of_the_settings(default: str, undurable: str) -> None:
    one = OneShard(default_durability=default)
    one.append("appended", 1)
    assert one.state("appended").config.durability == default
    assert one.put("put").config.durability == default
    assert one.put("named", durability="ephemeral").config.durability == "ephemeral"
    assert one.put("durable", durable=True).config.durability == "fsync"
    assert one.put("undurable", durable=False).config.durability == undurable
    # It is written down with the topic: another default changes none that exists.
    one.settings = Settings(wal_file_bytes=one.settings.wal_file_bytes)
    one.restart()
    assert one.state("appended").config.durability == default
