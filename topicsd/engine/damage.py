"""Damage found by a read, the scrub or a checkpoint: logged and counted once for each segment.

A read reports it as a refusal, with the range of seqs that it found. Ranges of successive reads are
joined here.
"""

from __future__ import annotations

import logging

import msgspec

from shared.contract.errors import Refusal
from shared.runtime.log_setup import fields
from topicsd.engine.state import ShardState
from topicsd.segment.entry import DATA, SegmentDamage, SegmentName

logger = logging.getLogger("topicsd.engine")


def note_damage(shard: ShardState, place: SegmentName | str, topic: str, file: str, what: str) -> None:
    """Log damage of a segment, or of a file of the log, unless it was logged before.

    `place` identifies the damaged file in the count; `file` and `what` are for the operator.
    """
    if place in shard.damaged_segments:
        return
    shard.damaged_segments.add(place)
    logger.error(
        'segment: %s: damaged: topic "%s": %s; run: topicsd doctor %s',
        file,
        topic,
        what,
        shard.settings.data_dir,
        extra=fields(shard=shard.number, topic=topic, file=file),
    )


def note_segment_damage(shard: ShardState, topic: str, damage: SegmentDamage) -> None:
    what = f"seqs {damage.first_seq} to {damage.last_seq}: {damage.what}"
    note_damage(shard, damage.name, topic, damage.name.key(DATA), what)


def next_from_seq(corrupt: Refusal) -> int:
    """Return the position after the damaged range that a refusal reports."""
    assert corrupt.detail is not None
    seq = corrupt.detail["next_from_seq"]
    assert isinstance(seq, int)
    return seq


def joined_damage(before: Refusal, after: Refusal) -> Refusal | None:
    """Return one refusal for two damaged ranges, or None unless they adjoin in one file."""
    first, second = before.detail, after.detail
    assert first is not None
    assert second is not None
    if first["segment"] != second["segment"] or second["first_seq"] != next_from_seq(before) + 1:
        return None
    return msgspec.structs.replace(before, detail={**second, "first_seq": first["first_seq"]})
