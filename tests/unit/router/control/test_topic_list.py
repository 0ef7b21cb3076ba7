from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.control.topic_list import (
    ListPage,
    ListQuery,
    covering_prefixes,
    cursor_after,
    list_page,
    name_of_cursor,
)
from shared.contract.errors import NOT_READY, Refusal
from shared.contract.names import topic_id
from shared.ipc.placement import shard_of

NAMES = sorted(f"{letter}{number}" for letter in ("a.", "a:", "b", "B", "c-") for number in range(40))


class Shards:
    """Shards with their topics; those in `down` do not answer."""

    def __init__(self, count: int, down: set[int] | None = None) -> None:
        self.count = count
        self.down = down or set()
        self.listed_count = 0

    async def list_shard(
        self, shard: int, prefix: str, after: str, limit: int
    ) -> list[dict[str, Any]] | None:
        if shard in self.down:
            return None
        mine = (name for name in NAMES if shard_of(topic_id(name), self.count) == shard)
        listed = [name for name in mine if name > after and name.startswith(prefix)][:limit]
        self.listed_count += len(listed)
        return [{"topic": name, "count": 1} for name in listed]

    def page(
        self,
        prefix: str = "",
        after: str = "",
        size: int = 100,
        partial: bool = False,
        keys: tuple[str, ...] = (),
    ) -> ListPage | Refusal:
        query = ListQuery(prefix, after, size, partial)
        return asyncio.run(list_page(self.list_shard, self.count, query, keys))

    def all_names(self, prefix: str, size: int, keys: tuple[str, ...] = ()) -> list[str]:
        names: list[str] = []
        after: str | None = ""
        while after is not None:
            page = self.page(prefix, after, size, keys=keys)
            assert isinstance(page, ListPage)
            assert len(page.entries) <= size
            names += [topic["topic"] for topic in page.entries]
            after = None if page.next_cursor is None else name_of_cursor(page.next_cursor)
            assert page.next_cursor is None or after == names[-1]
        return names


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 7, 40, 1000])
@pytest.mark.parametrize("prefix", ["", "a", "a.", "b1", "zz"])
def test_the_pages_contain_all_names_in_order(count: int, size: int, prefix: str) -> None:
    assert Shards(count).all_names(prefix, size) == [name for name in NAMES if name.startswith(prefix)]


@pytest.mark.parametrize("size", [1, 13, 1000])
@pytest.mark.parametrize("prefix", ["", "a", "a.1", "c"])
def test_a_key_sees_the_names_of_its_prefixes(size: int, prefix: str) -> None:
    keys = ("c-2", "a.", "a.1", "b")
    expected = [name for name in NAMES if name.startswith(prefix) and name.startswith(keys)]
    assert Shards(3).all_names(prefix, size, keys) == expected


def test_a_full_last_page_has_no_cursor() -> None:
    page = Shards(2).page("B", size=40)
    assert isinstance(page, ListPage)
    assert (len(page.entries), page.next_cursor) == (40, None)


def test_a_page_takes_at_most_a_page_of_each_shard() -> None:
    shards = Shards(2)
    shards.page(size=5)
    assert shards.listed_count <= 2 * 6


def test_a_shard_that_does_not_answer_is_named() -> None:
    refusal = Shards(3, down={1}).page()
    assert isinstance(refusal, Refusal)
    assert refusal.code == NOT_READY
    assert refusal.detail == {"missing_shards": [1]}
    assert refusal.retry_after_ms


def test_a_partial_list_names_its_missing_shards() -> None:
    page = Shards(3, down={1}).page(partial=True, keys=("a", "b"))
    assert isinstance(page, ListPage)
    assert page.missing_shards == [1]
    names = [name for name in NAMES if shard_of(topic_id(name), 3) != 1 and name.startswith(("a", "b"))]
    assert [topic["topic"] for topic in page.entries] == names[:100]


@pytest.mark.parametrize(
    "cursor",
    ["", "!", "YQ==", "YQ=", "YR", "b3JkZXJzIQ", "Y", "ü", "\udcff", "YQ ", " YQ", "YQ\n", "a" * 10_000],
)
def test_an_invalid_cursor_is_none(cursor: str) -> None:
    assert name_of_cursor(cursor) is None


@pytest.mark.parametrize("name", ["a", "orders.eu:2024", "x" * 255, "Z-_._:"])
def test_a_cursor_contains_its_name(name: str) -> None:
    assert name_of_cursor(cursor_after(name)) == name


def test_prefixes_within_other_prefixes_are_dropped() -> None:
    assert covering_prefixes("", ["a", "ab", "b", "a"]) == ["a", "b"]
