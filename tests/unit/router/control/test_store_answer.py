"""The answer of `GET /v0/store`: sums over the shards, and their price."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from router.control.store_answer import is_store_away, problems_of, store_answer
from shared.contract.store_prices import PRICES_DATE
from shared.ipc.board import Board, Slot

DAY_MS = 86_400_000


@pytest.fixture
def slots() -> Iterator[list[Slot]]:
    board = Board.create(2)
    yield list(board)
    board.close()


def test_without_a_store_there_is_nothing_to_say(slots: list[Slot]) -> None:
    assert store_answer("", slots, DAY_MS) == {"kind": "none"}


def test_the_numbers_of_the_shards_are_added(slots: list[Slot]) -> None:
    for slot in slots:
        slot.exported_segments, slot.exported_bytes = 3, 1 << 30
        slot.store_creates_total, slot.store_reads_total = 1000, 5000
        slot.store_cache_hits_total, slot.store_failures_total = 7, 1
    answer = store_answer("s3://bucket/prefix?endpoint=http://127.0.0.1:1", slots, DAY_MS)
    assert (answer["url"], answer["kind"], answer["state"]) == ("s3://bucket/prefix", "s3", "ok")
    assert answer["exported"] == {"segments": 6, "bytes": 2 << 30}
    assert answer["requests"] == {
        "create": 2000,
        "read": 10_000,
        "info": 0,
        "list": 0,
        "delete": 0,
        "failed": 2,
    }
    assert answer["cache"] == {"hits": 14, "misses": 0, "bytes": 0}
    # Twice 0.005 and ten times 0.0004 a day, for 30.4375 days, and 2 GiB at 0.023.
    assert answer["cost"] == {
        "requests_dollars": 0.014,
        "month_dollars": round(0.014 * 30.4375 + 0.046, 4),
        "prices_date": PRICES_DATE,
    }


def test_one_shard_that_does_not_reach_the_store_is_enough_to_say_so(slots: list[Slot]) -> None:
    assert not is_store_away(slots)
    slots[1].is_store_away = 1
    assert is_store_away(slots)
    assert store_answer("file:///mnt/big", slots, 0)["state"] == "away"


def test_exports_and_the_catalog_have_their_sums_and_maxima(slots: list[Slot]) -> None:
    assert store_answer("file:///a", slots, 0)["catalog"] == {
        "state": "none",
        "away_seconds": 0,
        "requests": 0,
        "failed": 0,
        "waiting": 0,
        "near_ceiling": 0,
        "departed": 0,
    }
    for number, slot in enumerate(slots, 1):
        slot.has_catalog = 1
        slot.export_waiting_segments, slot.export_waiting_bytes = number, 10 * number
        slot.export_oldest_seconds, slot.export_failed_ms = 100 * number, 1000 * number
        slot.export_segments_total, slot.export_bytes_total, slot.export_failures_total = 5, 50, 1
        slot.merged_segments_total = 3
        slot.catalog_requests_total, slot.catalog_failures_total, slot.catalog_waiting = 7, 2, 1
        slot.topics_departed = 4
    answer = store_answer("file:///a", slots, 0)
    assert answer["exports"] == {
        "waiting_segments": 3,
        "waiting_bytes": 30,
        "oldest_seconds": 200,
        "segments": 10,
        "bytes": 100,
        "merged_segments": 6,
        "failures": 2,
        "last_failure_ms": 2000,
    }
    assert answer["catalog"] == {
        "state": "ok",
        "away_seconds": 0,
        "requests": 14,
        "failed": 4,
        "waiting": 2,
        "near_ceiling": 0,
        "departed": 8,
    }


def test_readiness_names_each_problem_once(slots: list[Slot]) -> None:
    assert problems_of(slots) == ""
    slots[0].is_export_away = 1
    assert problems_of(slots) == "exports wait for the object store or the catalog"
    slots[1].has_catalog, slots[1].catalog_away_seconds, slots[1].topics_near_ceiling = 1, 7, 3
    assert store_answer("file:///a", slots, 0)["catalog"] == {
        "state": "away",
        "away_seconds": 7,
        "requests": 0,
        "failed": 0,
        "waiting": 0,
        "near_ceiling": 3,
        "departed": 0,
    }
    slots[0].is_store_away = 1
    assert problems_of(slots) == (
        "the object store does not answer: exports and reads of its segments wait; "
        "the catalog does not answer: topics are writable up to their ceilings; "
        "3 topics have used most of the seqs that the catalog granted"
    )
