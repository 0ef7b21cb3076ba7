from __future__ import annotations

import msgspec

from shared.contract.topic_config import TopicConfig
from tests.unit.checkpoint.sample import ORDERS
from topicsd.engine.checkpoint.manifest import ManifestTopic, topic_line

CAPPED = msgspec.structs.replace(ORDERS, config=TopicConfig(cap_records=7, cap_bytes=900, discard="reject"))


def test_the_manifest_has_the_caps_that_the_later_log_applies() -> None:
    manifest = msgspec.json.decode(topic_line(CAPPED, 0), type=ManifestTopic)
    assert (manifest.cap_records, manifest.cap_bytes, manifest.discard) == (7, 900, "reject")
    assert [one.live_bytes for one in manifest.segments] == [one.live_bytes for one in CAPPED.segments]


def test_a_manifest_from_before_there_were_these_fields_is_read() -> None:
    manifest = msgspec.json.decode(topic_line(CAPPED, 0))
    for name in ("cap_records", "cap_bytes", "discard"):
        del manifest[name]
    for segment in manifest["segments"]:
        del segment["live_bytes"]
    read = msgspec.json.decode(msgspec.json.encode(manifest), type=ManifestTopic)
    assert (read.cap_records, read.cap_bytes, read.discard) == (0, 0, "old")
