"""Every snapshot format that was ever released stays readable: what was in it then is found in it now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make_snapshot_golden import GOLDEN, NUMBER, described
from topicsd.disk.layout import snapshot_name
from topicsd.engine.checkpoint.manifest import decode_manifest
from topicsd.engine.checkpoint.snapshot_format import VERSION, decode_snapshot

VERSIONS = sorted(path.name for path in GOLDEN.glob("snapshot-format-*"))


def expected_of(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / version / "expected.json").read_text(encoding="utf-8"))
    return content


def data_of(version: str) -> Path:
    return GOLDEN / version / "data"


def assert_holds(actual: Any, expected: Any, place: str) -> None:
    """A later release may know more fields; those that were known then have to be the same."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_holds(actual[name], value, f"{place}.{name}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), place
        for number, (one, value) in enumerate(zip(actual, expected, strict=True)):
            assert_holds(one, value, f"{place}[{number}]")
    else:
        assert actual == expected, place


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_in_a_snapshot_is_found_in_it(version: str) -> None:
    snapshot = decode_snapshot((data_of(version) / snapshot_name(NUMBER)).read_bytes())
    assert_holds(described(snapshot), expected_of(version), "snapshot")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifest_of_then_names_the_same_topics_and_segments(version: str) -> None:
    expected = expected_of(version)
    manifest = decode_manifest((data_of(version) / "MANIFEST.json").read_bytes())
    assert manifest.number == expected["head"]["number"]
    assert manifest.wal.ordinal == expected["head"]["start"]["ordinal"]
    for topic, entry in zip(manifest.topics, expected["topics"], strict=True):
        assert (topic.name, topic.epoch, topic.head) == (entry["name"], entry["epoch"], entry["head"])
        assert [segment.first_seq for segment in topic.segments] == [
            segment["first_seq"] for segment in entry["segments"]
        ]


def test_the_running_version_has_a_golden_snapshot() -> None:
    assert f"snapshot-format-{VERSION}" in VERSIONS
