"""Every encoding of compacted objects that was ever released stays readable, and is written as it was."""

from __future__ import annotations

import json

import pytest

from tests.golden.make_compacted_golden import GOLDEN, REBASE, described
from topicsd.broker.frames_v1 import SEGMENT_V1
from topicsd.broker.segment_v1 import segment_of
from topicsd.segment.data_file import scan_data
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES, decode_index

ENCODINGS = sorted(path.name for path in GOLDEN.glob("compacted-*"))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_was_in_it_is_found_in_it(encoding: str) -> None:
    expected = json.loads((GOLDEN / encoding / "expected.json").read_text(encoding="utf-8"))
    assert len(expected) == 5
    assert described((GOLDEN / encoding / "object").read_bytes()) == expected


def test_readers_of_segments_find_the_same() -> None:
    data = (GOLDEN / f"compacted-{SEGMENT_V1}" / "object").read_bytes()
    data_bytes = len(data) - 5 * ENTRY_BYTES - FOOTER_BYTES
    name, entry = segment_of(REBASE, data_bytes)
    frames = list(scan_data(lambda at, size: data[at : at + size], name, entry))
    assert [(one.seq, one.frame.ts) for one in frames] == [
        (1001, 5000),
        (1002, 5000),
        (1003, 5000),
        (1004, 4000),
        (1005, 4000),
    ]
    index = decode_index(data[data_bytes:], REBASE.first_seq, 5, sealed=True)
    assert [index.place_of(one.seq) for one in frames] == [(one.offset, one.frame.size) for one in frames]


def test_the_running_encoding_has_a_golden_object() -> None:
    assert f"compacted-{SEGMENT_V1}" in ENCODINGS
