"""A seq is never given twice, whatever the machine loses; and an idle topic reports no loss."""

from __future__ import annotations

from random import Random

import pytest

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.write.seq_ceiling import STEP_MIN


def heads_after_cuts(one: OneShard, name: str, seeds: int = 20) -> set[int]:
    """The heads that a power cut now may leave."""
    disk = one.disk
    heads = set()
    for seed in range(seeds):
        other = OneShard(disk=disk.after_power_cut(Random(seed)), clock=one.clock)
        heads.add(other.state(name).head_seq)
    return heads


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
def test_no_seq_is_given_twice_though_the_machine_lost_its_records(durability: str) -> None:
    one = OneShard()
    one.put("t", durability=durability)
    given = 0
    for cycle in range(4):
        for number in range(100):
            given = one.append("t", number).last_seq
        one.cut_power(cycle)
        assert one.append("t", "after").first_seq > given


def test_a_class_that_waits_for_the_disk_needs_no_ceiling() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.append("t", *range(1000))
    assert one.topic("t").ceiling == 0
    assert heads_after_cuts(one, "t") == {1000}


def test_a_ceiling_is_raised_before_the_head_comes_to_it_and_no_write_waits_for_that() -> None:
    one = OneShard()
    one.put("t")
    for number in range(3000):
        reply = one.send_append("t", number)
        one.loop.run_until_idle()
        assert reply.has_answer, f"write {number} had to wait"
        assert one.topic("t").ceiling >= one.state("t").head_seq
        if not number % 5:
            one.pass_time(10)
    assert all(head >= 3000 for head in heads_after_cuts(one, "t"))


def test_a_busy_topic_has_its_ceiling_raised_by_its_rate() -> None:
    one = OneShard()
    one.put("t")
    for _ in range(40):
        one.append("t", *range(100))
        one.pass_time(50)
    room = one.topic("t").ceiling - one.state("t").head_seq
    assert room > 4 * STEP_MIN, "half of two seconds of 2000 records a second is left at least"


def test_a_burst_beyond_the_ceiling_waits_for_the_sync_that_raises_it() -> None:
    one = OneShard()
    one.put("t")
    room = one.topic("t").ceiling
    within = one.send_append("t", *range(room))
    beyond = one.send_append("t", "beyond")
    one.loop.run_until_idle()
    assert (within.has_answer, beyond.has_answer) == (True, False)
    assert one.state("t").head_seq == room
    one.settle()
    assert beyond.answer.first_seq == room + 1
    assert one.topic("t").ceiling > room


def test_one_large_write_that_creates_its_topic_is_below_its_ceiling() -> None:
    one = OneShard()
    one.append("t", *range(5000))
    assert one.topic("t").ceiling >= 5000 + STEP_MIN
    assert heads_after_cuts(one, "t") <= {one.topic("t").ceiling}


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
def test_an_idle_topic_has_its_ceiling_at_its_head(durability: str) -> None:
    one = OneShard()
    one.put("t", durability=durability)
    one.append("t", 1, 2, 3)
    one.pass_time(2500)
    assert one.topic("t").ceiling == 3
    assert heads_after_cuts(one, "t") == {3}
    assert one.append("t", 4).first_seq == 4


def test_a_write_after_a_rest_is_above_its_ceiling_and_waits_for_the_new_one() -> None:
    one = OneShard()
    one.append("t", 1)
    one.pass_time(2500)
    reply = one.send_append("t", 2)
    one.loop.run_until_idle()
    assert not reply.has_answer
    one.settle()
    assert reply.answer.first_seq == 2
    assert one.topic("t").ceiling >= 2 + STEP_MIN
    after = one.send_append("t", 3)
    one.loop.run_until_idle()
    assert after.has_answer


def test_many_topics_are_brought_down_a_few_at_a_time() -> None:
    one = OneShard(max_topics=0, wal_file_bytes=4 << 20)
    for number in range(1500):
        one.send_append(f"t{number}", 1)
    one.settle()
    one.pass_time(5000)
    assert {topic.ceiling for topic in one.shard.state.topics.values()} == {1}
    assert one.loop.timer_count == 1, "that of the next checkpoint"


def test_a_busy_topic_keeps_its_ceiling_above_its_head() -> None:
    one = OneShard()
    one.append("t", 0)
    for number in range(100):
        one.pass_time(50)
        one.append("t", number)
        assert one.topic("t").ceiling > one.state("t").head_seq or not number


@pytest.mark.parametrize("changes", [["fsync"], ["fsync", "disk"], ["fsync", "memory", "fsync", "disk"]])
def test_changes_of_the_class_on_their_way_never_let_a_seq_be_given_twice(changes: list[str]) -> None:
    one = OneShard()
    one.append("t", *range(10))
    for durability in changes:
        one.send_put("t", durability=durability)
        one.send_append("t", durability)
    one.send_put("t", ttl_ms=10**12)
    one.settle()
    given = 0
    for number in range(50):
        given = one.append("t", number).last_seq
    assert all(head >= given for head in heads_after_cuts(one, "t"))


def test_a_change_of_something_else_right_behind_a_change_of_the_class_keeps_the_ceiling() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.append("t", *range(10))
    one.send_put("t", durability="disk")
    one.send_put("t", ttl_ms=10**12)
    one.settle()
    given = one.append("t", "acked and not synced").last_seq
    assert all(head >= given for head in heads_after_cuts(one, "t"))


def test_a_planned_end_leaves_an_exact_head_in_every_class() -> None:
    one = OneShard()
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        one.put(durability, durability=durability)
        one.append(durability, *range(7))
    one.close()
    for disk in (one.disk, one.disk.after_reboot(), one.disk.after_power_cut(Random(1)), one.disk.copied()):
        other = OneShard(disk=disk)
        for durability in ("ephemeral", "memory", "disk", "fsync"):
            state = other.state(durability)
            assert (state.head_seq, other.topic(durability).lost.ranges) == (7, [])
            assert state.evict_floor == (8 if durability == "ephemeral" else 1)
        other.close()


def test_a_killed_process_leaves_an_exact_head_where_the_log_has_it() -> None:
    one = OneShard()
    for durability in ("memory", "disk", "fsync"):
        one.put(durability, durability=durability)
        one.append(durability, *range(7))
    for _ in range(3):
        one.kill()
        for durability in ("memory", "disk", "fsync"):
            assert one.seqs(durability) == list(range(1, 8))
            assert one.topic(durability).lost.ranges == []


def test_a_copied_directory_is_no_proof_that_nothing_is_missing() -> None:
    one = OneShard()
    one.append("t", *range(7))
    other = OneShard(disk=one.disk.copied())
    assert other.seqs("t") == list(range(1, 8))
    assert other.topic("t").lost.ranges == [(8, one.topic("t").ceiling, "crash")]


def test_an_ephemeral_topic_says_that_everything_is_gone() -> None:
    one = OneShard()
    one.put("t", durability="ephemeral")
    one.append("t", *range(7))
    one.kill()
    state = one.state("t")
    assert state.head_seq >= 7
    assert (state.evict_floor, state.earliest_seq, state.count) == (state.head_seq + 1, state.head_seq + 1, 0)
    tombstone = one.read("t", 3).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (4, state.head_seq, "crash")
    assert one.append("t", "after").first_seq == state.head_seq + 1
    assert one.read("t", 3).tombstone is not None
    assert one.seqs("t", state.head_seq) == [state.head_seq + 1]
