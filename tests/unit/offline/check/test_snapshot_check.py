"""What cannot be between the parts of a snapshot is named, each by its rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.test_doctor import kept
from topicsd.engine.checkpoint.snapshot_files import read_snapshot
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.offline.check.snapshot_check import check_snapshot


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    shard = kept(tmp_path)
    return read_snapshot(shard.fs, shard.paths, 2)


def complaints(snapshot: Snapshot, **changed: Any) -> list[str]:
    topics = [
        msgspec.structs.replace(topic, **changed) if topic.name == "orders" else topic
        for topic in snapshot.topics
    ]
    return [what for _, what in check_snapshot(snapshot._replace(topics=topics))]


def test_what_a_checkpoint_wrote_is_fine(snapshot: Snapshot) -> None:
    assert complaints(snapshot) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"topic_id": 7}, "id"),
        ({"epoch": 1 << 40}, "epoch"),
        ({"complete_to": 1}, "complete to"),
        ({"complete_to": 1 << 40}, "complete to"),
        ({"earliest_seq": 0}, "out of order"),
        ({"evict_floor": 9}, "out of order"),
        ({"evicted_to": {"cap": 5}}, "not above every evicted seq"),
        ({"ceiling": 3}, "ceiling"),
        ({"lost": [(9, 5, "crash")]}, "lost range"),
        ({"lost": [(34, 90, "crash")]}, "lost range"),
        ({"segments": []}, "its first live seq, 1, is in no segment or lost range"),
    ],
)
def test_a_violated_invariant_is_named(snapshot: Snapshot, changed: dict[str, Any], problem: str) -> None:
    assert any(problem in what for what in complaints(snapshot, **changed))


def test_a_hole_is_fine_where_it_is_lost_or_all_of_it_was_deleted(snapshot: Snapshot) -> None:
    (orders,) = [topic for topic in snapshot.topics if topic.name == "orders"]
    first, second, *others = orders.segments
    assert complaints(snapshot, segments=[first, *others]) == []
    assert complaints(snapshot, segments=[second, *others]) == [
        "its first live seq, 1, is in no segment or lost range"
    ]
    assert complaints(snapshot, segments=[second, *others], lost=[(1, 10, "crash")]) == []
    assert complaints(snapshot, segments=[second, *others], earliest_seq=11) == []


def test_segments_that_overlap_are_named(snapshot: Snapshot) -> None:
    (orders,) = [topic for topic in snapshot.topics if topic.name == "orders"]
    first = msgspec.structs.replace(orders.segments[0], count=12)
    assert any("overlaps" in what for what in complaints(snapshot, segments=[first, *orders.segments[1:]]))
