"""The senders and the listeners of notices, without servers."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.harness.catalog.fake_key_value import SharedKeys
from tests.unit.catalog.test_key_value_shared import catalog_of
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.shared.postgresql_notices import PAYLOAD_BYTES, HeadPublisher, payloads
from topicsd.catalog.shared.shared_catalog import HeadNotice, Part, PartResult, Slice
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog

WAIT_SECONDS = 20.0


class SlowDatabase:
    """Does what it is asked when the test says so, and fails the first times."""

    def __init__(self, failures: int) -> None:
        self.sent: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self.turns: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.begun: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._failures = failures

    def attempt(self, work: Callable[[SlowDatabase], object]) -> None:
        self.begun.put(None)
        self.turns.get(timeout=WAIT_SECONDS)
        self._failures -= 1
        if self._failures >= 0:
            raise CatalogUnavailable("connection reset")
        work(self)

    def execute(self, statement: str, parameters: tuple[list[str]]) -> None:
        self.sent.put([head for text in parameters[0] for head in msgspec.json.decode(text)])


def publish(publisher: HeadPublisher, name: str, *results: PartResult) -> None:
    publisher.publish([Slice(name, 7, 0, ())], [results])


def test_heads_that_are_committed_while_others_are_sent_go_together() -> None:
    database: Any = SlowDatabase(failures=0)
    publisher = HeadPublisher(database)
    publish(publisher, "a", PartResult("committed", 1, 1))
    database.begun.get(timeout=WAIT_SECONDS)
    publish(publisher, "a", PartResult("committed", 2, 2), PartResult("committed", 3, 3))
    publish(publisher, "b", PartResult("repeated", 5, 6))
    publish(publisher, "a", PartResult("committed", 4, 4))
    # Of another thread, which was slow to get here.
    publish(publisher, "a", PartResult("committed", 3, 3))
    publish(publisher, "c", PartResult("fenced"))
    for _ in range(2):
        database.turns.put(None)
    assert database.sent.get(timeout=WAIT_SECONDS) == [["a", 7, 1]]
    assert database.sent.get(timeout=WAIT_SECONDS) == [["a", 7, 4], ["b", 7, 6]]
    publisher.close()


def test_a_server_that_does_not_answer_delays_no_commit_and_later_heads_are_sent() -> None:
    database: Any = SlowDatabase(failures=1)
    publisher = HeadPublisher(database)
    publish(publisher, "a", PartResult("committed", 1, 1))
    database.begun.get(timeout=WAIT_SECONDS)
    publish(publisher, "b", PartResult("committed", 1, 2))
    for _ in range(2):
        database.turns.put(None)
    assert database.sent.get(timeout=WAIT_SECONDS) == [["b", 7, 2]]
    publisher.close()


def test_a_payload_is_never_larger_than_the_server_sends() -> None:
    heads = [HeadNotice(f"{number}-" + "\u00e4" * (number % 120), number, 1 << 60) for number in range(1000)]
    texts = list(payloads(heads))
    assert all(len(text.encode()) <= PAYLOAD_BYTES for text in texts)
    assert [HeadNotice(*head) for text in texts for head in msgspec.json.decode(text)] == heads
    assert len(texts) < 30
    assert list(payloads([])) == []


def test_a_key_value_catalog_reports_each_commit_with_its_head() -> None:
    keys = SharedKeys()
    writer, reader = (catalog_of(keys, Random(seed)) for seed in range(2))
    writer.create("t", 7, b"{}")
    writer.create("t:3", 7, b"{}")
    notices: list[HeadNotice] = []
    listener = reader.listen(notices.extend)
    listener.follow(["t", "t:3"])
    assert {one.topic for one in notices} == {"t", "t:3"}
    notices.clear()
    writer.commit("blob", "frames-v1", [Slice("t", 7, 50, (Part("a", 2, 10),))])
    assert set(notices) == {HeadNotice("t", head=2)}
    notices.clear()
    writer.forget("t", 7)
    assert HeadNotice("t") in notices
    listener.close()
    notices.clear()
    writer.commit("blob", "frames-v1", [Slice("t:3", 7, 50, (Part("a", 2, 10),))])
    assert not notices


@pytest.mark.parametrize("names", [["t"], [f"t{number}" for number in range(1500)]])
def test_a_sqlite_catalog_reports_heads_with_their_incarnation(tmp_path: Path, names: list[str]) -> None:
    path = str(tmp_path / "catalog.sqlite")
    writer, reader = (SqliteSharedCatalog(path, lambda: 0) for _ in range(2))
    for name in names[:10]:
        writer.create(name, 7, b"{}")
    heard: queue.SimpleQueue[HeadNotice] = queue.SimpleQueue()

    def take(notices: Any) -> None:
        for notice in notices:
            heard.put(notice)

    listener = reader.listen(take)
    listener.follow(names)
    first = {heard.get(timeout=WAIT_SECONDS) for _ in names}
    assert first == {HeadNotice(name, 7, 0) for name in names[:10]} | {HeadNotice(one) for one in names[10:]}
    writer.commit("blob", "frames-v1", [Slice(names[0], 7, 50, (Part("a", 2, 10),))])
    assert heard.get(timeout=WAIT_SECONDS) == HeadNotice(names[0], 7, 2)
    writer.forget(names[0], 7)
    assert heard.get(timeout=WAIT_SECONDS) == HeadNotice(names[0])
    listener.close()
    for catalog in (writer, reader):
        catalog.close()
