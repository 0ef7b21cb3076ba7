"""What is asked while a checkpoint runs, and a start after it, come out as if there had been none."""

from __future__ import annotations

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS


def test_records_that_come_while_a_floor_is_synced_are_replayed_once() -> None:
    one = OneShard()
    one.put("capped", cap_records=3)
    for number in range(6):
        one.append("capped", record(number, tag=f"tag-{number}"))
    one.delete("capped", tag="tag-4")
    one.delete("capped", before_seq=100)
    one.append("other", 1)
    one.shard.start_checkpoint()
    for _ in range(60):
        if one.shard.checkpoints.is_running:
            one.send_append("other", 1)
        one.turn()
    one.settle()
    before = one.seqs("other")
    one.kill()
    assert one.seqs("other") == before


def test_a_tag_that_was_copied_while_the_others_were_looked_up_is_found() -> None:
    one = OneShard()
    one.append("t", record(1, tag="a"))
    one.restart()
    for steps in range(12):
        tag = f"b-{steps}"
        one.append("t", record(2, tag=tag))
        one.shard.start_checkpoint()
        for _ in range(steps):
            one.turn()
        reply = one.send_delete("t", tag="nothing")
        one.settle()
        assert reply.code is None
        assert one.delete("t", tag=tag).deleted == 1
        one.restart()


def test_a_checkpoint_makes_no_work_for_the_next_one() -> None:
    one = OneShard(checkpoint_interval_ms=1000)
    one.put("t", cap_records=3)
    for number in range(6):
        one.append("t", record(number, tag=f"tag-{number}"))
    one.delete("t", tag="tag-4")
    one.pass_time(20_000)
    count = one.shard.checkpoints.count
    one.pass_time(20_000)
    assert one.shard.checkpoints.count == count


def test_the_first_live_seq_is_the_same_when_the_marks_came_before_the_snapshot() -> None:
    one = OneShard(segment_max_events=5)
    one.append("t", record(0, tag="a"), record(0, tag="b"), 1, 2, 3)
    one.append("t", 4)
    one.delete("t", tag="b")
    one.checkpoint()
    one.delete("t", tag="a")
    sealed = one.topic("t").runs[0]
    assert isinstance(sealed, SealedRun)
    one.shard.start_checkpoint()
    while sealed.saved_dead_count < 2:
        one.turn()
    one.kill()
    assert (one.state("t").earliest_seq, one.state("t").count) == (3, 4)


def test_a_released_log_file_is_not_synced_again() -> None:
    one = OneShard(wal_file_bytes=1 << 16)
    one.put("t", durability="fsync")

    def append() -> None:
        one.send_append("t", "x" * 20_000)
        one.loop.run_until_idle()

    def run_job() -> None:
        assert one.thread.run_one()
        one.loop.run_until_idle()

    one.append("t", 1)
    append()
    append()
    run_job()  # A sync of the first file; the next jobs: make the second file, sync the first one again.
    run_job()
    append()
    append()
    assert one.shard.log.rotations == 1
    second = one.shard.log.place
    assert second is not None
    append()
    run_job()  # A sync of the first file; the next jobs: make the third file, sync the first two.
    run_job()
    append()
    append()
    assert one.shard.log.rotations == 2
    syncs = one.shard.log.counters.syncs
    run_job()
    assert one.shard.log.counters.syncs == syncs + 1
    one.shard.state.files.drop_before(second.file)
    one.settle()
    assert one.failures == []


def test_what_has_moved_to_the_cold_directory_goes_with_its_topic() -> None:
    one = OneShard(segment_max_events=5, cold_dir="/cold", hot_retain_segments=1, reader_grace_ms=0)
    one.append("t", *range(30))
    one.append("other", 1)
    one.checkpoint()
    one.pass_time(ROUND_SECONDS * 1000 + 1)
    assert any(name.startswith("/cold/segments/") for name in one.disk.all_files())
    one.delete_topic("t")
    for number in range(3):
        one.append("other", number)
        one.checkpoint()
    one.pass_time(ROUND_SECONDS * 1000 + 1)
    assert not any(name.startswith("/cold/") for name in one.disk.all_files())
