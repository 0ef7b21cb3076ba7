from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.settings.settings import Settings
from topicsd.engine.requests import NO_META, CopiedRecord
from topicsd.engine.routes.copies import CopiedFrames
from topicsd.engine.write.encode_records import encode_records

PLAIN = {"data": b'{"n":1}'}
KINDS: list[dict[str, Any]] = [
    PLAIN,
    {"data": b'"x"', "tag": "t"},
    {"data": b"null", "node": "n"},
    {"data": b"[]", "meta": b'{"k":1.0}'},
    {"data": b"7", "tag": "\u00e4" * 100, "node": "\u00f6", "meta": b"{}"},
    {"data": b"7", "tag": "", "node": ""},
]


def record(seq: int, data: bytes, tag: str | None = None, node: str | None = None, meta: bytes = b"") -> Any:
    raw = msgspec.Raw(meta) if meta else NO_META
    return CopiedRecord(msgspec.Raw(data), tag, node, raw, seq)


def records(*kinds: dict[str, Any]) -> list[Any]:
    return [record(seq, **kind) for seq, kind in enumerate(kinds, 100)]


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("kinds", [[one] for one in KINDS] + [KINDS, [PLAIN, PLAIN], []])
def test_a_copy_has_the_bytes_that_an_append_of_it_would_have(
    kinds: list[dict[str, Any]], is_durable: bool
) -> None:
    taken = records(*kinds)
    frames = CopiedFrames(taken)
    for topic_id, first_seq, ts in ((7, 1, 1000), (1 << 63, 1 << 40, 1 << 41)):
        encoded = frames.encode(topic_id, first_seq, ts, is_durable)
        assert encoded == encode_records(taken, None, topic_id, first_seq, ts, is_durable, Settings())


def test_limits_are_those_of_the_time_when_the_source_took_it() -> None:
    taken = records({"data": b'"%b"' % (b"x" * 5000), "tag": "t" * 300})
    _, lengths, size, tags = CopiedFrames(taken).encode(7, 1, 1, False)
    assert (lengths, tags) == ([size], [b"t" * 300])


@pytest.mark.parametrize(("first", "end"), [(0, 6), (0, 2), (2, 6), (1, 3), (6, 6), (4, 9), (9, 6)])
def test_a_part_is_what_stands_there(first: int, end: int) -> None:
    taken = records(*KINDS)
    part = CopiedFrames(taken).part(first, end)
    assert part.seqs == [one.seq for one in taken[first:end]]
    assert len(part) == len(part.seqs)
    again = CopiedFrames(taken[first:end]).encode(7, 1, 1, False)
    assert part.encode(7, 1, 1, False) == again
