"""Missing cold segments, which are either lost or in a directory that is not mounted.

A repair cannot distinguish the two cases. It gives no missing cold segment up without explicit consent: a
segment that was given up is not served any more, even when its directory is mounted again. Other cold
segments that are present prove nothing: a server that ran without the mount moved newer segments into the
empty mount point.

A segment counts as cold when any snapshot or the manifest says so. After a segment has moved, the older
snapshot still records it as hot, although its hot files no longer exist.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.settings.store_url import store_folder
from topicsd.engine.checkpoint.manifest import ManifestDamage, read_manifest
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import SnapshotDamage, SnapshotTopic
from topicsd.log.file_header import UnknownVersion
from topicsd.offline.check.segment_check import SegmentFacts
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import store_url_of_shard
from topicsd.offline.repair.diagnosis import Candidate
from topicsd.offline.table import path_text, plural
from topicsd.segment.entry import COLD, SegmentName

GIVE_UP_FLAG = "--give-up-cold"


class MissingCold(NamedTuple):
    """The missing cold segments of a shard."""

    segments: list[SegmentFacts]
    why: str
    """The path that was searched and the possible fixes; empty when no cold segment is missing."""


def missing_cold(data_dir: DataDir, shard: int, basis: Candidate) -> MissingCold:
    """Return the cold segments that the basis of a repair names and no directory has."""
    missing = [facts for facts in basis.facts if facts.is_missing]
    if not missing or basis.snapshot is None:
        return MissingCold([], "")
    topics = basis.snapshot.topics
    cold = _cold_names(data_dir, shard) | _segment_names(topics, only_cold=True)
    missing = [facts for facts in missing if facts.name in cold]
    if not missing:
        return MissingCold([], "")
    recorded = len(cold & _segment_names(topics, only_cold=False))
    url = store_url_of_shard(data_dir, shard)
    verb = "is" if len(missing) == 1 else "are"
    if url:
        place = path_text(store_folder(url) or url)
        where = f"missing: the object store {place} does not answer, or may not be mounted"
    else:
        where = "missing: the URL of the object store is unknown"
    why = (
        f"{len(missing)} of {plural(recorded, 'cold segment')} {verb} {where}. "
        "Mount it, or set its URL with --store-url, or its folder with --cold-dir. "
        f"To give up the missing segments for good: {GIVE_UP_FLAG}"
    )
    return MissingCold(missing, why)


def _cold_names(data_dir: DataDir, shard: int) -> set[SegmentName]:
    """Return the segments that a snapshot or the manifest records as cold."""
    fs, paths = data_dir.fs, data_dir.paths(shard)
    names: set[SegmentName] = set()
    for number in snapshot_numbers(fs, paths):
        try:
            names |= _segment_names(read_snapshot(fs, paths, number).topics, only_cold=True)
        except (FileNotFoundError, SnapshotDamage, UnknownVersion):
            continue
    try:
        manifest = read_manifest(fs, paths)
    except (FileNotFoundError, ManifestDamage, UnknownVersion):
        return names
    return names | {
        SegmentName(int(topic.id, 16), topic.epoch, one.first_seq, one.generation)
        for topic in manifest.topics
        for one in topic.segments
        if one.tier == COLD
    }


def _segment_names(topics: list[SnapshotTopic], *, only_cold: bool) -> set[SegmentName]:
    return {
        SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
        for topic in topics
        for entry in topic.segments
        if entry.tier == COLD or not only_cold
    }
