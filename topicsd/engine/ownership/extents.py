"""The extents of a topic, made of its segments, and the keys of their objects."""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from topicsd.catalog.catalog import Extent, ExtentObject
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.topic import Topic
from topicsd.engine.upkeep.tiering import Exported
from topicsd.segment.entry import STATE


def unexported(topic: Topic) -> Iterator[SealedRun]:
    """Yield the sealed segments of a topic that no object holds, as far as its entries say."""
    for run in topic.runs:
        if isinstance(run, SealedRun) and not run.entry.object_stem:
            yield run


def unexported_at_end(topic: Topic) -> Iterator[SealedRun]:
    """Yield the sealed segments after the last exported one, which were never exported."""
    sealed = [run for run in topic.runs if isinstance(run, SealedRun)]
    end = max((run.next_seq for run in sealed if run.entry.object_stem), default=0)
    return (run for run in sealed if run.first_seq >= end)


def unexported_count(topic: Topic) -> int:
    """Return the number of live records that are in no object."""
    count = 0
    for run in topic.runs:
        if isinstance(run, SealedRun):
            count += 0 if run.entry.object_stem else run.live_count
        elif run.first_seq < run.next_seq:
            count += run.live_totals(max(run.first_seq, topic.earliest_seq), run.next_seq - 1)[0]
    return count


def lacks_objects(topic: Topic, last_seq: int, stems: Container[int] = ()) -> bool:
    """Return whether a segment up to `last_seq` is in no object, as after a compaction.

    A state object would lack it. `stems` has the first seqs of those whose entries do not say it yet.
    """
    return any(run.next_seq - 1 <= last_seq and run.first_seq not in stems for run in unexported(topic))


def extent_of(run: SealedRun, exported: Exported, first_seq: int, owner_epoch: int) -> Extent:
    objects = tuple(
        ExtentObject(exported.stem + one.suffix, one.size, one.sha256) for one in exported.objects
    )
    entry = run.entry
    return Extent(
        first_seq,
        entry.last_seq,
        objects,
        entry.first_ts,
        entry.last_ts,
        owner_epoch,
        run.name.generation,
    )


def without_state(extent: Extent) -> Extent:
    objects = tuple(one for one in extent.objects if not one.key.endswith(STATE))
    return msgspec.structs.replace(extent, objects=objects)


def with_state(extent: Extent, state: ExtentObject) -> Extent:
    """Return the extent with this state object in place of the one it has."""
    return msgspec.structs.replace(extent, objects=(*without_state(extent).objects, state))


def stems_of(extent: Extent) -> list[str]:
    """Return the stems of the objects of an extent, each once."""
    return [*dict.fromkeys(one.key.rpartition(".")[0] for one in extent.objects)]
