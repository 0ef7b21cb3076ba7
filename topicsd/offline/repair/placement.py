"""The reconstruction of a damaged, lost or wrong PLACEMENT.json from the topics of the shards.

A topic that is in one shard only belongs there. A server looks for it elsewhere when PLACEMENT.json is lost,
and would create it anew. A topic in two shards is left as it is while the file says which of them owns it.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from shared.ipc.placement import PLACEMENT_NAME, Placement
from shared.runtime.clock import Clock
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.placement_file import placement_path, write_placement
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import LoadedShard
from topicsd.offline.table import plural

DAMAGED_SUFFIX = ".damaged"
SHOWN_MAX = 3


class PlacementRefused(Exception):
    """The error that the shards do not say where each topic belongs."""


class DerivedPlacement(NamedTuple):
    placement: Placement
    problem: str
    """What the present placement gets wrong, in words."""
    step: str
    """The step of the repair, in words."""


def derive_placement(data_dir: DataDir, clock: Clock, is_damaged: bool) -> DerivedPlacement | None:
    """Return the placement that fits the topics of all shards; None when the present one does.

    `is_damaged` says that PLACEMENT.json cannot be read; then `data_dir.placement` is the rule.
    """
    shards: dict[str, list[int]] = {}
    for shard in range(data_dir.layout.shards):
        for name in _topics(data_dir, shard, clock):
            shards.setdefault(name, []).append(shard)
    if is_damaged:
        _refuse_copies(shards)
    owner_of = data_dir.placement.owner_of
    moved = {name: at[0] for name, at in sorted(shards.items()) if len(at) == 1 and owner_of(name) != at[0]}
    if not moved and not is_damaged:
        return None
    placement = data_dir.placement.changed(moved)
    names = ", ".join(f'"{name}"' for name in list(moved)[:SHOWN_MAX])
    more = f" and {len(moved) - SHOWN_MAX} more" if len(moved) > SHOWN_MAX else ""
    which = f"{plural(len(moved), 'topic')} in another shard than it gives them: {names}{more}"
    exceptions = plural(len(placement.exceptions), "exception")
    step = f"write {PLACEMENT_NAME} with {exceptions}, from the shards in which the topics are"
    return DerivedPlacement(placement, f"{placement_path(data_dir.path)}: {which}", step)


def write_derived_placement(fs: Fs, data_dir: str, placement: Placement, is_damaged: bool) -> None:
    """Write the placement; a damaged PLACEMENT.json is kept under another name."""
    path = placement_path(data_dir)
    if is_damaged and exists(fs, path):
        fs.rename(path, path + DAMAGED_SUFFIX)
    write_placement(fs, data_dir, placement)


def _refuse_copies(shards: dict[str, list[int]]) -> None:
    for name, at in shards.items():
        if len(at) > 1:
            where = " and ".join(f"shards/{shard:02d}" for shard in at)
            raise PlacementRefused(
                f'topic "{name}" is in {where}, and only {PLACEMENT_NAME} says which of them owns it. '
                "Restore the file from a backup"
            )


def _topics(data_dir: DataDir, shard: int, clock: Clock) -> list[str]:
    """Return the topics of a shard; raise PlacementRefused when a server would not start it."""
    with closing(LoadedShard(data_dir, shard, clock)) as loaded:
        loaded.walk()
        problem = loaded.problem or loaded.log.problem
        if problem:
            raise PlacementRefused(
                f"shards/{shard:02d} cannot be read to its end: {problem}. Repair it first"
            )
        return [topic.name for topic in loaded.state.topics.values()]
