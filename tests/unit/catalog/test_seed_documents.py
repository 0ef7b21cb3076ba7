"""The keys and documents of shared topics, read with a plain client, are those of the leaderless log."""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.machine.manual_clock import ManualClock
from tests.unit.catalog.test_key_value_crowd import policy
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.shared_catalog import (
    REPEATED_MS,
    Compaction,
    Part,
    SharedExtent,
    Slice,
)

LOG = "llog/orders/partitions/3/"
URI = "s3://bucket/llog/wal-shared/b1"
NAME = "orders:3"

# The fields of each document, in their order, with their types.
CONTROL = {"log_state": str, "sequence_counter": int, "pending": object}
PENDING = {
    "append_id": str,
    "start_offset": int,
    "end_offset": int,
    "msg_count": int,
    "entry_type": str,
    "data_key": str,
    "encoding": str,
    "byte_offset": int,
    "byte_length": int,
    "created_at_ms": int,
}
WAL = {
    "type": str,
    "msg_count": int,
    "data_key": str,
    "encoding": str,
    "byte_offset": int,
    "byte_length": int,
    "created_at_ms": int,
}
COMPACTED = {"type": str, "msg_count": int, "data_key": str, "encoding": str, "created_at_ms": int}
RECORD = {
    "compaction_id": str,
    "state": str,
    "start_offset": int,
    "end_offset": int,
    "msg_count": int,
    "data_key": str,
    "encoding": str,
    "created_at_ms": int,
}
CLAIM = {"compactor_id": str, "claimed_at_ms": int}


class SeedStore:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.keys = SharedKeys(self.clock)
        self.store = FakeKeyValue(self.keys, Random(0))
        self.catalog = KeyValueSharedCatalog(
            self.store, policy(0.0), self.clock.now_ms, "s3://bucket/", threads=1
        )
        self.left = -1
        self.store.before_request = self._before_request

    def _before_request(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise CatalogUnavailable("stopped here")

    def document(self, key: str, schema: dict[str, type]) -> dict[str, Any]:
        """Return a document, which must have exactly the fields of a schema, in their order."""
        document: dict[str, Any] = json.loads(self.keys.entries[LOG + key].value)
        assert [*document] == [*schema], document
        assert all(isinstance(document[field], kind) for field, kind in schema.items()), document
        return document

    def log_keys(self) -> list[str]:
        return [key.removeprefix(LOG) for key in sorted(self.keys.entries) if key.startswith("llog/")]

    def commit(self, append_id: str, blob: str = "llog/wal-shared/b1", count: int = 2) -> None:
        self.catalog.commit(blob, "frames-v1", [Slice(NAME, 7, 50, (Part(append_id, count, 20),))])


@pytest.fixture
def seed() -> SeedStore:
    store = SeedStore()
    store.catalog.create(NAME, 7, b"{}")
    return store


def extents(store: SeedStore) -> list[tuple[int, int, str]]:
    return [(one.first_seq, one.last_seq, one.type) for one in store.catalog.extents_from(NAME, 0, 100)]


def test_a_new_topic_has_a_control_document_and_a_cursor(seed: SeedStore) -> None:
    assert seed.log_keys() == ["meta/compaction-cursor", "meta/control"]
    assert seed.document("meta/control", CONTROL) == {
        "log_state": "OPEN",
        "sequence_counter": 0,
        "pending": None,
    }
    assert seed.document("meta/compaction-cursor", {"offset": int}) == {"offset": 0}


def test_an_entry_of_the_index_is_at_the_end_of_its_range(seed: SeedStore) -> None:
    seed.commit("a")
    seed.commit("b", count=3)
    assert seed.log_keys()[:2] == ["index/00000000000000000002", "index/00000000000000000005"]
    assert seed.document("index/00000000000000000005", WAL) == {
        "type": "WAL",
        "msg_count": 3,
        "data_key": URI,
        "encoding": "frames-v1",
        "byte_offset": 50,
        "byte_length": 20,
        "created_at_ms": seed.clock.now_ms(),
    }
    assert seed.document("meta/control", CONTROL)["pending"] is None


def test_a_pending_commit_is_readable_and_finished_by_any_process(seed: SeedStore) -> None:
    seed.commit("a")
    stop = 0
    while seed.document("meta/control", CONTROL)["pending"] is None:
        # Later and later, until it is the first request after the commit.
        stop += 1
        seed.left = stop
        with suppress(CatalogUnavailable):
            seed.commit("b")
    seed.left = -1
    pending = seed.document("meta/control", CONTROL)["pending"]
    assert [*pending] == [*PENDING]
    assert all(isinstance(pending[field], kind) for field, kind in PENDING.items())
    assert (pending["start_offset"], pending["end_offset"], pending["data_key"]) == (3, 4, URI)
    assert "index/00000000000000000004" not in seed.log_keys()
    assert extents(seed) == [(1, 2, "WAL"), (3, 4, "WAL")]
    assert seed.catalog.heads([(NAME, 7)]) == [4]
    seed.commit("c")
    assert extents(seed) == [(1, 2, "WAL"), (3, 4, "WAL"), (5, 6, "WAL")]
    assert seed.document("index/00000000000000000004", WAL)["data_key"] == URI


def test_a_compaction_stopped_after_any_request_is_resumed_by_another_process() -> None:
    states: set[str] = set()
    stops = 0
    while True:
        seed = SeedStore()
        seed.catalog.create(NAME, 7, b"{}")
        for append_id in "abcd":
            seed.commit(append_id)
        seed.clock.advance(REPEATED_MS)
        claim = seed.catalog.claim(NAME, "compactor", 60_000)
        assert claim is not None
        assert seed.document("meta/compactor-claim", CLAIM)["compactor_id"] == "compactor"
        key = "llog/orders/partitions/3/data/compacted/c1"
        extent = SharedExtent(1, 6, "COMPACTED", key, "segment", 0, 999, 0)
        stops += 1
        seed.left = stops
        try:
            seed.catalog.begin_compaction(claim, Compaction("c1", NAME, 7, extent))
            seed.catalog.finish_compaction(NAME)
            is_stopped = seed.left == 0
        except CatalogUnavailable:
            is_stopped = True
        seed.left = -1
        if "meta/compaction" in seed.log_keys():
            record = seed.document("meta/compaction", RECORD)
            states.add(record["state"])
            assert (record["start_offset"], record["end_offset"]) == (1, 6)
        old = [(1, 2, "WAL"), (3, 4, "WAL"), (5, 6, "WAL"), (7, 8, "WAL")]
        new = [(1, 6, "COMPACTED"), (7, 8, "WAL")]
        assert extents(seed) in (old, new)
        # Another process: a crash of the first one leaves nothing in memory.
        other = KeyValueSharedCatalog(seed.store, policy(), seed.clock.now_ms, "s3://bucket/", threads=1)
        other.finish_compaction(NAME)
        other.begin_compaction(claim, Compaction("c1", NAME, 7, extent))
        other.finish_compaction(NAME)
        assert extents(seed) == new
        ends = [key for key in seed.log_keys() if key.startswith("index/")]
        assert ends == ["index/00000000000000000006", "index/00000000000000000008"]
        assert "meta/compaction" not in seed.log_keys()
        entry = seed.document("index/00000000000000000006", COMPACTED)
        assert (entry["type"], entry["data_key"]) == ("COMPACTED", f"s3://bucket/{key}")
        assert seed.document("meta/compaction-cursor", {"offset": int}) == {"offset": 6}
        if not is_stopped:
            break
    assert states == {"WRITING_COMPACTED_INDEX", "DELETING_OLD", "UPDATING_CURSOR"}


def test_a_fenced_log_says_so_in_its_control_document(seed: SeedStore) -> None:
    seed.catalog.fence(NAME, 7, "FENCED")
    assert seed.document("meta/control", CONTROL)["log_state"] == "FENCED"


def test_a_part_is_recognised_after_the_pending_commit_was_cleared_by_a_process_without_memory(
    seed: SeedStore,
) -> None:
    seed.commit("a")
    seed.clock.advance(REPEATED_MS - 1)
    other = KeyValueSharedCatalog(seed.store, policy(), seed.clock.now_ms, "s3://bucket/", threads=1)
    again = [Slice(NAME, 7, 0, (Part("a", 2, 20),))]
    ((result,),) = other.commit("another-blob", "frames-v1", again)
    assert (result.status, result.first_seq, result.last_seq) == ("repeated", 1, 2)
    seed.clock.advance(2)
    assert any("appends" in key for key in seed.keys.entries)
    seed.commit("b")
    # Its time is over, and the document is deleted.
    assert [key for key in seed.keys.entries if "appends" in key] == [f"topicsd/appends/{NAME}/{4:020d}"]
