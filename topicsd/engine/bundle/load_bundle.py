"""Loading a bundle into the data of a shard: by the shard that adopts it, and by each replay of its frame.

The bundle file is in the directory of the topic. It is kept as long as a start may replay the frame, that is
until no snapshot is kept that precedes the topic's first capture.
"""

from __future__ import annotations

import msgspec
import xxhash

from topicsd.disk.layout import bundle_key
from topicsd.engine.bundle.bundle_format import Bundle, BundleDamage, decode_bundle
from topicsd.engine.checkpoint.load import columns_of, load_topic
from topicsd.engine.queue.state import without_leases
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.routes.route import load_routes
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import Adopt
from topicsd.segment.store import SegmentStore


def read_bundle(hot: SegmentStore, topic_id: int, control: Adopt) -> Bundle:
    """Return the bundle that a frame names; raise BundleDamage, or UnknownVersion for a newer one."""
    key = bundle_key(topic_id, control.epoch)
    try:
        data = hot.read_range(key, 0, hot.size(key))
    except FileNotFoundError:
        raise BundleDamage(f"{key} is missing") from None
    finally:
        hot.forget(key)
    if xxhash.xxh3_64_intdigest(data) != control.checksum:
        raise BundleDamage(f"{key} is not the file that the log names")
    bundle = decode_bundle(data)
    topic = bundle.topic
    if (topic.topic_id, topic.epoch, topic.name) != (topic_id, control.epoch, control.name):
        raise BundleDamage(f'{key} is the bundle of topic "{topic.name}"')
    return bundle


def topic_of(shard: ShardData, bundle: Bundle) -> Topic:
    """Return the topic of a bundle, not added to the shard yet. May read tags: it suits the disk thread."""
    for entry in bundle.topic.segments:
        shard.segments.forget(bundle.name_of(entry))
    entries = {entry.first_seq: entry for entry in bundle.topic.segments}
    dead = {bundle.name_of(entries[one.first_seq]): one.bitmap for one in bundle.marks}
    topic = load_topic(shard, bundle.topic, shard.segments.hot, dead)
    for run in topic.runs:
        if isinstance(run, SealedRun):
            # The marks are in the bundle only; the next checkpoint writes them to `.del` files.
            run.saved_dead_count = 0
    # Its directory holds the bundle file.
    topic.has_files = True
    return topic


def add_adopted(shard: ShardData, topic: Topic, bundle: Bundle) -> None:
    """Add the topic of a bundle to the shard, with its routes."""
    shard.departed.pop(topic.name, None)
    shard.add_topic(topic)
    load_routes(shard, topic, bundle.topic.sections)
    note_adopted(shard, topic.topic_id, topic.epoch)


def note_adopted(shard: ShardData, topic_id: int, epoch: int) -> None:
    """Note that the topic has a bundle file to drop, and that no new topic may get its epoch."""
    shard.adopted_topics.append((topic_id, epoch))
    shard.epoch_floor = max(shard.epoch_floor, epoch)


def replay_adopt(shard: ShardData, topic_id: int, control: Adopt, ordinal: int) -> None:
    """Replay the frame of an adopted topic; a restart ends leases that are not logged."""
    bundle = read_bundle(shard.segments.hot, topic_id, control)
    if not bundle.topic.config.leases_durable:
        sections = without_leases(bundle.topic.sections)
        bundle = bundle._replace(topic=msgspec.structs.replace(bundle.topic, sections=sections))
    topic = topic_of(shard, bundle)
    topic.complete_to = ordinal
    add_adopted(shard, topic, bundle)
    now_ms = shard.clock.now_ms()
    for generation in bundle.keys:
        shard.idempotency_keys.merge(columns_of(generation), now_ms)
