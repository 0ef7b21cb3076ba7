"""Damage found by a read, the scrub or a checkpoint: logged and counted once for each segment."""

from __future__ import annotations

import logging

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
