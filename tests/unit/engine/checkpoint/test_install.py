"""What happened to a topic while it was copied is true of its segments."""

from __future__ import annotations

from tests.harness.shard.one_shard import OneShard, record

NEVER_MS = 1 << 40


def copied_up_to_the_install() -> OneShard:
    """Ten records are copied, and the checkpoint waits for the sync in front of the snapshot."""
    one = OneShard(checkpoint_interval_ms=NEVER_MS, segment_max_events=4)
    one.append("t", *[record(n, tag="even" if n % 2 else "odd") for n in range(10)])
    one.shard.start_checkpoint()
    one.loop.run_until_idle()
    one.thread.run_one()
    one.loop.run_until_idle()
    while one.copy_thread.run_one():
        one.loop.run_until_idle()
    assert len(one.topic("t").runs) == 2
    return one


def test_deletes_during_the_copy_are_carried_over() -> None:
    one = copied_up_to_the_install()
    one.send_delete("t", tag="odd")
    one.settle()
    assert len(one.topic("t").runs) == 4
    assert (one.seqs("t"), one.state("t").count) == ([2, 4, 6, 8, 10], 5)
    one.kill()
    assert (one.seqs("t"), one.state("t").count) == ([2, 4, 6, 8, 10], 5)


def test_a_segment_that_the_front_has_left_meanwhile_is_not_taken_back() -> None:
    one = copied_up_to_the_install()
    one.send_delete("t", before_seq=7)
    one.settle()
    assert one.topic("t").runs[0].first_seq == 5
    assert one.seqs("t") == [7, 8, 9, 10]
    one.checkpoint()
    one.kill()
    assert (one.seqs("t"), one.state("t").count) == ([7, 8, 9, 10], 4)


def test_what_is_appended_during_the_copy_stands_behind_it() -> None:
    one = copied_up_to_the_install()
    one.send_append("t", 11)
    one.settle()
    assert one.seqs("t") == list(range(1, 12))
    one.kill()
    assert one.seqs("t") == list(range(1, 12))


def test_a_topic_that_was_deleted_and_made_again_meanwhile_keeps_nothing_of_the_old_one() -> None:
    one = copied_up_to_the_install()
    one.send_delete_topic("t")
    one.send_append("t", "new")
    one.settle()
    for _ in range(2):
        assert [record.data for record in one.read("t").records] == [b'"new"']
        one.kill()
