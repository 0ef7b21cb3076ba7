from __future__ import annotations

from array import array

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.records.tail_run import TRIM_RECORDS


def durable(one: OneShard, name: str = "t") -> int:
    return one.state(name).durable_seq


def test_what_was_acked_after_a_sync_is_durable() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    assert durable(one) == 0
    one.append("t", 1, 2)
    assert durable(one) == 2


def test_what_was_only_written_is_durable_with_the_background_sync() -> None:
    one = OneShard()
    one.append("t", 1, 2)
    one.append("t", 3)
    assert durable(one) == 2
    one.pass_time(60)
    assert durable(one) == 3


def test_a_sync_that_another_topic_asked_for_counts() -> None:
    one = OneShard()
    one.put("fsync", durability="fsync")
    one.append("t", 1)
    one.pass_time(100)
    one.append("t", 2)
    assert durable(one) == 1
    one.append("fsync", 1)
    assert durable(one) == 2


def test_an_ephemeral_topic_is_never_on_the_disk() -> None:
    one = OneShard()
    one.put("t", durability="ephemeral")
    one.append("t", 1)
    one.pass_time(5000)
    assert durable(one) == 0


def test_deleting_and_evicting_leave_it_where_it_is() -> None:
    one = OneShard()
    one.put("t", cap_records=3)
    one.append("t", *range(10))
    one.pass_time(60)
    one.delete("t", before_seq=100)
    assert durable(one) == 10


def test_everything_that_was_found_by_a_start_is_durable() -> None:
    one = OneShard()
    one.append("t", 1)
    one.append("t", 2, 3)
    one.kill()
    assert durable(one) == 3
    one.append("t", 4)
    assert durable(one) == 3


def test_behind_a_lost_range_it_is_that_of_what_came_since() -> None:
    one = OneShard()
    one.append("t", 1)
    one.pass_time(60)
    one.reboot()
    head = one.state("t").head_seq
    assert head > 1
    assert durable(one) == head
    one.append("t", "waits for the ceiling")
    one.append("t", 3)
    assert durable(one) == head + 1
    one.pass_time(60)
    assert durable(one) == head + 2


def test_it_is_never_more_than_what_a_power_cut_leaves() -> None:
    one = OneShard(wal_file_bytes=4096)
    one.put("t")
    for number in range(200):
        one.append("t", record(f"payload {number}", tag="x"))
        if not number % 13:
            one.pass_time(30)
        if number % 50 == 49:
            promised = durable(one)
            for seed in range(10):
                other = OneShard(clock=one.clock)
                other.disk = one.disk
                other.cut_power(seed)
                assert other.seqs("t")[:promised] == list(range(1, promised + 1))


def test_a_record_whose_run_was_ended_by_a_checkpoint_is_durable_no_sooner_than_before() -> None:
    one = OneShard()
    one.append("t", 1)
    one.settle()
    one.shard.start_checkpoint()
    one.loop.run_until_idle()
    one.send_append("t", 2)
    one.loop.run_until_idle()
    one.thread.run_one()
    one.loop.run_until_idle()
    assert one.topic("t").run.lengths == array("I")
    assert (one.state("t").head_seq, one.state("t").durable_seq) == (2, 1)
    one.settle()
    one.pass_time(60)
    assert one.state("t").durable_seq == 2


def test_records_evicted_before_their_sync_are_not_durable_when_their_run_is_dropped() -> None:
    one = OneShard()
    one.put("t", cap_records=1)
    one.append("t", 1)
    one.settle()
    one.shard.start_checkpoint()
    one.loop.run_until_idle()
    one.send_append("t", 2)
    one.loop.run_until_idle()
    one.thread.run_one()
    one.loop.run_until_idle()
    assert [run.first_seq for run in one.topic("t").runs] == [1, 3]
    one.send_append("t", 3)
    one.loop.run_until_idle()
    assert [run.first_seq for run in one.topic("t").runs] == [3]
    assert (one.state("t").head_seq, durable(one)) == (3, 1)
    one.settle()
    one.pass_time(60)
    assert durable(one) == 3


def send_many(one: OneShard) -> None:
    one.send_append("t", *[2] * 512)
    one.loop.run_until_idle()


def test_records_evicted_before_their_sync_are_not_durable_when_the_index_is_trimmed() -> None:
    one = OneShard()
    one.put("t", cap_records=1)
    one.append("t", *[1] * 512)
    one.pass_time(60)
    while one.topic("t").run.first_seq == 1:
        assert durable(one) == 512
        send_many(one)
    assert one.state("t").head_seq > TRIM_RECORDS
    assert durable(one) == 512
    one.settle()
    one.pass_time(60)
    assert durable(one) == one.state("t").head_seq


def test_it_never_falls_while_records_are_evicted_between_syncs() -> None:
    one = OneShard()
    one.put("t", cap_records=10)
    known = 0
    for number in range(100):
        send_many(one)
        if number % 17 == 0:
            one.pass_time(60)
            assert durable(one) == one.state("t").head_seq
        assert durable(one) >= known
        known = durable(one)
