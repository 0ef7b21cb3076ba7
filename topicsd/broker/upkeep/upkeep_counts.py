"""What a scheduler of upkeep has done, for metrics."""

from __future__ import annotations

import msgspec

from topicsd.broker.upkeep.stages import STAGES


def _zeros() -> dict[str, float]:
    return dict.fromkeys(STAGES, 0.0)


class UpkeepCounts(msgspec.Struct):
    """Each number only grows, and begins at 0 with the process, but for those at the end."""

    passes: int = 0
    runs: int = 0
    """Visits of topics."""
    recovered: int = 0
    """Compactions that a process had begun that is gone, and this one finished."""
    merged: int = 0
    """Objects that were made of several slices."""
    merged_extents: int = 0
    merged_bytes: int = 0
    busy: int = 0
    """Visits that found the topic claimed by another process."""
    refused: int = 0
    """Compactions that the catalog refused, since the extents had changed or the claim was lost."""
    failed: int = 0
    """Visits, listings and vacuums that ended with an error of the store or the catalog."""
    blocked_extents: int = 0
    """Slices that stop the compaction of their topic: the object is missing, or the encoding unknown."""
    trims: int = 0
    trimmed_records: int = 0
    vacuums: int = 0
    vacuumed_objects: int = 0
    vacuumed_bytes: int = 0
    stage_seconds: dict[str, float] = msgspec.field(default_factory=_zeros)
    """The time of the calls of each stage, on all threads."""
    topics: int = 0
    """Topics that are known now."""
    pending_topics: int = 0
    """Topics with records that are not compacted, when they were listed last."""
    pending_records: int = 0

    def numbers(self) -> dict[str, float]:
        """Return all numbers by name, those of the stages as `seconds_` and the stage."""
        stages = {f"seconds_{stage}": seconds for stage, seconds in self.stage_seconds.items()}
        rest = {name: getattr(self, name) for name in self.__struct_fields__ if name != "stage_seconds"}
        return {**rest, **stages}
