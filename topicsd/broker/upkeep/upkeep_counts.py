"""What a scheduler of upkeep has done, and its metrics: the same ones of brokers and of compactors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from shared.text.prometheus import family_header
from topicsd.broker.upkeep.stages import STAGES

_GAUGES: Final = ("topics", "pending_topics", "pending_records")
_HELP: Final = {
    "passes": "Passes over the topics.",
    "runs": "Visits of topics.",
    "recovered": "Compactions of processes that ended, which were finished.",
    "merged": "Objects that were made of slices.",
    "merged_extents": "Slices that were merged.",
    "merged_bytes": "Bytes of the objects that were made.",
    "busy": "Visits that found the topic claimed by another process.",
    "refused": "Compactions that the catalog refused.",
    "failed": "Visits, listings and vacuums that failed.",
    "blocked_extents": "Slices that stop the compaction of their topic.",
    "trims": "Trims by retention.",
    "trimmed_records": "Records that retention removed.",
    "vacuums": "Vacuums of the store.",
    "vacuumed_objects": "Objects that vacuums deleted.",
    "vacuumed_bytes": "Bytes of the objects that vacuums deleted.",
    "topics": "Shared topics that are known.",
    "pending_topics": "Topics with records that are not compacted.",
    "pending_records": "Records that are not compacted.",
}


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


def upkeep_lines(counts: UpkeepCounts, label: str = "") -> Iterator[str]:
    """Yield the counts as Prometheus text; `label` is one that each line gets."""
    labels = f"{{{label}}}" if label else ""
    for field, text in _HELP.items():
        is_gauge = field in _GAUGES
        name = f"topics_compactor_{field}" + ("" if is_gauge else "_total")
        yield from family_header(name, "gauge" if is_gauge else "counter", text)
        yield f"{name}{labels} {getattr(counts, field)}"
    name = "topics_compactor_stage_seconds_total"
    yield from family_header(name, "counter", "Time of the requests of each stage.")
    before = f"{label}," if label else ""
    for stage, seconds in counts.stage_seconds.items():
        yield f'{name}{{{before}stage="{stage}"}} {seconds:.6f}'
