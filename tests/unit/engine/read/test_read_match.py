"""Reads with a filter by tag."""

from __future__ import annotations

import pytest

from shared.contract.tag_filter import TagFilter
from tests.harness.shard.one_shard import OneShard, record

ONE = TagFilter(frozenset(["tag-1"]))


def filled(count: int = 200) -> OneShard:
    one = OneShard()
    one.put("t")
    one.append(
        "t",
        *[record(n, tag=f"tag-{n % 3}" if n % 4 else None, node='a,"$tag":"b') for n in range(1, count + 1)],
    )
    return one


@pytest.mark.parametrize("with_tags", [True, False])
def test_a_read_delivers_the_records_that_its_filter_selects(with_tags: bool) -> None:
    one = filled()
    answer = one.read("t", 0, limit=1000, match=ONE, with_tags=with_tags)
    assert [record.seq for record in answer.records] == [n for n in range(1, 201) if n % 3 == 1 and n % 4]
    values = {(record.tag, record.node) for record in answer.records}
    assert values == {(b"tag-1" * with_tags, b'a,"$tag":"b')}
    assert (answer.next_from_seq, answer.caught_up) == (200, True)


def test_a_read_of_a_filter_without_records_moves_its_position() -> None:
    one = filled()
    answer = one.read("t", 0, match=TagFilter(frozenset(["none"])))
    assert (answer.records, answer.next_from_seq, answer.caught_up) == ([], 200, True)


def test_a_limited_read_continues_after_its_last_record() -> None:
    one = filled()
    answer = one.read("t", 0, limit=2, match=ONE)
    assert ([record.seq for record in answer.records], answer.next_from_seq) == ([1, 7], 7)
