"""A bundle is found again as it was written, and nothing else is taken for one."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.topic_config import TopicConfig
from tests.golden.make_bundle_golden import sample
from topicsd.engine.bundle.bundle_format import (
    Bundle,
    BundleDamage,
    SegmentMarks,
    decode_bundle,
    encode_bundle,
)
from topicsd.log.file_header import UnknownVersion


def test_a_bundle_is_found_again() -> None:
    assert decode_bundle(encode_bundle(sample())) == sample()


def test_every_cut_and_every_changed_byte_is_damage() -> None:
    data = encode_bundle(sample())
    rng = Random(1)
    for _ in range(300):
        at = rng.randrange(len(data))
        with pytest.raises(BundleDamage):
            decode_bundle(data[:at])
        with pytest.raises(BundleDamage):
            decode_bundle(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])


def test_a_bundle_of_a_newer_program_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("topicsd.engine.bundle.bundle_format.VERSION", 2)
        data = encode_bundle(sample())
    with pytest.raises(UnknownVersion, match="bundle format version 2"):
        decode_bundle(data)


def changed(topic: dict[str, Any], segment: dict[str, Any]) -> Bundle:
    bundle = sample()
    segments = [msgspec.structs.replace(one, **segment) for one in bundle.topic.segments]
    fields = {"segments": segments, **topic}
    return bundle._replace(topic=msgspec.structs.replace(bundle.topic, **fields))


@pytest.mark.parametrize(
    ("bundle", "what"),
    [
        (changed({}, {"is_sealed": False}), "not sealed"),
        (changed({"head": 9}, {}), "ends above the head"),
        (changed({"ceiling": 1 << 40}, {}), "ceiling"),
        (changed({"topic_id": 7}, {}), "id does not match"),
        (changed({"sections": {"other": b"x"}}, {}), "unknown sections: other"),
        (changed({"config": TopicConfig(durability="ephemeral")}, {}), "ephemeral"),
        (changed({}, {"dead_count": 0}), "marks are not those"),
        (changed({}, {"dead_count": 5}), "do not fit its counts"),
        (sample()._replace(marks=[]), "marks are not those"),
        (sample()._replace(marks=[SegmentMarks(1, b"\xff")]), "do not fit its counts"),
    ],
)
def test_a_bundle_that_breaks_a_rule_is_neither_written_nor_read(bundle: Bundle, what: str) -> None:
    with pytest.raises(BundleDamage, match=what):
        encode_bundle(bundle)
