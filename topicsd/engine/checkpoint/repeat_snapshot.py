"""The newest snapshot again, except that it names the objects of segments that were exported since.

A disk may have no room for the records that a checkpoint copies. This snapshot copies none and has the same
start in the log, so a start from it replays the same frames. It is as large as the one before it, and once
both kept snapshots name the objects, the local records can be dropped.

Its time is that of the original: what was exported or deleted since, and is not in it, is not older than it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.manifest import manifest_head, manifest_parts, topic_line
from topicsd.engine.checkpoint.snapshot_files import read_snapshot
from topicsd.engine.checkpoint.snapshot_format import (
    Snapshot,
    SnapshotDamage,
    SnapshotTopic,
    encode_keys,
    encode_topic,
    snapshot_parts,
)
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.state import ShardState
from topicsd.segment.entry import HOT, SegmentEntry, SegmentName

TOPICS_A_TURN: Final = 100


class Repeated(NamedTuple):
    """A snapshot whose entries name more objects, and the segments that it names by them."""

    snapshot: Snapshot
    exported: list[SegmentName]


def exported_entries(shard: ShardState) -> BackgroundJob[dict[SegmentName, SegmentEntry]]:
    """Return the segments whose local records can be dropped once the snapshots name their objects."""
    entries: dict[SegmentName, SegmentEntry] = {}
    for topics in shard.topics_by_turns():
        for topic in topics:
            if topic.exported:
                names = set(topic.exported)
                sealed = (run for run in topic.runs if isinstance(run, SealedRun))
                entries.update((run.name, run.entry) for run in sealed if run.name in names)
        yield None
    return entries


def note_named(shard: ShardState, names: list[SegmentName]) -> None:
    """Forget that these segments wait for a snapshot that names their objects."""
    named = set(names)
    for topic_id in {name.topic_id for name in names}:
        topic = shard.topics_by_id.get(topic_id)
        if topic is not None:
            topic.exported = [name for name in topic.exported if name not in named]


def read_again(
    fs: Fs, paths: ShardPaths, number: int, exported: Mapping[SegmentName, SegmentEntry]
) -> Repeated:
    """Read a snapshot, and name the objects of those segments that it has sealed and local."""
    try:
        snapshot = read_snapshot(fs, paths, number)
    except SnapshotDamage as damage:
        raise OSError(errno.EIO, str(damage), paths.snapshot(number)) from damage
    names: list[SegmentName] = []
    topics = [_with_objects(topic, exported, names) for topic in snapshot.topics]
    return Repeated(snapshot._replace(topics=topics), names)


def _with_objects(
    topic: SnapshotTopic, exported: Mapping[SegmentName, SegmentEntry], names: list[SegmentName]
) -> SnapshotTopic:
    entries = []
    for old in topic.segments:
        name = SegmentName(topic.topic_id, topic.epoch, old.first_seq, old.generation)
        now = exported.get(name)
        if now is not None and old.is_sealed and old.tier == HOT:
            names.append(name)
            # The marks and the counts are those of the snapshot: the log after it has the later deletes.
            old = msgspec.structs.replace(old, tier=now.tier, object_stem=now.object_stem)
        entries.append(old)
    return msgspec.structs.replace(topic, segments=entries)


class RepeatedFiles(NamedTuple):
    """The content of a snapshot and of its manifest."""

    snapshot: list[bytes]
    manifest: list[bytes]


def encode_again(snapshot: Snapshot, store_url: str) -> BackgroundJob[RepeatedFiles]:
    topics: list[bytes] = []
    lines: list[bytes] = []
    for number, topic in enumerate(snapshot.topics, 1):
        topics.append(encode_topic(topic))
        lines.append(topic_line(topic, topic.head))
        if number % TOPICS_A_TURN == 0:
            yield None
    keys: list[bytes] = []
    for generation in snapshot.keys:
        keys.append(encode_keys(generation))
        yield None
    head = manifest_head(snapshot.head, store_url)
    return RepeatedFiles(snapshot_parts(snapshot.head, topics, keys), manifest_parts(head, lines))
