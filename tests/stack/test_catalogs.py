"""One suite over every kind of catalog: they do the same."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shared.runtime.retries import Retries
from tests.harness.catalog.catalog_crowd import CatalogCrowd
from topicsd.catalog.catalog import (
    Catalog,
    ChangeRefused,
    Extent,
    ExtentObject,
    Fenced,
    Lookup,
    NewTopic,
    Ownership,
    TopicRow,
)
from topicsd.catalog.key_value_catalog import KeyValueCatalog
from topicsd.catalog.open_catalog import open_catalog

POLICY = Retries(time.monotonic, time.sleep, 10.0)
A = Ownership("a", 7, 1)
ID = (1 << 64) - 5
_databases = itertools.count()

Open = Callable[[], Catalog]


@pytest.fixture(params=["sqlite", "postgresql", "etcd", "oxia"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the catalog of one test, as another node would."""
    url = "sqlite:"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql").new_database(f"test_{next(_databases)}")
    elif request.param != "sqlite":
        url = request.getfixturevalue(request.param).url
    opened: list[Catalog] = []

    def open_next() -> Catalog:
        opened.append(open_catalog(url, str(tmp_path), POLICY))
        return opened[-1]

    yield open_next
    # Servers of keys have one space of names for all tests.
    if opened and isinstance(opened[0], KeyValueCatalog):
        remove_all(opened[0])
    for catalog in opened:
        catalog.close()


def remove_all(catalog: KeyValueCatalog) -> None:
    store = catalog._store
    for first in ("names/", "storage/"):
        for entry in store.range(first, first + "~", 10_000):
            store.delete_if(entry.key, entry.version)


@pytest.fixture
def catalog(open_one: Open) -> Catalog:
    return open_one()


def extent(first: int, last: int, generation: int = 0) -> Extent:
    objects = tuple(ExtentObject(f"t/{first}-{generation}.{kind}", last, "xxh:1") for kind in ("data", "idx"))
    return Extent(first, last, objects, 1000 + first, 1000 + last, 1, generation)


def row(ceiling: int, exported_from: int = 1, exported_to: int = 0) -> TopicRow:
    return TopicRow("t", ID, 7, "a", 1, ceiling, exported_from, exported_to, "owned", None)


def exported(catalog: Catalog) -> None:
    """Make the topic `t` with three extents, exported to 9."""
    catalog.create("t", ID, 7, "a", 100)
    catalog.publish_extents("t", A, [extent(1, 4), extent(5, 5), extent(6, 9)], [])


def test_a_topic_is_created_once_and_owned_by_its_node(catalog: Catalog) -> None:
    assert catalog.own("t", A) == Lookup(None, False)
    assert catalog.create("t", ID, 7, "a", 10) == row(10)
    assert catalog.create("t", ID, 7, "a", 5) == row(10)
    assert catalog.create("t", ID, 7, "a", 12) == row(12)
    for node, incarnation in (("b", 7), ("a", 8)):
        with pytest.raises(Fenced, match="topic t: owned by node a with owner epoch 1") as fence:
            catalog.create("t", ID, incarnation, node, 10)
        assert fence.value.row == row(12)
    assert catalog.own("t", A) == Lookup(row(12), True)
    for other in (Ownership("b", 7, 1), Ownership("a", 8, 1), Ownership("a", 7, 2)):
        assert catalog.own("t", other) == Lookup(row(12), False)


def test_several_topics_are_created_at_once_each_by_itself(catalog: Catalog) -> None:
    catalog.create("b", ID, 7, "other", 10)
    catalog.create("d", ID, 7, "a", 10)
    new = [NewTopic(name, ID, 7, 10) for name in "abcd"]
    for _ in range(2):
        first, second, third, fourth = catalog.create_all(new, "a")
        assert isinstance(first, TopicRow)
        assert (first.name, first.owner, first.ceiling) == ("a", "a", 10)
        assert isinstance(second, Fenced)
        assert second.row is not None
        assert second.row.owner == "other"
        assert isinstance(third, TopicRow)
        assert isinstance(fourth, TopicRow)
    assert [one.name for one in catalog.list("", "", 10)] == ["a", "b", "c", "d"]
    assert catalog.create_all([], "a") == []


def test_a_ceiling_only_rises_and_only_for_the_owner(catalog: Catalog) -> None:
    catalog.create("t", ID, 7, "a", 10)
    assert catalog.raise_ceiling("t", A, 30).ceiling == 30
    assert catalog.raise_ceiling("t", A, 20).ceiling == 30
    with pytest.raises(Fenced):
        catalog.raise_ceiling("t", Ownership("a", 7, 2), 50)
    with pytest.raises(Fenced, match="topic no: not in the catalog") as fence:
        catalog.raise_ceiling("no", A, 50)
    assert fence.value.row is None


def test_extents_are_appended_merged_and_trimmed(catalog: Catalog) -> None:
    exported(catalog)
    assert catalog.own("t", A).row == row(100, 1, 9)
    merged = [extent(1, 5, 1)]
    for _ in range(2):
        catalog.publish_extents("t", A, merged, [extent(1, 4), extent(5, 5)])
        assert catalog.extents_from("t", 0, 10) == [*merged, extent(6, 9)]
    assert catalog.extents_from("t", 5, 1) == merged
    assert catalog.extents_from("t", 6, 10) == [extent(6, 9)]
    assert catalog.extents_from("t", 10, 10) == []
    for _ in range(2):
        assert catalog.publish_extents("t", A, [], merged) == row(100, 6, 9)
    assert catalog.publish_extents("t", A, [], [extent(6, 9)]) == row(100, 10, 9)
    # Without extents the next one may begin later: what is between was never exported.
    assert catalog.publish_extents("t", A, [extent(12, 13)], []) == row(100, 12, 13)
    assert catalog.extents_from("t", 1, 10) == [extent(12, 13)]


def test_a_topic_that_was_adopted_and_forgotten_is_not_created_again(catalog: Catalog) -> None:
    catalog.create("t", ID, 7, "a", 10)
    # Node "a" got no answer. Node "b" takes the topic over and deletes it.
    catalog.adopt("t", "b", 7, 1, accept_loss=True)
    for _ in range(2):
        catalog.forget("t", Ownership("b", 7, 2))
    for _ in range(2):
        with pytest.raises(Fenced, match="topic t: not in the catalog") as fence:
            catalog.create("t", ID, 7, "a", 10)
        assert fence.value.row is None
    assert catalog.list("", "", 10) == []
    # Another topic of the name, also after it has come and gone.
    assert catalog.create("t", ID, 8, "c", 10).incarnation == 8
    with pytest.raises(Fenced):
        catalog.create("t", ID, 7, "a", 10)
    catalog.forget("t", Ownership("c", 8, 1))
    with pytest.raises(Fenced):
        catalog.create("t", ID, 7, "a", 10)
    assert catalog.create("t", ID, 9, "a", 10).incarnation == 9


def test_the_last_extent_is_replaced_and_others_appended_in_one_change(catalog: Catalog) -> None:
    exported(catalog)
    for _ in range(2):
        changed = catalog.publish_extents("t", A, [extent(6, 9, 1), extent(10, 12)], [extent(6, 9)])
        assert changed == row(100, 1, 12)
        assert catalog.extents_from("t", 6, 10) == [extent(6, 9, 1), extent(10, 12)]
    catalog.publish_extents("t", A, [extent(10, 20, 1)], [extent(10, 12)])
    assert catalog.extents_from("t", 6, 10) == [extent(6, 9, 1), extent(10, 20, 1)]


@pytest.mark.parametrize(
    ("add", "remove"),
    [
        ([extent(11, 12)], []),
        ([extent(9, 12)], []),
        ([extent(4, 5, 1)], []),
        ([extent(10, 101)], []),
        ([extent(10, 11), extent(13, 14)], []),
        ([extent(1, 5, 1)], [extent(1, 4)]),
        ([extent(1, 4, 2)], [extent(1, 4, 1)]),
        ([extent(7, 12, 1)], [extent(6, 9)]),
        ([extent(5, 7, 1)], [extent(5, 5)]),
        ([extent(6, 101, 1)], [extent(6, 9)]),
        ([], [extent(5, 5)]),
        ([], []),
        ([extent(0, 3)], []),
    ],
)
def test_a_change_that_leaves_a_gap_or_an_overlap_changes_nothing(
    catalog: Catalog, add: list[Extent], remove: list[Extent]
) -> None:
    exported(catalog)
    with pytest.raises(ChangeRefused):
        catalog.publish_extents("t", A, add, remove)
    assert catalog.extents_from("t", 0, 10) == [extent(1, 4), extent(5, 5), extent(6, 9)]
    assert catalog.own("t", A).row == row(100, 1, 9)


def test_a_sealed_topic_is_adopted_without_loss(catalog: Catalog) -> None:
    exported(catalog)
    with pytest.raises(ChangeRefused, match="exported to 9, and not to its end 11"):
        catalog.seal("t", A, 11, "t/entry-1")
    for _ in range(2):
        sealed = catalog.seal("t", A, 9, "t/entry-1")
        assert (sealed.state, sealed.ceiling, sealed.sealed_key) == ("sealed", 9, "t/entry-1")
    assert catalog.own("t", A) == Lookup(sealed, False)
    with pytest.raises(Fenced, match="sealed by node a"):
        catalog.raise_ceiling("t", A, 200)
    for _ in range(2):
        adopted = catalog.adopt("t", "b", 7, 1)
        assert (adopted.ownership, adopted.ceiling) == (Ownership("b", 7, 2), 9)
        assert adopted.sealed_key == "t/entry-1"
    # The repeated seal of the first owner was done; a new one is too late.
    assert catalog.seal("t", A, 9, "t/entry-1") == adopted
    with pytest.raises(Fenced):
        catalog.seal("t", A, 9, "t/entry-2")
    with pytest.raises(Fenced):
        catalog.adopt("t", "c", 7, 1)
    assert catalog.raise_ceiling("t", adopted.ownership, 40).ceiling == 40


def test_the_topic_of_a_lost_node_is_adopted_above_its_ceiling(catalog: Catalog) -> None:
    exported(catalog)
    with pytest.raises(Fenced):
        catalog.adopt("t", "b", 7, 1)
    adopted = catalog.adopt("t", "b", 7, 1, accept_loss=True)
    assert (adopted.ceiling, adopted.exported_to, adopted.owner_epoch) == (100, 9, 2)
    late: list[Callable[[], object]] = [
        lambda: catalog.raise_ceiling("t", A, 200),
        lambda: catalog.publish_extents("t", A, [extent(10, 12)], []),
        lambda: catalog.seal("t", A, 9, "t/entry-1"),
        lambda: catalog.forget("t", A),
        lambda: catalog.create("t", ID, 7, "a", 0),
    ]
    for call in late:
        with pytest.raises(Fenced) as fence:
            call()
        assert fence.value.row == adopted


def test_a_forgotten_topic_leaves_nothing(catalog: Catalog) -> None:
    exported(catalog)
    with pytest.raises(Fenced):
        catalog.forget("t", Ownership("a", 8, 1))
    for _ in range(2):
        catalog.forget("t", A)
        assert catalog.own("t", A).row is None
        assert catalog.extents_from("t", 0, 10) == []
    assert catalog.create("t", ID, 9, "b", 0).ownership == Ownership("b", 9, 1)
    assert catalog.extents_from("t", 0, 10) == []


def test_a_list_is_by_prefix_in_pages_and_in_order(catalog: Catalog) -> None:
    names = ["B", "a", "a.b", "a:1", "a:10", "a:2", "aa", "b"]
    for name in reversed(names):
        catalog.create(name, 1, 1, "a", 0)
    catalog.raise_ceiling("a:1", Ownership("a", 1, 1), 10)
    catalog.publish_extents("a:1", Ownership("a", 1, 1), [extent(1, 4)], [])
    assert [one.name for one in catalog.list("", "", 100)] == names
    assert [one.name for one in catalog.list("a:", "", 100)] == ["a:1", "a:10", "a:2"]
    assert [one.name for one in catalog.list("a", "a.b", 2)] == ["a:1", "a:10"]
    assert catalog.list("c", "", 100) == []


def test_of_many_nodes_exactly_one_adopts(open_one: Open) -> None:
    catalogs = [open_one() for _ in range(6)]
    exported(catalogs[0])
    catalogs[0].seal("t", A, 9, "t/entry")
    winners: list[str] = []

    def adopt(number: int) -> None:
        with suppress(Fenced):
            winners.append(catalogs[number].adopt("t", f"n{number}", 7, 1).owner)

    _run_threads(adopt, 6)
    assert [catalogs[0].own("t", A).row] == [catalogs[5].own("t", A).row]
    current = catalogs[0].own("t", A).row
    assert current is not None
    assert winners == [current.owner]


def test_many_openers_of_a_new_catalog_make_one(open_one: Open) -> None:
    def use(number: int) -> None:
        open_one().create(f"t{number}", number, 1, "a", 0)

    _run_threads(use, 6)
    assert len(open_one().list("", "", 10)) == 6


def test_threads_of_several_nodes_lose_no_change(open_one: Open) -> None:
    catalogs = [open_one() for _ in range(2)]
    catalogs[0].create("t", ID, 7, "a", 0)

    def raise_often(number: int) -> None:
        for count in range(20):
            ceiling = count * 8 + number
            assert catalogs[number % 2].raise_ceiling("t", A, ceiling).ceiling >= ceiling

    _run_threads(raise_often, 8)
    assert catalogs[0].own("t", A).row == row(19 * 8 + 7)


@pytest.mark.parametrize("seed", range(2))
def test_nodes_agree_with_the_oracle_when_requests_and_answers_are_lost(open_one: Open, seed: int) -> None:
    crowd = CatalogCrowd([open_one() for _ in range(3)], seed)
    crowd.run(600)


def _run_threads(work: Callable[[int], None], count: int) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
