"""The placement of topics after a reshard, and the leftovers of relocations before it.

An exception stays when its shard still exists, so a topic that was moved on purpose is not moved back. An
entry with which the rule of the new count agrees, or whose shard is removed, goes.

A copy of a topic for which an entry names another shard is the leftover of a relocation. A start drops it,
and so does a reshard: the new placement could name the shard that has the copy. Any other topic must be where
the placement says, since only then is it known which shard owns it.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.contract.names import topic_id
from shared.ipc.placement import PLACEMENT_NAME, Placement
from topicsd.disk.layout import doctor_command
from topicsd.offline.reshard.rest import ReshardRefused, RestedShard


class NewPlacement(NamedTuple):
    placement: Placement
    dropped: list[str]
    """The names of the topics that were exceptions and are not any more."""


def new_placement(old: Placement, shards: int) -> NewPlacement:
    """Return the placement for another number of shards.

    >>> before = Placement(5, {"orders": 2, "a": 4}, 3)
    >>> after = new_placement(before, 3)
    >>> after.placement.exceptions, after.placement.version, after.dropped
    ({'orders': 2}, 4, ['a'])
    """
    kept = {name: shard for name, shard in old.exceptions.items() if shard < shards}
    placement = Placement(old.shard_count, kept, old.version, epoch_floor=old.epoch_floor).settled(shards)
    dropped = [
        name
        for name, shard in old.exceptions.items()
        if name not in placement.exceptions and old.rule_shard_of(topic_id(name)) != shard
    ]
    return NewPlacement(placement, dropped)


def without_leftovers(data_dir: str, placement: Placement, old: list[RestedShard]) -> list[RestedShard]:
    """Return the old shards without leftovers of relocations.

    Raise ReshardRefused when the placement does not say where a topic belongs.
    """
    shards: dict[int, int] = {}
    cleaned = []
    for shard in old:
        departed = {one.topic_id for one in shard.departed}
        kept = []
        for topic in shard.topics:
            name, owner = f'topic "{topic.name}"', placement.shard_of(topic.topic_id)
            is_misplaced = owner != shard.number and topic.topic_id not in departed
            if is_misplaced and topic.name in placement.exceptions:
                continue
            first = shards.setdefault(topic.topic_id, shard.number)
            if first != shard.number:
                raise ReshardRefused(
                    f"{name} is in shards/{first:02d} and shards/{shard.number:02d}, and only "
                    f"{PLACEMENT_NAME} says which of them owns it; restore the file from a backup"
                )
            if is_misplaced:
                raise ReshardRefused(
                    f"{name} is in shards/{shard.number:02d}, but by {PLACEMENT_NAME} and the rule it "
                    f"belongs to shard {owner:02d}; run: {doctor_command(data_dir)}"
                )
            kept.append(topic)
        cleaned.append(shard._replace(topics=kept))
    return cleaned
