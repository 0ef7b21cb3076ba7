"""The directory of everything is complete: no frame type, snapshot section or field is missing from it.

A failure here means that a feature was added: `tests/harness/server/everything_fill.py` has to use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec
import pytest

from shared.contract.route_rule import RouteRule
from shared.contract.topic_config import TopicConfig
from tests.harness.output.command_run import run_here
from tests.harness.server.everything import Everything, snapshots_of
from tests.harness.server.everything_fill import SEGMENT_RECORDS
from topicsd.engine.checkpoint.snapshot_format import (
    HEAD_SECTIONS,
    TOPIC_SECTIONS,
    KeyGeneration,
    SnapshotHead,
    SnapshotTopic,
)
from topicsd.engine.queue.state import QueueSection
from topicsd.log import control_frame
from topicsd.log.control_frame import ControlPayload
from topicsd.log.frame import FrameType
from topicsd.segment.entry import SegmentEntry

CONTROLS = {struct.__name__: struct for struct in get_args(ControlPayload)}
# A tick comes at a whole minute, for which the directory is not kept waiting; the golden files have one.
OF_A_TICK = {"Schedule": {"last_seq"}}


def fields_in_use(values: Iterable[Any]) -> set[str]:
    """Return the fields that are not empty, zero or false in at least one of the structs."""
    return {name for value in values for name in value.__struct_fields__ if getattr(value, name)}


def controls(everything: Everything) -> dict[str, list[dict[str, Any]]]:
    """Return the control frames of the log, by type; a start from the older snapshot replays them all."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in run_here("inspect", everything.data, "--frames", "--json").json_lines:
        rows.setdefault(row["type"], []).append(row.get("control", {}))
    return rows


def test_every_frame_type_occurs_in_the_log(everything: Everything) -> None:
    rows = run_here("inspect", everything.data, "--frames", "--json").json_lines
    # Never written: the number is reserved.
    types = set(FrameType) - {FrameType.CHECKPOINT_MARK}
    assert {row["type"] for row in rows} == {one.name.lower() for one in types}


@pytest.mark.parametrize("name", CONTROLS)
def test_every_control_frame_occurs_with_all_its_fields(everything: Everything, name: str) -> None:
    frame_type = control_frame.frame_type_of(CONTROLS[name])
    said = controls(everything)[frame_type.name.lower()]
    used = {field for one in said for field, value in one.items() if value}
    fields, rare = set(CONTROLS[name].__struct_fields__), OF_A_TICK.get(name, set())
    assert fields - rare <= used <= fields


def test_every_section_of_a_snapshot_occurs(everything: Everything) -> None:
    snapshots = snapshots_of(everything)
    assert {name for one in snapshots for name, data in one.head.sections.items() if data} == HEAD_SECTIONS
    in_topics = {
        name for one in snapshots for topic in one.topics for name, data in topic.sections.items() if data
    }
    assert in_topics == TOPIC_SECTIONS


def test_every_field_of_a_snapshot_is_used(everything: Everything) -> None:
    snapshots = snapshots_of(everything)
    topics = [topic for one in snapshots for topic in one.topics]
    segments = [segment for topic in topics for segment in topic.segments]
    keys = [key for one in snapshots for key in one.keys]
    decode = msgspec.msgpack.Decoder(QueueSection).decode
    queues = [decode(topic.sections["queue"]) for topic in topics if "queue" in topic.sections]
    for struct, values in (
        (SnapshotHead, [one.head for one in snapshots]),
        (SnapshotTopic, topics),
        (SegmentEntry, segments),
        (KeyGeneration, keys),
        (QueueSection, queues),
    ):
        assert set(struct.__struct_fields__) - fields_in_use(values) == set(), struct


def test_every_setting_of_topics_and_routes_is_used(everything: Everything) -> None:
    states = everything.said.states.values()
    changed = {
        name
        for state in states
        for name, value in state["config"].items()
        if value != getattr(TopicConfig(), name, value)
    }
    assert set(TopicConfig.__struct_fields__) - changed == set()
    rules = [one["rule"] for one in controls(everything)["forward_create"]]
    default = msgspec.structs.asdict(RouteRule("", "", ""))
    changed = {name for rule in rules for name, value in rule.items() if value != default[name]}
    assert set(RouteRule.__struct_fields__) - changed == set()


def test_every_kind_of_topic_between_nodes_occurs(everything: Everything) -> None:
    """Exported and in use, sealed, and taken over by another node."""
    snapshots, names = snapshots_of(everything), everything.first
    topics = {topic.name: topic for one in snapshots for topic in one.topics}
    exported = [segment for segment in topics[names.exported].segments if segment.object_stem]
    assert exported
    states = [*everything.cold.rglob("*.state")]
    assert any(f"{topics[names.exported].topic_id:016x}-" in str(path) for path in states)
    inspected = run_here("inspect", everything.data, "--json").json["shards"]
    departed = {one["topic"]: one["state"] for shard in inspected for one in shard["departed"]}
    assert departed[names.sealed_late] == "sealed"
    assert departed[names.taken] == "moved"
    assert everything.said.states[names.exported]["count"] > 0


def test_a_topic_moved_to_another_shard_occurs(everything: Everything) -> None:
    name = everything.first.moved
    report = run_here("inspect", everything.data, "--json").json
    assert report["exceptions"] == {name: 1}
    shards = [{topic["topic"] for topic in shard["topics"]} for shard in report["shards"]]
    assert [name in topics for topics in shards] == [False, True]
    assert everything.said.states[name]["count"] == 2 * SEGMENT_RECORDS - 3 + 5


def test_a_merged_segment_occurs(everything: Everything) -> None:
    topics = [topic for one in snapshots_of(everything) for topic in one.topics]
    (merged,) = [topic for topic in topics if topic.name == everything.first.merged]
    first, *others = merged.segments
    assert (first.generation, first.first_seq, first.dead_count) == (1, 1, 2)
    assert all(first.count == 2 * other.count for other in others)
