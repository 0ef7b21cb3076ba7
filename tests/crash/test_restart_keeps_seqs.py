"""What a start must get right besides reading the log: files half made, heads, and what may be lost.

Each of these was a defect once, found by a sweep; here each has the shortest way to it.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.harness.machine.faults import PowerCut, ProcessKilled
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import PATHS
from topicsd.log.recovery import RecoveryRefused

OUTCOMES = 20
# Of the calls that the first append of all makes: the last but the write of its batch, and its sync.
CALLS_BEFORE_BATCH = 11


def _append_until_power_goes(one: OneShard, calls: int) -> bool:
    """Whether it went, in the call behind so many."""
    one.disk.cut_power_after(calls)
    try:
        one.append("t", 1)
    except PowerCut:
        return True
    return False


def _nothing_unsynced(one: OneShard) -> MemoryDisk:
    """The outcome of a power cut in which no byte survived that was not synced."""
    outcomes = (one.disk.after_power_cut(Random(seed)) for seed in range(1000))
    return next(disk for disk in outcomes if _is_plain(one, disk))


def _is_plain(one: OneShard, disk: MemoryDisk) -> bool:
    paths = [path for path in one.disk.all_files() if path in disk.all_files()]
    return all(disk.read_file(path) == one.disk.read_media(path) for path in paths)


def test_a_shard_starts_whatever_a_power_cut_left_of_its_first_file() -> None:
    calls, went = 0, True
    while went:
        for seed in range(OUTCOMES):
            one = OneShard()
            went = _append_until_power_goes(one, calls)
            one.cut_power(seed)
            one.append("t", 2)
        calls += 1
    assert calls > CALLS_BEFORE_BATCH


def test_a_file_without_a_batch_gives_its_name_only_to_one_that_is_on_the_disk() -> None:
    first = OneShard()
    _append_until_power_goes(first, CALLS_BEFORE_BATCH)
    header_only = _nothing_unsynced(first)
    calls, went = 0, True
    while went:
        for seed in range(OUTCOMES):
            one = OneShard(disk=header_only.after_process_kill())
            went = _append_until_power_goes(one, calls)
            one.cut_power(seed)
            one.append("t", 2)
        calls += 1


def _shard_with_a_lost_tail() -> tuple[OneShard, int]:
    """Of class disk, acked and not synced when the power goes; and how far seqs were acked."""
    one = OneShard()
    one.append("t", 1)
    one.pass_time(60)
    one.append("t", *range(20))
    one.disk.cut_power_after(0)
    acked = one.state("t").head_seq
    one.disk = _nothing_unsynced(one)
    return one, acked


def test_a_process_killed_before_it_noted_a_loss_does_not_take_the_head_for_exact() -> None:
    calls = 0
    while True:
        one, acked = _shard_with_a_lost_tail()
        one.disk.kill_process_after(calls)
        try:
            one.open(one.disk)
        except ProcessKilled:
            one.kill()
            assert one.append("t", 1).first_seq > acked, f"killed in call {calls + 1} of the start"
            calls += 1
        else:
            break
    assert calls > CALLS_BEFORE_BATCH


def test_a_start_without_room_to_note_a_loss_is_refused_and_the_next_one_notes_it() -> None:
    one, acked = _shard_with_a_lost_tail()
    one.disk.space_bytes = one.disk.used_bytes + 4096
    with pytest.raises(RecoveryRefused, match="disk full"):
        one.open(one.disk)
    disk = one.disk.after_process_kill()
    disk.space_bytes = None
    one.open(disk)
    assert one.append("t", 1).first_seq > acked
    one.kill()
    assert one.append("t", 1).first_seq > acked


def test_a_shard_that_knows_its_heads_starts_on_a_full_disk() -> None:
    one = OneShard()
    one.append("t", 1)
    disk = one.disk.after_process_kill()
    disk.space_bytes = disk.used_bytes
    one.open(disk)
    assert one.seqs("t") == [1]
    assert one.refused_append("t", 2).code == "storage_full"
    disk.space_bytes = None
    one.pass_time(5100)
    assert one.append("t", 2).first_seq == 2


def test_a_ceiling_in_the_log_never_falls_below_seqs_that_need_no_sync() -> None:
    one = OneShard()
    one.append("t", 1)
    # A burst raises the ceiling by thousands, and slow writes afterwards would raise it by hundreds.
    for _ in range(4):
        one.append("t", *range(1000))
        one.pass_time(60)
    ceiling = one.topic("t").ceiling
    while one.topic("t").ceiling_logged >= ceiling and one.state("t").head_seq < ceiling - 1000:
        one.append("t", *range(100))
        one.pass_time(900)
    # Acked at once, as it is below the ceiling; the frames of the raise are with it and not synced either.
    one.append("t", *range(700))
    acked = one.state("t").head_seq
    one.open(_nothing_unsynced(one))
    assert one.append("t", 1).first_seq > acked


def test_a_ceiling_that_was_raised_behind_a_change_of_class_still_holds_after_it() -> None:
    one = OneShard()
    one.append("t", 1)
    one.send_put("t", durability="fsync")
    changed = one.send_put("t", durability="disk")
    one.loop.run_until_idle()
    appended = one.send_append("t", *range(200))
    one.settle()
    assert changed.has_answer
    assert appended.has_answer
    one.append("t", 1)
    one.pass_time(60)
    one.append("t", *range(1000))
    acked = one.state("t").head_seq
    one.open(_nothing_unsynced(one))
    assert one.append("t", 1).first_seq > acked


def test_an_idle_topic_whose_caps_were_changed_reports_no_loss() -> None:
    one = OneShard()
    one.append("t", 1)
    one.pass_time(1500)
    one.put("t", cap_records=10)
    one.append("other", 1)
    one.pass_time(1500)
    one.cut_power()
    assert one.read("t").tombstone is None
    assert one.state("t").head_seq == 1


def test_age_takes_nothing_young_that_stands_in_front_of_a_lost_range() -> None:
    one = OneShard()
    one.put("t", ttl_ms=60_000)
    one.append("t", 1, 2, 3)
    one.pass_time(60)
    one.append("t", 4)
    one.open(_nothing_unsynced(one))
    assert one.append("t", 5).first_seq > 4
    assert one.seqs("t") == [1, 2, 3]
    one.pass_time(60_100)
    assert one.seqs("t") == []


@pytest.mark.parametrize("damage", ["other instance", "header"])
def test_a_start_that_is_refused_leaves_the_directory_free(damage: str) -> None:
    one = OneShard()
    one.append("t", 1)
    one.close()
    (path,) = one.wal_files()
    one.disk.flip(path, 60)
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match=f"{PATHS.wal}.* at offset 0"):
            one.open(one.disk)
