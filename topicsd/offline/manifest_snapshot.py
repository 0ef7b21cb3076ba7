"""The snapshot that has the content of a manifest, for repairs and outside readers."""

from __future__ import annotations

from shared.contract.topic_config import TopicConfig
from topicsd.engine.checkpoint.manifest import Manifest, ManifestDeparted, ManifestTopic
from topicsd.engine.checkpoint.snapshot_format import Snapshot, SnapshotHead, SnapshotTopic
from topicsd.engine.ownership.departed import Departed, departed_sections
from topicsd.log.files import LogPlace
from topicsd.log.writer import Identity
from topicsd.segment.entry import SegmentEntry

# Added to the head of a topic known only from the manifest: no seq is given out so far ahead of a sync.
CEILING_MARGIN = 1_000_000


def snapshot_of(manifest: Manifest, identity: Identity) -> Snapshot:
    """Return a snapshot with the state that the manifest holds."""
    wal = manifest.wal
    topics = [_topic_of(topic) for topic in manifest.topics]
    end = max((topic.complete_to for topic in topics), default=wal.ordinal)
    head = SnapshotHead(
        instance=identity.instance,
        shard=identity.shard,
        number=manifest.number,
        start=LogPlace(wal.file, wal.offset, wal.ordinal, int(wal.chain, 16)),
        end_ordinal=max(end, wal.ordinal),
        end_file=wal.file,
        end_offset=wal.offset,
        created_ms=manifest.ts,
        topic_count=len(topics),
        sections=departed_sections({one.name: _departed(one) for one in manifest.departed}, {}),
    )
    return Snapshot(head, topics, [])


def _departed(one: ManifestDeparted) -> Departed:
    return Departed(one.name, int(one.id, 16), one.epoch, one.state, one.node, one.owner_epoch, one.since_ms)


def _topic_of(topic: ManifestTopic) -> SnapshotTopic:
    config = TopicConfig(
        type=topic.type,
        durability=topic.durability,
        ttl_ms=topic.ttl_ms,
        cap_records=topic.cap_records,
        cap_bytes=topic.cap_bytes,
        discard=topic.discard,
    )
    return SnapshotTopic(
        name=topic.name,
        topic_id=int(topic.id, 16),
        epoch=topic.epoch,
        config=config,
        complete_to=topic.complete_to,
        head=topic.head,
        ceiling=0 if config.durability == "fsync" else topic.head + CEILING_MARGIN,
        earliest_seq=topic.earliest_seq,
        evict_floor=topic.evict_floor,
        evicted_to=topic.evicted_to,
        ttl_logged=topic.evicted_to.get("ttl", 0),
        lost=topic.lost,
        last_ts=max((one.last_ts for one in topic.segments), default=0),
        windows_ms=[config.idempotency_window_ms],
        segments=[
            SegmentEntry(
                first_seq=one.first_seq,
                count=one.count,
                generation=one.generation,
                data_bytes=one.data_bytes,
                first_ts=one.first_ts,
                last_ts=one.last_ts,
                is_sealed=one.sealed,
                has_tags=one.has_tags,
                tier=one.tier,
                live_count=one.live_count,
                live_bytes=one.live_bytes,
                dead_count=one.dead_count,
                since_ordinal=topic.epoch,
                object_stem=one.object_stem,
            )
            for one in topic.segments
        ],
    )
