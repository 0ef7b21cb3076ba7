"""A snapshot with a value in every field, and the directory of a shard to write it to."""

from __future__ import annotations

from shared.contract.topic_config import TopicConfig
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.snapshot_format import (
    KeyGeneration,
    Snapshot,
    SnapshotHead,
    SnapshotTopic,
    encode_keys,
    encode_topic,
    snapshot_parts,
)
from topicsd.log.files import LogPlace
from topicsd.segment.entry import COLD, HOT, SegmentEntry

PATHS = ShardPaths("/shards/00")
DIRECTORIES = (PATHS.wal, PATHS.quarantine, PATHS.topics, PATHS.readers, PATHS.trash)
NOW_MS = 1_750_000_000_000
U64_MAX = (1 << 64) - 1

SEALED = SegmentEntry(
    first_seq=1,
    count=10_000,
    generation=2,
    data_bytes=1 << 20,
    first_ts=NOW_MS - 9000,
    last_ts=NOW_MS - 5000,
    is_sealed=True,
    has_tags=True,
    tier=COLD,
    live_count=8000,
    live_bytes=800_000,
    dead_count=1990,
    since_ordinal=12,
)
ACTIVE = SegmentEntry(
    first_seq=10_021,
    count=7,
    generation=0,
    data_bytes=900,
    first_ts=NOW_MS - 100,
    last_ts=NOW_MS,
    is_sealed=False,
    has_tags=False,
    tier=HOT,
    live_count=7,
    live_bytes=700,
    dead_count=0,
    since_ordinal=10_100,
)
ORDERS = SnapshotTopic(
    name="orders/ä",
    topic_id=U64_MAX - 5,
    epoch=11,
    config=TopicConfig(durability="fsync", ttl_ms=60_000, dead_letter="dead", priority=-3),
    complete_to=10_200,
    head=10_030,
    ceiling=10_300,
    earliest_seq=12,
    evict_floor=11,
    evicted_to={"ttl": 9, "cap": 10},
    ttl_logged=8,
    lost=[(10_001, 10_020, "crash")],
    last_ts=NOW_MS,
    windows_ms=[120_000, 5000],
    segments=[SEALED, ACTIVE],
    sections={"queue": b"\x00state\xff"},
)
EMPTY = SnapshotTopic(
    name="empty",
    topic_id=7,
    epoch=10_150,
    config=TopicConfig(),
    complete_to=10_190,
    head=0,
    ceiling=0,
    earliest_seq=1,
    evict_floor=1,
    evicted_to={},
    ttl_logged=0,
    lost=[],
    last_ts=0,
    windows_ms=[120_000],
    segments=[],
)
KEYS = KeyGeneration(
    window_ms=120_000,
    number=145_833,
    digests=bytes(range(32)),
    records=bytes(range(32, 64)),
    first_seqs=b"\x01" * 16,
    counts=b"\x02" * 8,
    used_ms=b"\x03" * 16,
)


def head_of(number: int = 7, topic_count: int = 2) -> SnapshotHead:
    return SnapshotHead(
        instance=bytes(range(16)),
        shard=0,
        number=number,
        start=LogPlace(file=10_000, offset=4096, ordinal=10_190, chain=U64_MAX),
        end_ordinal=10_210,
        end_file=10_000,
        end_offset=8192,
        created_ms=NOW_MS,
        topic_count=topic_count,
        sections={"watch_sessions": b"w"},
    )


def sample(number: int = 7) -> Snapshot:
    return Snapshot(head_of(number), [ORDERS, EMPTY], [KEYS])


def parts_of(snapshot: Snapshot) -> list[bytes]:
    topics = [encode_topic(entry) for entry in snapshot.topics]
    return snapshot_parts(snapshot.head, topics, [encode_keys(keys) for keys in snapshot.keys])


def bytes_of(snapshot: Snapshot) -> bytes:
    return b"".join(parts_of(snapshot))


def shard_disk(*, space_bytes: int | None = None) -> MemoryDisk:
    disk = MemoryDisk(space_bytes=space_bytes, traced=True)
    for directory in DIRECTORIES:
        disk.make_dirs(directory)
    return disk


def calls_of(disk: MemoryDisk) -> list[str]:
    assert disk.trace is not None
    return [call for call, _ in disk.trace]
