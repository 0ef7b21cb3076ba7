"""Data directories in the states that a user may find, each made by a real shard and its end.

Promises: `DIRECTORIES` names them. All but the damaged ones are states that the program itself leaves. The
sizes are small; the times are those of the manual clock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.shard.one_shard import RealShard, record
from topicsd.log.batch_end import BATCH_END_BYTES, BatchEnd, encode_batch_end
from topicsd.log.current_file import note_sync_failure, read_current, write_current
from topicsd.log.frame import HEADER_BYTES

FLIP = 1 << 5
# The bytes up to the time field, from which on all BatchEnds differ.
BATCH_END_OPENING = encode_batch_end(BatchEnd(bytes(16), 0, 0, 0, 0, 0), 0)[: HEADER_BYTES - 16]


def flip(path: str | Path, offset: int) -> None:
    """Flip one bit of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes((byte ^ FLIP,)))


def fill(shard: RealShard) -> None:
    """Write records of three classes, with tags, evictions, a delete and a recreated topic."""
    shard.append("orders", record({"n": 1}, tag="new", node="n1", meta={"k": 1}), record({"n": 2}))
    shard.put("audit", durability="fsync", cap_records=2)
    shard.append("audit", 1, 2, 3)
    shard.append("live", 1, 2, config=None)
    shard.delete_topic("live")
    shard.put("live", durability="ephemeral")
    shard.append("live", 1)
    shard.append("orders", record({"n": 3}, tag="paid"), idempotency_key="once")
    shard.delete("orders", tag="new")


def stop(shard: RealShard) -> None:
    """Stop without a checkpoint: everything is in the log, nothing in a segment."""
    shard.shard.close(checkpoint=False)


def clean(path: Path) -> RealShard:
    shard = RealShard(path)
    fill(shard)
    shard.pass_time(60)
    stop(shard)
    return shard


def killed(path: Path) -> RealShard:
    """Kill the process while ceilings are above their heads."""
    shard = RealShard(path)
    fill(shard)
    shard.stop_dead()
    return shard


def rebooted(path: Path) -> RealShard:
    """Make the directory look as after a machine restart without loss, which cannot be proven."""
    shard = killed(path)
    current = read_current(shard.fs, shard.paths.current)
    assert current is not None
    moved = msgspec.structs.replace(current, boot_id="another-boot")
    write_current(shard.fs, shard.paths.current, moved)
    return shard


def copied(path: Path) -> RealShard:
    """Replace every file by a copy with the same bytes."""
    shard = killed(path)
    for file in [one for one in path.rglob("*") if one.is_file()]:
        copy = file.with_suffix(".copy")
        shutil.copy2(file, copy)
        os.replace(copy, file)
    return shard


def sync_failed(path: Path) -> RealShard:
    shard = killed(path)
    note_sync_failure(shard.fs, shard.paths.current)
    return shard


def lost_range(path: Path) -> RealShard:
    """Run after a machine crash; records exist before and after the lost range."""
    shard = rebooted(path)
    shard.reopen()
    shard.append("orders", "behind")
    shard.pass_time(60)
    stop(shard)
    return shard


def torn(path: Path) -> RealShard:
    """Damage the last batch, which no later batch proves synced."""
    shard = killed(path)
    flip(shard.wal_files()[-1], log_end(shard) - 1)
    return shard


def rotten_tail(path: Path) -> RealShard:
    """Damage an acknowledged, unsynced record; whole batches follow it."""
    shard = RealShard(path)
    for number in range(4):
        shard.append("orders", number)
    position = shard.topic("orders").run.frame_positions[1]
    _, offset = shard.shard._files.place_of(position)
    shard.stop_dead()
    flip(shard.wal_files()[0], offset + HEADER_BYTES)
    return shard


def torn_and_restarted(path: Path) -> RealShard:
    """Recover a torn directory: the torn bytes are in quarantine, nothing was written since."""
    shard = torn(path)
    shard.reopen()
    stop(shard)
    return shard


def torn_and_gone_on(path: Path) -> RealShard:
    shard = torn(path)
    shard.reopen()
    shard.append("orders", "behind")
    stop(shard)
    return shard


def damaged(path: Path) -> RealShard:
    """Damage the middle of the synced part."""
    shard = clean(path)
    flip(shard.wal_files()[0], 300)
    return shard


def without_current(path: Path) -> RealShard:
    shard = clean(path)
    os.unlink(shard.paths.current)
    return shard


def with_a_damaged_current(path: Path) -> RealShard:
    shard = clean(path)
    flip(shard.paths.current, 20)
    return shard


def cut_from_outside(path: Path) -> RealShard:
    shard = clean(path)
    os.truncate(shard.wal_files()[0], log_end(shard))
    return shard


def of_many_files(path: Path) -> RealShard:
    shard = RealShard(path, wal_file_bytes=4096)
    for number in range(40):
        shard.append("orders", record({"n": number, "text": "x" * 200}))
    stop(shard)
    return shard


def of_many_shards(path: Path, shards: int = 3) -> RealShard:
    """Create twelve topics, each on its shard."""
    opened = [RealShard(path, shard=number, shards=shards) for number in range(shards)]
    for number in range(12):
        name = f"topic-{number}"
        opened[shard_of(topic_id(name), shards)].append(name, *range(number + 1))
    for shard in opened:
        stop(shard)
    return opened[0]


def untouched(path: Path) -> RealShard:
    shard = RealShard(path)
    stop(shard)
    return shard


def being_used(path: Path) -> RealShard:
    """Keep the shard open: this process holds the lock."""
    shard = RealShard(path)
    fill(shard)
    return shard


def killed_with_a_spare(path: Path) -> RealShard:
    """Kill the process after it created the next file."""
    shard = RealShard(path, wal_file_bytes=4096)
    shard.append("orders", "x" * 3000)
    shard.settle()
    shard.stop_dead()
    return shard


def log_end(shard: RealShard) -> int:
    """Return the offset after the last written byte of the last WAL file."""
    data = Path(shard.wal_files()[-1]).read_bytes()
    # The checksum at the end of a batch may end with zero bytes.
    batch_end = data.rfind(BATCH_END_OPENING)
    return max(len(data.rstrip(b"\0")), batch_end + BATCH_END_BYTES if batch_end >= 0 else 0)


DIRECTORIES: dict[str, Callable[[Path], RealShard]] = {
    build.__name__: build
    for build in (
        clean,
        killed,
        rebooted,
        copied,
        sync_failed,
        lost_range,
        torn,
        rotten_tail,
        torn_and_restarted,
        torn_and_gone_on,
        damaged,
        without_current,
        with_a_damaged_current,
        cut_from_outside,
        of_many_files,
        of_many_shards,
        untouched,
        killed_with_a_spare,
    )
}
