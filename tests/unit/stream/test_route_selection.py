from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.contract.route_rule import RouteRule
from topicsd.engine.requests import CopiedRecord
from topicsd.engine.routes.stamp import HOPS_MAX, Stamp, read_stamp, stamped_meta
from topicsd.stream.chunks import Chunk
from topicsd.stream.route_selection import SourceChunk, copied_records, original_seqs, selected_records

RULE = RouteRule("r", "a", "b")
STAMP = Stamp("z", 3, 4, 5)


def source(*metas: bytes) -> SourceChunk:
    parts = [
        b'{"$seq":%d,"$ts":1,"meta":%b,"data":%d}' % (seq, meta, seq) for seq, meta in enumerate(metas, 1)
    ]
    records = b",".join(parts)
    return SourceChunk(Chunk("a", 9, 0, len(metas), len(metas), 1, len(metas), records, None))


def metas(records: list[Any]) -> list[bytes]:
    return [bytes(one.meta) for one in records]


def copies_of(source: SourceChunk, rule: RouteRule, copied_seqs: set[int]) -> list[CopiedRecord]:
    return copied_records(source, rule, selected_records(source, rule, copied_seqs))


def rule(**changes: Any) -> RouteRule:
    return msgspec.structs.replace(RULE, **changes)


def test_routes_that_copy_everything_share_the_records() -> None:
    source_chunk = source(b'{"k":1}')
    assert copies_of(source_chunk, RULE, set()) is copies_of(source_chunk, rule(may_cycle=False), set())


@pytest.mark.parametrize("meta", [b"{}", b'{"k":1.0}', b'{ "k" : [1, 2] }', b'{"_topics_router2":1}'])
def test_a_stamp_preserves_the_meta_of_the_writer(meta: bytes) -> None:
    stamped = stamped_meta(meta, STAMP)
    assert msgspec.json.decode(stamped)["_topics_router"] == STAMP._asdict()
    assert msgspec.json.decode(read_stamp(stamped)[1] or b"{}") == msgspec.json.decode(meta)
    again = stamped_meta(read_stamp(stamped)[1], STAMP)
    assert again == stamped
    assert read_stamp(meta) == (None, meta)


@pytest.mark.parametrize(
    "meta",
    [
        b'{"x":{"_topics_router":{"source":"a","epoch":1,"seq":2,"hops":3}}}',
        b'{"x":"\\"_topics_router\\":{\\"source\\":\\"a\\",\\"epoch\\":1,\\"seq\\":2,\\"hops\\":3}}"}',
        b'{"_topics_router":7}',
    ],
)
def test_meta_that_resembles_a_stamp_is_not_one(meta: bytes) -> None:
    stamp, rest = read_stamp(meta)
    assert stamp is None
    assert b"7" in meta or rest == meta


def test_a_stamp_is_read_from_a_dead_letter() -> None:
    stamped = stamped_meta(b'{"k":1}', STAMP)
    dead = stamped[:-1] + b',"$dead_letter_from":"q"}'
    stamp, rest = read_stamp(dead)
    assert (stamp, rest) == (STAMP, b'{"k":1,"$dead_letter_from":"q"}')


def test_a_stamped_record_keeps_a_stamp_and_counts_its_hops() -> None:
    source_chunk = source(
        b'{"k":1}', stamped_meta(b'{"k":1}', STAMP), stamped_meta(b"", STAMP._replace(hops=HOPS_MAX))
    )
    first, second = copies_of(source_chunk, RULE, set())
    assert bytes(first.meta) == b'{"k":1}'
    assert read_stamp(bytes(second.meta)) == (Stamp("a", 9, 2, 6), b'{"k":1}')
    for stamping in (rule(may_cycle=True), rule(is_exactly_once=True)):
        stamps = [read_stamp(meta)[0] for meta in metas(copies_of(source_chunk, stamping, set()))]
        assert stamps == [Stamp("a", 9, 1, 1), Stamp("a", 9, 2, 6)]


def test_records_that_the_destination_holds_are_not_copied() -> None:
    source_chunk = source(b"{}", b"{}", b"{}")
    assert [one.seq for one in copies_of(source_chunk, rule(is_exactly_once=True), {2, 7})] == [1, 3]


def test_original_seqs_are_of_one_source_and_epoch() -> None:
    source_chunk = source(
        *(stamped_meta(b"", STAMP._replace(seq=seq, epoch=epoch)) for seq, epoch in ((7, 3), (8, 2)))
    )
    assert original_seqs(source_chunk.chunk, "z", 3) == [7]
    assert original_seqs(source_chunk.chunk, "a", 3) == []
    assert original_seqs(source(b"{}").chunk, "z", 3) == []
