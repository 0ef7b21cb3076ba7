"""What is known of the frames in front of damage, which stand in no whole batch."""

from __future__ import annotations

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.wal_bytes import append_frame
from topicsd.log.control_frame import ForwardCursor, encode_control
from topicsd.offline.check.damage_search import first_damage


def test_copies_that_a_frame_names_are_records_of_its_topic() -> None:
    cursor = ForwardCursor("r", 9, 3, first_seq=5, file=1, offsets=[100], sizes=[300])
    whole = [append_frame(4, topic_id=8), encode_control(cursor, topic_id=8, ts=0)]
    disk, damaged = MemoryDisk(), bytearray(append_frame(8, b"123", topic_id=8))
    damaged[-10] ^= 1
    disk.write_file("/log", b"".join(whole) + damaged)
    damage = first_damage(disk, disk.open_read("/log"), 0, sum(map(len, whole)) + len(damaged))
    assert damage is not None
    assert (damage.offset, damage.heads, damage.before) == (sum(map(len, whole)), {8: 7}, 8)
