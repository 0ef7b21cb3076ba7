"""The release of objects that no segment needs: the catalog forgets them first, then they are deleted (R3).

X5  A segment without live records is dropped here first. Then the state object forgets it, then its extent is
    removed, or loses its objects if it is in the middle, then its objects are released. So what a state
    object names is always in the store. With the first segments go all extents before the first record, also
    those that this node has no segment of.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from topicsd.catalog.catalog import EXTENTS_AT_ONCE, TopicRow
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership.extents import lacks_objects, stems_of
from topicsd.engine.ownership.owner_calls import OwnerCalls
from topicsd.engine.ownership.topic_export import TopicExports
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.segment.entry import parse_object_stem


class Release:
    """Releases objects of the topics of one shard."""

    def __init__(
        self,
        shard: ShardState,
        owns_id: Callable[[int], bool],
        calls: OwnerCalls,
        topic_export: TopicExports,
    ) -> None:
        self._shard = shard
        self._owns_id = owns_id
        self._calls = calls
        self._topic_export = topic_export

    def waiting(self) -> dict[Topic, list[str]]:
        """Return the stems that an owned topic has to release; decide about those of other topics here."""
        shard = self._shard
        released = shard.released_stems
        assert released is not None
        departed = {(one.topic_id, one.epoch) for one in shard.departed.values()}
        by_topic: dict[Topic, list[str]] = {}
        for stem in list(shard.objects_to_delete):
            if stem in released:
                continue
            topic_id, epoch, _ = parse_object_stem(stem)
            topic = shard.topics_by_id.get(topic_id)
            if topic is None and ((topic_id, epoch) in departed or not self._owns_id(topic_id)):
                # Sealed, or moved to another shard: the catalog may still name them, and who has the topic
                # removes its first extents with all that they name.
                del shard.objects_to_delete[stem]
            elif topic is None or topic.epoch != epoch:
                if not any(one.epoch == epoch for one in shard.to_forget):
                    released.add(stem)
            elif shard.topics.get(topic.name) is not topic:
                # Its new owner needs them, or deletes them.
                del shard.objects_to_delete[stem]
            else:
                by_topic.setdefault(topic, []).append(stem)
        released &= shard.objects_to_delete.keys()
        return by_topic

    def release(self, topic: Topic, stems: list[str]) -> BackgroundJob[None]:
        """Have the catalog forget these objects, and release them."""
        row = yield from self._calls.row(topic)
        if lacks_objects(topic, row.exported_to):
            # Its extent names the objects from before the compaction, and is needed until it is replaced.
            return
        in_segments = [stem for stem in stems if parse_object_stem(stem)[2]]
        if row.has_extents and in_segments:
            # Also when no extent changes: the state object may name what a compaction has replaced.
            published = yield from self._topic_export.publish_state(topic, row)
            if published is None or lacks_objects(topic, row.exported_to):
                return
            row = yield from self._remove_first(topic, published)
            for stem in sorted(in_segments):
                yield from self._empty(topic, row, stem)
        elif row.has_extents:
            (newest,) = yield from self._calls.extents(topic, row.exported_to, 1)
            stems = [stem for stem in stems if stem not in stems_of(newest)]
        assert self._shard.released_stems is not None
        self._shard.released_stems.update(stem for stem in stems if stem in self._shard.objects_to_delete)

    def _remove_first(self, topic: Topic, row: TopicRow) -> BackgroundJob[TopicRow]:
        """Remove the extents before the first segment, except the newest extent."""
        first_seq = min((run.first_seq for run in topic.runs if isinstance(run, SealedRun)), default=0)
        end = first_seq or row.exported_to + 1
        while row.exported_from < end:
            present = yield from self._calls.extents(topic, row.exported_from, EXTENTS_AT_ONCE)
            first = [one for one in present if one.last_seq < end and one.last_seq < row.exported_to]
            if not first:
                break
            row = yield from self._calls.publish(topic, [], first)
            for extent in first:
                for stem in stems_of(extent):
                    self._topic_export.drop_stem(stem, is_released=True)
        return row

    def _empty(self, topic: Topic, row: TopicRow, stem: str) -> BackgroundJob[None]:
        """Have the extent that names these objects name them no more; it keeps a state object."""
        first_seq = parse_object_stem(stem)[2]
        if not row.exported_from <= first_seq <= row.exported_to:
            return
        for extent in (yield from self._calls.extents(topic, first_seq, 1)):
            left = tuple(one for one in extent.objects if one.key.rpartition(".")[0] != stem)
            if left != extent.objects:
                yield from self._calls.publish(
                    topic, [msgspec.structs.replace(extent, objects=left)], [extent]
                )
