"""The export of one topic: its segments into the store, its extents and its state into the catalog.

X1  The order for new segments: their objects, the state object, the extents in the catalog, then the stems in
    the entries of the segments, which the next snapshot records. A crash before the catalog leaves objects
    that nothing names. After a crash between the catalog and the snapshot the extent is used again.
X2  The extents of a topic are contiguous: one begins where the one before it ends, also when its segment
    begins later. The newest one has the state object, and no other one: it moves on in the change that
    appends an extent.
X3  A segment that was rewritten, alone or with others, is exported again. The extents of its range and then
    the state object name the new objects; then the old ones are released to be deleted after the grace. So a
    reader of the state object finds what it names.
    A state object is written only when each segment that it covers is in the store. Until then the one from
    before the rewrite is right, and nothing that it names is released.
X4  What was put is not put again while this process lives: after a change without an answer the same objects
    are published again. Objects of a segment that is gone by then are deleted; but if the catalog may have
    been asked for them, only after another change that makes the late one impossible.
X9  After a crash the extents may be of other segments than the topic has: those of a merge that no snapshot
    names, or those from before it. So a change replaces all extents that overlap the segment, and each
    segment that overlaps these gets an extent. Objects that nothing names after it are left for a vacuum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final

import msgspec

from shared.runtime.retries import Retries
from topicsd.catalog.catalog import EXTENTS_AT_ONCE, Extent, ExtentObject, TopicRow
from topicsd.engine.bundle.bundle_format import encode_bundle
from topicsd.engine.checkpoint.checkpointer import Checkpointer
from topicsd.engine.damage import note_segment_damage
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership.extents import (
    extent_of,
    lacks_objects,
    unexported,
    with_state,
    without_state,
)
from topicsd.engine.ownership.owner_calls import OwnerCalls
from topicsd.engine.ownership.state_object import digest_of, state_of, state_stem
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.upkeep.tiering import Exported, ExportedObject, Throttle, describe_export, export_segment
from topicsd.segment.entry import DATA, OBJECT_SUFFIXES, STATE, SegmentDamage
from topicsd.segment.store import SegmentStore
from topicsd.store.object_store import ObjectStore

CHECKPOINT_POLL_SECONDS: Final = 0.1
SEGMENTS_AT_ONCE: Final = 16
"""Segments of one topic that are exported before the catalog learns of them."""


class Upload:
    """The objects of a segment that are in the store, and that its entry does not name yet."""

    __slots__ = ("exported", "is_published", "is_sent", "last_seq")

    def __init__(self, exported: Exported, last_seq: int) -> None:
        self.exported = exported
        self.last_seq = last_seq
        self.is_sent = False
        """Whether the catalog was asked to name them."""
        self.is_published = False
        """Whether it has answered that it names them."""


class TopicExports:
    """Exports topics of one shard, each by one job at a time."""

    def __init__(
        self,
        shard: ShardState,
        calls: OwnerCalls,
        checkpoints: Checkpointer,
        hot: SegmentStore,
        store: ObjectStore,
        throttle: Throttle,
        retries: Retries,
    ) -> None:
        self._shard = shard
        self._calls = calls
        self._checkpoints = checkpoints
        self._hot = hot
        self._store = store
        self._throttle = throttle
        self._retries = retries
        self._uploads: dict[Topic, dict[SealedRun, Upload]] = {}
        self._doubtful_states: dict[Topic, set[str]] = {}
        """Keys of state objects that the catalog was asked to name, or to name no more, without an answer."""
        self.segment_count = self.segment_bytes = 0
        """Segments exported since the start, and their bytes."""

    def has_uploads(self, topic: Topic) -> bool:
        return topic in self._uploads

    def forget_gone(self) -> None:
        """Delete what was put for topics that are gone, unless the catalog may name it for another owner."""
        shard = self._shard
        for topic in [one for one in self._uploads if shard.topics.get(one.name) is not one]:
            for upload in self._uploads.pop(topic).values():
                if not upload.is_sent:
                    self.drop_stem(upload.exported.stem, is_released=True)
        for topic in [one for one in self._doubtful_states if shard.topics.get(one.name) is not one]:
            del self._doubtful_states[topic]

    def export(self, topic: Topic) -> BackgroundJob[None]:
        """Export all sealed segments of a topic; raise NotOwned when it departed meanwhile."""
        while runs := list(islice(unexported(topic), SEGMENTS_AT_ONCE)):
            has_progress = yield from self._export_some(topic, runs)
            if not has_progress:
                break
        yield from self._drop_uploads(topic)

    def _export_some(self, topic: Topic, runs: list[SealedRun]) -> BackgroundJob[bool]:
        row = yield from self._calls.row(topic)
        uploads = self._uploads.setdefault(topic, {})
        published: dict[SealedRun, str] = {}
        for run in runs:
            if run in uploads:
                continue
            if stem := (yield from self._published_stem(topic, row, run)):
                published[run] = stem
            elif not (yield from self._put_segment(topic, row, run, uploads)):
                break
        # The runs that a checkpoint captured must not change until it has ended.
        yield from self._wait_for_checkpoint()
        # Only while none before it is missing, such as one that was compacted meanwhile: a later extent must
        # not be published first, since the catalog has no place for the earlier one then (X2).
        in_order = list(takewhile(lambda run: run in uploads or run in published, unexported(topic)))
        count = 0
        for run in in_order:
            if run in published:
                run.entry = msgspec.structs.replace(run.entry, object_stem=published[run])
                count += 1
        fresh = [run for run in in_order if run in uploads]
        if fresh:
            yield from self._publish(topic, row, fresh, uploads)
            yield from self._wait_for_checkpoint()
            for run in [one for one in unexported(topic) if one in uploads and uploads[one].is_published]:
                run.entry = msgspec.structs.replace(run.entry, object_stem=uploads.pop(run).exported.stem)
                self.segment_count += 1
                self.segment_bytes += run.entry.data_bytes
                count += 1
        self._checkpoints.start()
        return count > 0

    def _published_stem(self, topic: Topic, row: TopicRow, run: SealedRun) -> BackgroundJob[str]:
        """Return the stem of a segment that was published before a crash; empty when it was not (X1).

        Only of a segment that was never rewritten: equal size then means equal records.
        """
        if run.next_seq - 1 > row.exported_to or run.name.generation:
            return ""
        present = yield from self._calls.extents(topic, run.first_seq, 1)
        for extent in present:
            for one in extent.objects:
                is_same = extent.last_seq == run.next_seq - 1 and one.size == run.entry.data_bytes
                if is_same and not extent.generation and one.key.endswith(DATA):
                    return one.key.removesuffix(DATA)
        return ""

    def _put_segment(
        self, topic: Topic, row: TopicRow, run: SealedRun, uploads: dict[SealedRun, Upload]
    ) -> BackgroundJob[bool]:
        """Put the objects of a segment; return False when it is damaged or gone."""
        work = partial(export_segment, self._store, self._hot, run.name, run.entry, row.owner_epoch)
        exported, damage = yield partial(_with_damage, partial(work, self._throttle, self._retries))
        if exported is None:
            if self._exists(topic, run):
                note_segment_damage(self._shard, topic.name, damage)
            return False
        uploads[run] = Upload(exported, run.next_seq - 1)
        return True

    def _publish(
        self, topic: Topic, row: TopicRow, fresh: list[SealedRun], uploads: dict[SealedRun, Upload]
    ) -> BackgroundJob[None]:
        """Publish the extents of rewritten and of new segments, and with the last one the state."""
        stems = {run.first_seq: uploads[run].exported.stem for run in fresh}
        rewritten = [run for run in fresh if run.next_seq - 1 <= row.exported_to]
        new = fresh[len(rewritten) :]
        for run in rewritten:
            if not uploads[run].is_published:
                yield from self._replace(topic, row, run, uploads)
        if not all(uploads[run].is_published for run in rewritten):
            return
        extents: list[Extent] = []
        before = row.exported_to if row.has_extents else new[0].first_seq - 1 if new else 0
        for run in new:
            uploads[run].is_sent = True
            first_seq = max(before, row.exported_to) + 1
            extents.append(extent_of(run, uploads[run].exported, first_seq, row.owner_epoch))
            before = extents[-1].last_seq
        if (yield from self.publish_state(topic, row, extents, stems)) is not None:
            for run in new:
                uploads[run].is_published = True

    def _replace(
        self, topic: Topic, row: TopicRow, run: SealedRun, uploads: dict[SealedRun, Upload]
    ) -> BackgroundJob[None]:
        """Have the extents of the range of a rewritten segment name its objects (X9)."""
        old, runs = yield from self._overlapping(topic, row, run)
        if not old:
            # The owner before removed them, and its state still had the segment: now only the state names it.
            uploads[run].is_published = True
        if run not in runs:
            return
        new: list[Extent] = []
        for one in runs:
            exported = uploads[one].exported if one in uploads else (yield from self._exported(one, old))
            if exported is None:
                return
            first_seq = new[-1].last_seq + 1 if new else old[0].first_seq
            new.append(extent_of(one, exported, first_seq, row.owner_epoch))
        states = [one for one in old[-1].objects if one.key.endswith(STATE)]
        objects = (*new[-1].objects, *states)
        new[-1] = msgspec.structs.replace(new[-1], last_seq=old[-1].last_seq, objects=objects)
        sent = [uploads[one] for one in runs if one in uploads]
        for upload in sent:
            upload.is_sent = True
        yield from self._calls.publish(topic, new, old)
        for upload in sent:
            upload.is_published = True

    def _overlapping(
        self, topic: Topic, row: TopicRow, run: SealedRun
    ) -> BackgroundJob[tuple[list[Extent], list[SealedRun]]]:
        """Return the extents that overlap a segment, the segments that overlap these, and so on."""
        first, last = run.first_seq, run.next_seq - 1
        while True:
            old = yield from self._calls.extents(topic, first, EXTENTS_AT_ONCE)
            old = [extent for extent in old if extent.first_seq <= last]
            if not old:
                return [], []
            low, high = old[0].first_seq, max(last, old[-1].last_seq)
            runs = [
                one
                for one in topic.runs
                if isinstance(one, SealedRun) and low < one.next_seq <= row.exported_to + 1
                if one.first_seq <= high
            ]
            before = (first, last)
            first = min([first, low, *(one.first_seq for one in runs)])
            last = max([high, *(one.next_seq - 1 for one in runs)])
            if (first, last) == before:
                return old, runs

    def _exported(self, run: SealedRun, old: list[Extent]) -> BackgroundJob[Exported | None]:
        """Return the objects of a segment as one of the extents has them, or as they are in the store.

        None of a segment that was rewritten meanwhile, which the next round exports, or that is lost there.
        """
        stem = run.entry.object_stem
        named = {one.key.removeprefix(stem): one for extent in old for one in extent.objects}
        objects = [
            ExportedObject(suffix, one.size, one.checksum)
            for suffix, one in named.items()
            if suffix in OBJECT_SUFFIXES
        ]
        if objects:
            return Exported(stem, objects)
        if not stem:
            return None
        exported = yield partial(describe_export, self._store, run.entry, self._throttle, self._retries)
        assert exported is None or isinstance(exported, Exported)
        return exported

    # -- the state -------------------------------------------------------------------------------------------

    def publish_state(
        self,
        topic: Topic,
        row: TopicRow,
        extents: Sequence[Extent] = (),
        stems: dict[int, str] | None = None,
        state: ExtentObject | None = None,
    ) -> BackgroundJob[TopicRow | None]:
        """Append extents, and have the newest one name the state of now, or `state` (X2).

        The topic must have an extent, or get one. `stems` is of segments whose entries do not have it yet.
        Return None when there can be no state now, since a segment is in no object (X3).
        """
        newest = (yield from self._calls.extents(topic, row.exported_to, 1)) if row.has_extents else []
        digest = 0
        if state is None:
            self._calls.check_owned(topic)
            last_seq = extents[-1].last_seq if extents else row.exported_to
            # Here, since a segment may have been rewritten during the last request.
            if lacks_objects(topic, last_seq, stems or {}):
                return None
            bundle = state_of(self._shard, topic, stems or {}, last_seq)
            digest = digest_of(bundle)
            key = state_stem(topic, row.owner_epoch, last_seq) + STATE
            state = yield from self._calls.put_object(key, encode_bundle(bundle))
        add = [*map(without_state, newest), *extents]
        add[-1] = with_state(add[-1], state)
        former = [one.key for extent in newest for one in extent.objects if one.key.endswith(STATE)]
        doubtful = self._doubtful_states.setdefault(topic, set())
        doubtful |= {state.key, *former}
        row = yield from self._calls.publish(topic, add, newest)
        assert topic.ownership is not None
        topic.ownership.exported_state = digest
        # From here on the catalog refuses each change that was sent before, and names no other state.
        for key in sorted(doubtful - {state.key}):
            self.drop_stem(key.removesuffix(STATE), is_released=True)
        self._doubtful_states.pop(topic, None)
        return row

    def has_new_state(self, topic: Topic) -> bool:
        """Return whether the state of a topic has changed since it was exported, without new records."""
        assert topic.ownership is not None
        ends = [
            run.next_seq - 1 for run in topic.runs if isinstance(run, SealedRun) and run.entry.object_stem
        ]
        if not ends or any(unexported(topic)):
            return False
        return digest_of(state_of(self._shard, topic, {}, ends[-1])) != topic.ownership.exported_state

    def refresh_state(self, topic: Topic) -> BackgroundJob[None]:
        """Replace the state object of the newest extent, if the store has all that the state names (X3)."""
        row = yield from self._calls.row(topic)
        if row.has_extents:
            yield from self.publish_state(topic, row)

    # -- objects that are not needed -------------------------------------------------------------------------

    def _drop_uploads(self, topic: Topic) -> BackgroundJob[None]:
        """Delete the objects of segments that were dropped or rewritten meanwhile (X4)."""
        uploads = self._uploads.get(topic, {})
        gone = {run: upload for run, upload in uploads.items() if not self._exists(topic, run)}
        in_doubt = [upload.last_seq for upload in gone.values() if upload.is_sent]
        if in_doubt:
            row = yield from self._calls.row(topic)
            if row.exported_to < max(in_doubt):
                if any(unexported(topic)):
                    return
                ts = topic.last_ts
                extent = Extent(row.exported_to + 1, max(in_doubt), (), ts, ts, row.owner_epoch)
                if (yield from self.publish_state(topic, row, [extent])) is None:
                    return
        for run, upload in gone.items():
            del uploads[run]
            # What was sent may be in an extent, which is removed first.
            self.drop_stem(upload.exported.stem, is_released=not upload.is_sent)
        if not uploads:
            self._uploads.pop(topic, None)

    def drop_stem(self, stem: str, is_released: bool = False) -> None:
        """Have objects deleted after the grace; unless released, once the catalog does not name them."""
        self._shard.objects_to_delete.setdefault(stem, self._shard.clock.now_ms())
        if is_released and self._shard.released_stems is not None:
            self._shard.released_stems.add(stem)

    def _exists(self, topic: Topic, run: SealedRun) -> bool:
        return self._shard.topics.get(topic.name) is topic and any(one is run for one in topic.runs)

    def _wait_for_checkpoint(self) -> BackgroundJob[None]:
        while self._checkpoints.is_running:
            yield CHECKPOINT_POLL_SECONDS


def _with_damage(work: Callable[[], Exported]) -> tuple[Exported | None, SegmentDamage | None]:
    """Return damage as a value: a disk thread passes on no other exceptions than those of the disk."""
    try:
        return work(), None
    except SegmentDamage as damage:
        return None, damage
