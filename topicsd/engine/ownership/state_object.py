"""The state object of a topic: all but its records, in the object store, for a node that adopts the topic.

It is a bundle whose segments are all in the store. Those written while the topic is in use end at the last
exported seq, and go with the newest extent: `accept_loss` resumes from them. The one of a seal is complete.

What such a state says of a record after its end is left out: the record is lost when the state is used.

    producers and keys      forgotten, so that the repeated write of a lost record is written again; also when
                            only a part of its records is lost
    jobs                    forgotten
    cursors                 kept: the seqs that they passed are used, and not given out again
    schedules               kept: a lost job is not added again
    evictions, lost ranges  cut at the end
    routes into the topic   kept: a lost copy is not copied again, since the source may have dropped it
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import xxhash

from topicsd.catalog.catalog import Extent, TopicRow
from topicsd.disk.layout import topic_dir_name
from topicsd.engine.bundle.bundle_format import Bundle, SegmentMarks, without_ordinals
from topicsd.engine.bundle.contents import keys_of
from topicsd.engine.checkpoint.capture import snapshot_entry
from topicsd.engine.checkpoint.load import columns_of
from topicsd.engine.checkpoint.snapshot_format import KeyGeneration, SnapshotTopic
from topicsd.engine.ownership.owned import OWNERSHIP
from topicsd.engine.queue.state import queue_up_to
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.engine.write.producers import PRODUCERS
from topicsd.segment.dead_file import pack_marks
from topicsd.segment.entry import COLD, OBJECTS, STATE, SegmentEntry

_TOKEN_BYTES: Final = 4
_encode = msgspec.msgpack.Encoder(order="sorted").encode


def state_stem(topic: Topic, owner_epoch: int, last_seq: int) -> str:
    """Return a new key without its suffix, beside the objects of the topic's segments."""
    folder = f"{OBJECTS}/{topic_dir_name(topic.topic_id, topic.epoch)}"
    return f"{folder}/{owner_epoch}-state-{last_seq:016d}-{secrets.token_hex(_TOKEN_BYTES)}"


def state_keys(row: TopicRow, extents: Sequence[Extent]) -> list[str]:
    """Return the keys of the state objects of a topic, newest first; `extents` has the newest extent.

    A seal is the last act of an owner. So the state of a seal is the newest until another owner has put one.
    """
    keys = [one.key for extent in reversed(extents) for one in extent.objects if one.key.endswith(STATE)]
    if row.sealed_key is not None and (not keys or _owner_epoch(row.sealed_key) >= _owner_epoch(keys[0])):
        keys.insert(0, row.sealed_key)
    # The newest extent names the state of a seal too.
    return [*dict.fromkeys(keys)]


def _owner_epoch(key: str) -> int:
    """Return the owner epoch of the key of a state object.

    >>> _owner_epoch("segments/0000000000000007-1024/3-state-0000000000010001-5f9a01c2.state")
    3
    """
    return int(key.rpartition("/")[2].partition("-")[0])


def exported_entry(run: SealedRun, stem: str) -> SegmentEntry:
    """Return the entry of a segment as a node without its files has it."""
    return msgspec.structs.replace(
        run.entry,
        tier=COLD,
        object_stem=stem,
        live_count=run.live_count,
        live_bytes=run.live_bytes,
        dead_count=run.dead_count,
    )


def state_of(shard: ShardData, topic: Topic, stems: dict[int, str], last_seq: int) -> Bundle:
    """Return the state of a topic up to `last_seq`; `stems` has the segments that are in no entry yet.

    Taken in one step, so that it is the state of one moment.
    """
    entries: list[SegmentEntry] = []
    marks: dict[int, bytes] = {}
    for run in topic.runs:
        if not isinstance(run, SealedRun) or run.next_seq - 1 > last_seq:
            continue
        stem = stems.get(run.first_seq) or run.entry.object_stem
        if stem:
            entries.append(exported_entry(run, stem))
            if run.dead is not None:
                marks[run.first_seq] = bytes(run.dead)
    entry = snapshot_entry(topic, 0, last_seq, has_records=True)
    sections = queue_up_to({**entry.sections}, last_seq)
    if topic.producers is not None:
        sections.pop(PRODUCERS, None)
        sections |= topic.producers.section_up_to(last_seq)
    entry = _ending_at(msgspec.structs.replace(entry, sections=sections), entries, last_seq)
    keys = list(_keys_up_to(keys_of(shard.idempotency_keys, topic), last_seq))
    packed = [
        SegmentMarks(one.first_seq, pack_marks(marks[one.first_seq])) for one in entries if one.dead_count
    ]
    return without_ordinals(Bundle(entry, packed, keys))


def digest_of(bundle: Bundle) -> int:
    """Return a digest of the part of a state that changes without new records, such as cursors; not 0.

    Producers and keys are not in it: only a new record changes them.
    """
    sections = {
        name: one for name, one in bundle.topic.sections.items() if name not in (OWNERSHIP, PRODUCERS)
    }
    entry = msgspec.structs.replace(bundle.topic, sections=sections, last_ts=0, head=0, ceiling=0)
    return xxhash.xxh3_64_intdigest(_encode((entry, bundle.marks))) or 1


def _keys_up_to(generations: Iterator[KeyGeneration], last_seq: int) -> Iterator[KeyGeneration]:
    for generation in generations:
        if (columns := columns_of(generation).up_to(last_seq)) is not None:
            yield KeyGeneration(*columns)


def _ending_at(entry: SnapshotTopic, segments: list[SegmentEntry], last_seq: int) -> SnapshotTopic:
    return msgspec.structs.replace(
        entry,
        segments=segments,
        head=last_seq,
        ceiling=last_seq,
        earliest_seq=min(entry.earliest_seq, last_seq + 1),
        evict_floor=min(entry.evict_floor, last_seq + 1),
        evicted_to={reason: min(seq, last_seq) for reason, seq in entry.evicted_to.items()},
        ttl_logged=min(entry.ttl_logged, last_seq),
        lost=list(_lost_up_to(entry.lost, last_seq)),
    )


def _lost_up_to(lost: list[tuple[int, int, str]], last_seq: int) -> Iterator[tuple[int, int, str]]:
    for first, last, reason in lost:
        if first <= last_seq:
            yield first, min(last, last_seq), reason
