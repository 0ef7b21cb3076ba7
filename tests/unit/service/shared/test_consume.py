"""`POST /consume`: offsets, waits, bounds, and the report of each partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness.brokers.shared_calls import SharedCalls
from tests.harness.machine.manual_loop import StepThread
from topicsd.broker.frames_v1 import Decoded, decode_frames


@pytest.fixture
def calls(tmp_path: Path) -> SharedCalls:
    calls = SharedCalls(tmp_path)
    calls.produce(("orders", 0, ["a", "b", "c"]), ("orders", 1, ["d"]))
    return calls


def only(answer: Any) -> Any:
    (result,) = answer.json["results"]
    return result


def test_records_come_from_the_offset_on_with_the_next_one_and_the_head(calls: SharedCalls) -> None:
    answer = calls.consume(("orders", 1, 1), ("orders", 0, 2))
    assert answer.status == 200
    assert answer.json == {
        "results": [
            {
                "topic": "orders",
                "partition": 1,
                "ok": True,
                "records": [{"offset": 1, "value": "d"}],
                "next_offset": 2,
                "high_watermark": 1,
            },
            {
                "topic": "orders",
                "partition": 0,
                "ok": True,
                "records": [{"offset": 2, "value": "b"}, {"offset": 3, "value": "c"}],
                "next_offset": 4,
                "high_watermark": 3,
            },
        ],
        "success_count": 2,
        "error_count": 0,
    }


def test_at_the_head_there_is_nothing_at_once(calls: SharedCalls) -> None:
    result = only(calls.consume(("orders", 0, 4)))
    assert (result["ok"], result["records"], result["next_offset"], result["high_watermark"]) == (
        *(True, [], 4, 3),
    )


def test_json_that_is_no_text_is_its_text(calls: SharedCalls) -> None:
    calls.append("orders", {"n": [1, None]}, 5, "text")
    values = [one["value"] for one in only(calls.consume(("orders", 0, 4)))["records"]]
    assert values == ['{"n": [1, null]}', "5", "text"]


def test_a_wait_ends_with_the_first_record(calls: SharedCalls) -> None:
    body = _body(("orders", 0, 4), ("orders", 1, 2), max_wait_ms=5000)
    waiting = calls.begin("consume", body=body)
    calls.wait_ms(1000)
    assert waiting.answer.status == 0
    calls.produce(("orders", 1, ["e"]))
    calls.settle()
    results = waiting.answer.json["results"]
    assert [one["records"] for one in results] == [[], [{"offset": 2, "value": "e"}]]


def test_a_wait_ends_with_its_time(calls: SharedCalls) -> None:
    waiting = calls.begin("consume", body=_body(("orders", 0, 4), max_wait_ms=500))
    calls.wait_ms(490)
    assert waiting.answer.status == 0
    calls.wait_ms(20)
    assert (waiting.answer.status, only(waiting.answer)["next_offset"]) == (200, 4)


def test_a_cancelled_wait_is_answered_at_once_and_costs_nothing_later(calls: SharedCalls) -> None:
    body = _body(("orders", 0, 3), ("orders", 1, 2), max_wait_ms=30_000, min_bytes=10_000)
    waiting = calls.begin("consume", body=body)
    waiting.cancel()
    first, second = waiting.answer.json["results"]
    assert (first["records"], first["next_offset"]) == ([{"offset": 3, "value": "c"}], 4)
    assert (second["records"], second["next_offset"], second["high_watermark"]) == ([], 2, 1)
    assert calls.broker.heads.waiting == 0
    calls.catalog.calls.clear()
    calls.wait_ms(31_000, step_ms=100)
    assert not calls.catalog.calls


def test_a_cancelled_wait_reports_only_what_is_known(tmp_path: Path, calls: SharedCalls) -> None:
    fresh = SharedCalls(tmp_path)
    body = _body(("orders", 0, 4), ("none", 0, 1), ("orders", 1, 9), max_wait_ms=30_000)
    call = fresh.call("", body)
    fresh.operations.endpoints["consume"](call)
    call.cancel()
    assert call.answer.status == 0
    fresh.settle()
    tail, none, past = call.answer.json["results"]
    assert (tail["ok"], tail["high_watermark"]) == (True, 3)
    assert (none["error_type"], past["error_type"]) == ("TopicNotFound", "PositionPastHead")


def test_a_wait_that_is_cancelled_while_offsets_are_looked_up_does_not_begin(
    tmp_path: Path, calls: SharedCalls
) -> None:
    for offset in (1, 4):
        fresh = SharedCalls(tmp_path)
        call = fresh.call("", _body(("orders", 0, offset), max_wait_ms=30_000, min_bytes=10_000))
        fresh.operations.endpoints["consume"](call)
        call.cancel()
        fresh.settle()
        assert only(call.answer)["next_offset"] == 4
        assert fresh.broker.heads.waiting == 0


def test_an_offset_past_the_next_one_is_reported_at_once(calls: SharedCalls) -> None:
    answer = calls.begin("consume", body=_body(("orders", 0, 5), ("orders", 1, 1), max_wait_ms=5000)).answer
    assert answer.status == 409
    past, read = answer.json["results"]
    assert (past["ok"], past["error_type"]) == (False, "PositionPastHead")
    assert past["error"] == "fetch_offset: must be at most 4, the next offset, got 5"
    assert (read["ok"], read["records"]) == (True, [{"offset": 1, "value": "d"}])


def test_a_record_of_another_broker_is_not_past_the_head(tmp_path: Path) -> None:
    calls = SharedCalls(tmp_path)
    calls.produce(("orders", 0, ["a", "b"]))
    fresh = SharedCalls(tmp_path)
    assert only(fresh.consume(("orders", 0, 2), max_wait_ms=1000))["records"] == [{"offset": 2, "value": "b"}]
    assert only(fresh.consume(("orders", 0, 3)))["ok"] is True


@pytest.mark.parametrize("bounds", [{}, {"max_wait_ms": 1}])
def test_an_offset_that_another_broker_returned_is_not_past_the_head(
    tmp_path: Path, bounds: dict[str, int]
) -> None:
    calls = SharedCalls(tmp_path)
    calls.produce(("orders", 0, ["a"]))
    other = SharedCalls(tmp_path)
    assert only(other.consume(("orders", 0, 1)))["next_offset"] == 2
    calls.produce(("orders", 0, ["b", "c"]))
    offset = only(calls.consume(("orders", 0, 2)))["next_offset"]
    # At once: it knows the head of a moment ago.
    result = only(other.consume(("orders", 0, offset), **bounds))
    assert (result.get("error"), result["next_offset"], result["high_watermark"]) == (None, 4, 3)


def test_an_unknown_partition_is_a_failure_and_is_not_created(calls: SharedCalls) -> None:
    answer = calls.begin("consume", body=_body(("none", 7, 1), max_wait_ms=5000)).answer
    assert (answer.status, only(answer)["error_type"]) == (409, "TopicNotFound")
    assert calls.catalog.topics(["none:7"]) == [None]


def test_what_retention_removed_is_reported_and_what_a_client_deleted_is_not(calls: SharedCalls) -> None:
    (topic,) = calls.catalog.topics(["orders"])
    calls.broker.trim(topic, 2, "evicted")(lambda outcome: None)
    calls.settle()
    result = only(calls.consume(("orders", 0, 1)))
    assert result["lost"] == [{"first_offset": 1, "last_offset": 2, "reason": "evicted"}]
    assert [one["offset"] for one in result["records"]] == [3]
    calls.ask("delete_records", "orders:1", {"before_seq": 2})
    result = only(calls.consume(("orders", 1, 1)))
    assert ("lost" in result, result["records"], result["next_offset"]) == (False, [], 2)


def test_damage_is_reported_with_its_offsets(tmp_path: Path) -> None:
    writer = SharedCalls(tmp_path)
    uri = only(writer.produce(("orders", 0, ["first", "second", "third"])))["wal_uri"]
    path = Path(uri.removeprefix("file://"))
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"second", b"sEcond"))
    result = only(SharedCalls(tmp_path).consume(("orders", 0, 1)))
    assert [one["value"] for one in result["records"]] == ["first", "third"]
    assert result["lost"] == [{"first_offset": 2, "last_offset": 2, "reason": "damaged"}]


def test_damage_is_searched_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SharedCalls(tmp_path)
    path = Path(only(writer.produce(("orders", 0, ["first", "second"])))["wal_uri"].removeprefix("file://"))
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"second", b"sEcond"))
    threads: list[StepThread] = []
    searched_on: list[int] = []
    run_one = StepThread.run_one

    def run(thread: StepThread) -> bool:
        threads.append(thread)
        try:
            return run_one(thread)
        finally:
            threads.pop()

    def decode(*args: Any, **options: Any) -> Decoded:
        searched_on.append(len(threads))
        return decode_frames(*args, **options)

    monkeypatch.setattr(StepThread, "run_one", run)
    monkeypatch.setattr("topicsd.broker.read.reader.decode_frames", decode)
    result = only(SharedCalls(tmp_path).consume(("orders", 0, 1)))
    assert [one["value"] for one in result["records"]] == ["first"]
    assert searched_on == [1]


def test_a_blob_that_is_all_damaged_leaves_the_records_around_it(tmp_path: Path) -> None:
    writer = SharedCalls(tmp_path)
    for value in ("first", "second", "third"):
        uri = only(writer.produce(("orders", 0, [value])))["wal_uri"]
        if value == "second":
            path = Path(uri.removeprefix("file://"))
            path.chmod(0o600)
            path.write_bytes(path.read_bytes().replace(b"second", b"sEcond"))
    for offset, model in ((1, ["first", "third"]), (2, ["third"])):
        result = only(SharedCalls(tmp_path).consume(("orders", 0, offset)))
        assert [one["value"] for one in result["records"]] == model
        assert result["lost"] == [{"first_offset": 2, "last_offset": 2, "reason": "damaged"}]


def test_records_of_all_kinds_come_in_their_order_from_memory_and_from_the_store(tmp_path: Path) -> None:
    writer = SharedCalls(tmp_path)
    model: list[dict[str, Any]] = []
    for group in (["a", "b"], ["c", {"base64": "AAE="}], ["d"]):
        writer.produce(("orders", 0, group))
        model += [{"value": one} if isinstance(one, str) else one for one in group]
    records = [{"data": {"n": [1, "x"]}}, {"data": "e"}, {"data": None, "tag": "t"}]
    assert writer.ask("append", "orders", {"records": records}).status == 200
    model += [{"value": '{"n": [1, "x"]}'}, {"value": "e"}, {"value": "null"}]
    model = [{"offset": offset, **one} for offset, one in enumerate(model, 1)]
    reader = SharedCalls(tmp_path)
    for calls in (writer, reader, reader):
        for offset in range(1, len(model) + 1):
            result = only(calls.consume(("orders", 0, offset)))
            assert (result["records"], result["next_offset"]) == (model[offset - 1 :], len(model) + 1)


def test_texts_in_memory_are_read_as_records_of_a_topic(tmp_path: Path) -> None:
    writer = SharedCalls(tmp_path)
    ts = writer.clock.now_ms()
    writer.produce(("orders", 0, [f"text {number}" for number in range(1, 301)]))
    for calls in (writer, SharedCalls(tmp_path)):
        for after_seq in (0, 63, 64, 250):
            body = {"after_seq": after_seq, "limit": 100, "include_tags": True}
            seqs = range(after_seq + 1, min(300, after_seq + 100) + 1)
            assert calls.ask("diff", "orders", body).json["records"] == [
                {"$seq": seq, "$ts": ts, "data": f"text {seq}"} for seq in seqs
            ]


def test_offsets_of_many_digits_follow_each_other(tmp_path: Path) -> None:
    writer = SharedCalls(tmp_path)
    for first in range(1, 2_401, 600):
        writer.produce(("orders", 0, [f"text {offset}" for offset in range(first, first + 600)]))
    for calls in (writer, SharedCalls(tmp_path)):
        for first in (1, 9, 10, 99, 998, 999, 1000, 1001, 1999, 2400):
            records = only(calls.consume(("orders", 0, first)))["records"]
            assert records == [{"offset": one, "value": f"text {one}"} for one in range(first, 2_401)]


def test_bytes_are_bounded_and_a_reader_always_advances(calls: SharedCalls) -> None:
    partition = {"topic": "orders", "partition": 0, "fetch_offset": 1, "partition_max_bytes": 1}
    result = only(calls.ask("consume", body={"topic_partitions": [partition]}))
    assert (result["records"], result["next_offset"]) == ([{"offset": 1, "value": "a"}], 2)
    results = calls.consume(("orders", 0, 1), ("orders", 1, 1), max_bytes=1, min_bytes=0).json["results"]
    assert [len(one["records"]) for one in results] == [1, 0]


@pytest.mark.parametrize(
    ("partition", "options", "field"),
    [
        ({"fetch_offset": 0}, {}, "topic_partitions[0].fetch_offset"),
        ({"fetch_offset": 1 << 63}, {}, "topic_partitions[0].fetch_offset"),
        ({"fetch_offset": None}, {}, "topic_partitions[0].fetch_offset"),
        ({"partition_max_bytes": 0}, {}, "topic_partitions[0].partition_max_bytes"),
        ({"partition_max_bytes": 1 << 40}, {}, "topic_partitions[0].partition_max_bytes"),
        ({"topic": "a b"}, {}, "topic_partitions[0].topic"),
        ({"partition": -1}, {}, "topic_partitions[0].partition"),
        ({}, {"max_wait_ms": -1}, "max_wait_ms"),
        ({}, {"max_wait_ms": 30_001}, "max_wait_ms"),
        ({}, {"max_bytes": 0}, "max_bytes"),
        ({}, {"max_bytes": 1 << 40}, "max_bytes"),
        ({}, {"min_bytes": -1}, "min_bytes"),
        ({}, {"min_bytes": 11, "max_bytes": 10}, "min_bytes"),
        ({}, {"min_byte": 1}, "min_byte"),
    ],
)
def test_a_wrong_value_is_400_and_names_the_field(
    calls: SharedCalls, partition: dict[str, Any], options: dict[str, Any], field: str
) -> None:
    read = {"topic": "orders", "partition": 0, "fetch_offset": 1, **partition}
    answer = calls.ask("consume", body={"topic_partitions": [read], **options})
    assert (answer.status, answer.json["error"]["detail"].get("field")) == (400, field)


def test_no_partition_and_the_same_one_twice_are_400(calls: SharedCalls) -> None:
    assert calls.consume().field == "topic_partitions"
    assert calls.consume(("orders", 1, 1), ("orders", 0, 1), ("orders", 1, 2)).field == "topic_partitions[2]"
    many = [(f"t{number}", 0, 1) for number in range(1001)]
    assert calls.consume(*many).code == "batch_too_large"


def test_a_key_must_cover_each_topic(calls: SharedCalls) -> None:
    answer = calls.ask("consume", body=_body(("orders", 0, 1)), prefixes=("a.",))
    assert (answer.status, answer.code) == (403, "forbidden")


def test_requests_and_records_are_counted(calls: SharedCalls) -> None:
    calls.consume(("orders", 0, 1), ("none", 0, 1))
    counts = calls.broker.counts
    assert (counts.consume_requests, counts.consume_records, counts.consume_errors) == (1, 3, 1)
    assert counts.consume_bytes > 0


def _body(*reads: tuple[str, int, int], **options: Any) -> dict[str, Any]:
    partitions = [
        {"topic": topic, "partition": partition, "fetch_offset": offset} for topic, partition, offset in reads
    ]
    return {"topic_partitions": partitions, **options}
