"""A configuration that another broker changed: appends follow it after a bounded time, without waiting."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from tests.harness.brokers.shared_calls import ManualCall, SharedCalls
from topicsd.broker.read.reader import ROW_SECONDS

FOLLOWED_MS = ROW_SECONDS * 1000 + 10


@pytest.fixture(name="brokers")
def _brokers(tmp_path: Path) -> tuple[SharedCalls, SharedCalls]:
    return SharedCalls(tmp_path), SharedCalls(tmp_path)


def start_append(calls: SharedCalls, name: str, value: object) -> ManualCall:
    """Begin an append; no thread runs."""
    call = calls.call(name, {"records": [{"data": value}]})
    calls.operations.start("append", call, lambda: None)
    calls.loop.run_until_idle()
    return call


def waits_for_a_blob(calls: SharedCalls) -> bool:
    return calls.broker.batcher.pending_bytes > 0


def test_keys_count_at_every_broker_after_one_has_switched_them_on(
    brokers: tuple[SharedCalls, SharedCalls],
) -> None:
    one, other = brokers
    one.create("t", idempotency_window_ms=0)
    for seq in (1, 2):
        assert one.append("t", "v", idempotency_key="before").json["last_seq"] == seq
    assert other.ask("put_topic", "t", {"idempotency_window_ms": 120_000}).status == 200
    one.wait_ms(FOLLOWED_MS)
    answers = [one.append("t", "v", idempotency_key="k").json for _ in range(2)]
    assert [(one["last_seq"], one["deduped"]) for one in answers] == [(3, False), (3, True)]


def test_a_topic_in_steady_use_follows_too(brokers: tuple[SharedCalls, SharedCalls]) -> None:
    one, other = brokers
    one.create("t", idempotency_window_ms=0)
    other.ask("put_topic", "t", {"idempotency_window_ms": 120_000})
    lookups = one.catalog.calls["topics"]
    began = one.clock.monotonic()
    while one.clock.monotonic() - began < ROW_SECONDS:
        one.append("t", "v")
    one.append("t", "v", idempotency_key="k")
    assert one.append("t", "v", idempotency_key="k").json["deduped"]
    assert one.catalog.calls["topics"] - lookups <= 3


@pytest.mark.parametrize("operation", ["append", "produce"])
def test_the_class_of_latency_is_followed(brokers: tuple[SharedCalls, SharedCalls], operation: str) -> None:
    one, other = brokers
    one.create("t")
    other.ask("put_topic", "t", {"latency": "low"})
    body: object = {"records": [{"data": 1}]}
    if operation == "produce":
        body = {"topic_partitions": [{"topic": "t", "partition": 0, "records": ["a"]}]}
    name = "t" if operation == "append" else ""
    one.wait_ms(FOLLOWED_MS)
    call = one.begin(operation, name, body)
    one.wait_ms(60)
    assert call.answer.status == 200


def test_an_append_of_a_topic_in_use_does_not_wait_for_the_catalog(
    brokers: tuple[SharedCalls, SharedCalls],
) -> None:
    one, _ = brokers
    one.create("t")
    one.wait_ms(ROW_SECONDS * 600)
    lookups = one.catalog.calls["topics"]
    for value in range(100):
        start_append(one, "t", value)
        assert waits_for_a_blob(one)
    one.wait_ms(300)
    # One lookup was made meanwhile, and its row is as new as that.
    assert one.catalog.calls["topics"] == lookups + 1
    one.wait_ms(ROW_SECONDS * 600)
    start_append(one, "t", "later")
    assert waits_for_a_blob(one)


def test_a_lookup_that_failed_is_made_again_and_waited_for(brokers: tuple[SharedCalls, SharedCalls]) -> None:
    one, _ = brokers
    one.create("t")
    one.wait_ms(ROW_SECONDS * 600)
    one.catalog.faults["topics"] = deque(["lost request", "lost request", None])
    assert one.append("t", "in the background").status == 200
    one.wait_ms(ROW_SECONDS * 600)
    refused = one.append("t", "too old")
    assert (refused.status, refused.code) == (503, "catalog_unavailable")
    assert one.append("t", "again").json["last_seq"] == 2


def test_appends_that_wait_for_a_lookup_keep_their_order(brokers: tuple[SharedCalls, SharedCalls]) -> None:
    one, _ = brokers
    one.create("t")
    one.wait_ms(FOLLOWED_MS)
    calls = [start_append(one, "t", value) for value in range(3)]
    assert not waits_for_a_blob(one)
    next(thread for thread in one.threads if thread.run_one())
    one.loop.run_until_idle()
    calls += [start_append(one, "t", value) for value in range(3, 6)]
    one.wait_ms(300)
    assert [call.answer.json["last_seq"] for call in calls] == [1, 2, 3, 4, 5, 6]


def test_a_topic_that_another_broker_has_deleted_gets_no_records(
    brokers: tuple[SharedCalls, SharedCalls],
) -> None:
    one, other = brokers
    one.create("t")
    one.append("t", 1)
    other.ask("delete_topic", "t")
    refused = one.append("t", 2)
    assert (refused.status, refused.code) == (503, "not_ready")
    other.create("t")
    assert one.append("t", 3).json["last_seq"] == 1
