"""The book of a cluster accepts what two owners may do, and names what they may not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.books.ledger_entries import TopicContents
from tests.harness.cluster.histories.book import Book
from tests.harness.cluster.machine import Cluster
from tests.harness.cluster.virtual_time import World


@pytest.fixture
def book() -> Iterator[Book]:
    """A topic that node b has taken over from node a, whose ceiling was 100."""
    with World("book") as world:
        catalog = Cluster(world).catalog
        catalog.change(lambda real: real.create("t", 7, 1024, "a", 100), "t")
        catalog.change(lambda real: real.adopt("t", "b", 1024, 1, accept_loss=True), "t")
        book = Book(catalog)
        book.topic("t").send([b"1", b"2"])
        yield book


def test_a_late_write_of_the_former_owner_is_lost_also_below_the_evict_floor(book: Book) -> None:
    book.topic("t").ack([b"1"], sent_ns=10, acked_ns=20, first_seq=101)
    book.topic("t").ack([b"2"], sent_ns=30, acked_ns=40, first_seq=5)
    lost = [(1, 100, "node_lost")]
    book.judge("t", TopicContents(101, 1, 101, lost, [(101, b"1", None)]))
    book.judge("t", TopicContents(101, 101, 101, [], [(101, b"1", None)]))


def test_a_write_before_an_acknowledged_one_is_reported(book: Book) -> None:
    book.topic("t").ack([b"1"], sent_ns=10, acked_ns=20, first_seq=102)
    book.topic("t").ack([b"2"], sent_ns=30, acked_ns=40, first_seq=101)
    contents = TopicContents(102, 101, 101, [], [(101, b"2", None), (102, b"1", None)])
    with pytest.raises(AssertionError, match="was acknowledged before 101 was sent"):
        book.judge("t", contents)


def test_a_power_cut_may_lose_changes_of_topics_that_are_not_durable(book: Book) -> None:
    book.power_cuts["b"] = [50]
    book.durable_topics.add("kept")
    assert book.may_be_lost("other", 40, "b")
    assert not book.may_be_lost("other", 40, "a")
    assert not book.may_be_lost("other", 50 + 10**9, "b")
    assert not book.may_be_lost("kept", 40, "b")
    assert not book.may_be_lost("kept", 40)
