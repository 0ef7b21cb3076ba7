"""The operation `diff` on a shared topic answers as on a local topic with the same records."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest

from tests.harness.brokers.one_broker import OneBroker
from tests.harness.shard.one_shard import record
from tests.harness.stage.shared_stage import EPOCH, BrokerReader, SharedStage, repeat
from topicsd.broker.broker import ReadLimits
from topicsd.broker.upkeep.compactor import Compactor, CompactorLimits
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended
from topicsd.catalog.shared.shared_catalog import REPEATED_MS
from topicsd.engine.jobs import run_blocking

MIXED = [
    record({"n": 1}),
    record("text", tag="a"),
    record([1, 2], tag='quote"d', node="n1"),
    record(None, node="n2", meta={"k": "v"}),
    record(5, tag="b", node="n1", meta={}),
]

TAGS = (None, None, None, "x", "xy", "xz", "y")
REQUESTS: list[dict[str, Any]] = [
    {},
    {"include_tags": True},
    {"include_meta": False},
    {"include_tags": True, "include_meta": False, "limit": 3},
    {"node": "n1"},
    {"node": ["n1", "n2"], "after_seq": 1, "limit": 2},
    {"after_seq": 4},
    {"after_seq": 130, "limit": 5000},
    {"last": 1},
    {"last": 7, "limit": 3},
    {"last": 0},
    {"last": 10_000},
    {"after_seq": 150},
    {"from_ts": 0},
    {"from_ts": 4_000_000_000_000},
    {"after_seq": 151},
    {"limit": 1},
    {"match": "a", "include_tags": True},
    {"match": ["tag", "Glob", "quo*"], "limit": 4, "node": "n2"},
    {"match": ["any", "b", ["tag", "Glob", "?uote*d"]], "after_seq": 70, "limit": 5000},
    {"match": ["tag", "In", ["b", 'quote"d']], "node": "n1"},
    {"match": "none", "last": 100},
]


@pytest.mark.parametrize("request_body", REQUESTS, ids=str)
@pytest.mark.parametrize("other_node", [False, True], ids=["same broker", "other broker"])
def test_every_option_gives_the_bytes_of_a_local_topic(request_body: Any, other_node: bool) -> None:
    stage = SharedStage()
    stage.create("a")
    stage.append("a", *MIXED)
    for _ in range(29):
        stage.append("a", *MIXED)
    if other_node:
        stage.reader = BrokerReader(OneBroker(other=stage.one), stage.shard)
    for _ in range(2):
        local, shared = stage.compare_diff("a", **request_body)
        assert shared == local
        assert shared[0] == 200


def test_a_reader_that_follows_in_any_steps_gets_the_bytes_of_a_local_topic() -> None:
    stage = SharedStage(max_response_bytes=3000)
    stage.create("a")
    for number in range(40):
        stage.append("a", *repeat(number % 7 + 1, lambda one: record("x" * (one * 37 % 500), tag="t")))
    for limit in (1, 10, 1000):
        at = 0
        while True:
            local, shared = stage.compare_diff("a", after_seq=at, limit=limit)
            assert shared == local
            answer = stage.shared_diff("a", after_seq=at, limit=limit)
            assert at < answer["next_from_seq"] or answer["caught_up"]
            if answer["caught_up"]:
                break
            at = min(answer["next_from_seq"] + limit % 7, answer["head_seq"])


def test_from_ts_finds_the_record_that_a_local_topic_finds() -> None:
    stage = SharedStage(OneBroker(BatchLimits(batch_bytes=1)))
    stage.create("a")
    times = []
    for number in range(20):
        stage.append("a", number, number)
        stage.append("a", number)
        times.append(stage.clock.now_ms())
        stage.advance(1000)
    for ts in times:
        for shift in (-301, -300, -299, 0, 1):
            local, shared = stage.compare_diff("a", from_ts=ts + shift, limit=2)
            assert shared == local, ts + shift


def test_a_filter_gives_the_records_of_a_local_topic_in_any_steps() -> None:
    stage = SharedStage(max_response_bytes=2000)
    stage.create("a")
    random = Random(5)
    for _ in range(60):
        stage.append("a", *[record("x" * random.randrange(300), tag=random.choice(TAGS)) for _ in range(9)])
    for match in ("x", ["tag", "Glob", "x*"], ["tag", "Glob", "*z"], ["any", "y", "xz"], "none"):
        for limit in (1, 7, 1000):
            at, is_caught_up, seqs = 0, False, []
            while not is_caught_up:
                both = stage.compare_diff("a", after_seq=at, limit=limit, match=match)
                # The position may be anywhere before the next record.
                local, shared = (body.partition(b'],"next_from_seq"')[0] for _, body in both)
                assert shared == local
                answer = stage.shared_diff("a", after_seq=at, limit=limit, match=match)
                seqs += [one["$seq"] for one in answer["records"]]
                at, is_caught_up = answer["next_from_seq"], answer["caught_up"]
            every = stage.shared_diff("a", limit=1000, match=match)
            assert seqs[: len(every["records"])] == [one["$seq"] for one in every["records"]]
            assert bool(seqs) == (match != "none")


def test_a_filter_that_selects_little_is_read_in_steps_that_advance() -> None:
    stage = SharedStage(OneBroker(read_limits=ReadLimits(tail_cache_bytes=0)))
    stage.create("a")
    for number in range(10):
        stage.append(
            "a", *[record("x" * 200, tag=f"t{one}") for one in range(number * 1000, number * 1000 + 1000)]
        )
    at, seqs, steps = 0, [], 0
    while at < 10_000:
        answer = stage.shared_diff("a", after_seq=at, match=["tag", "In", ["t17", "t8200", "t9999"]])
        assert answer["next_from_seq"] > at
        seqs += [one["$seq"] for one in answer["records"]]
        at, steps = answer["next_from_seq"], steps + 1
    assert seqs == [18, 8201, 10_000]
    assert 2 <= steps < 10


def test_evicted_records_are_one_tombstone_and_deleted_ones_are_silent() -> None:
    stage = SharedStage()
    stage.create("a", b'{"cap_records":4}', cap_records=4)
    stage.append("a", *range(10))
    trim(stage, "a", 6, "evicted")
    stage.shard.pass_time(10)
    for after_seq in (0, 5, 6, 9):
        local, shared = stage.compare_diff("a", after_seq=after_seq)
        assert shared == local
    assert stage.shared_diff("a", after_seq=2)["tombstone"]["gap_from"] == 3
    trim(stage, "a", 8, "deleted")
    stage.shard.delete("a", before_seq=9)
    local, shared = stage.compare_diff("a", after_seq=6)
    assert shared == local
    answer = stage.shared_diff("a", after_seq=0)
    # A client deleted them all, whatever retention had removed before.
    assert (answer["tombstone"], answer["earliest_seq"]) == (None, 9)
    assert [one["$seq"] for one in answer["records"]] == [9, 10]


def test_a_tombstone_begins_after_what_a_client_deleted() -> None:
    stage = SharedStage()
    stage.create("a")
    stage.append("a", *range(10))
    trim(stage, "a", 3, "deleted")
    trim(stage, "a", 5, "evicted")
    tombstone = stage.shared_diff("a")["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["missed_estimate"]) == (4, 5, 2)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (b'{"ttl_ms":5}', "ttl"),
        (b'{"cap_bytes":5}', "cap"),
        (b'{"ttl_ms":5,"cap_records":1,"new":{}}', "mixed"),
    ],
)
def test_the_reason_of_a_tombstone_is_what_the_configuration_evicts_by(config: bytes, reason: str) -> None:
    stage = SharedStage()
    stage.create("a", config)
    stage.append("a", 1, 2)
    trim(stage, "a", 1, "evicted")
    assert stage.shared_diff("a")["tombstone"]["reason"] == reason


def trim(stage: SharedStage, name: str, to_seq: int, reason: Any) -> None:
    topic = stage.one.topics.topics([name])[0]
    assert topic is not None
    stage.one.broker.trim(topic, to_seq, reason)(lambda outcome: None)
    stage.settle()


def test_a_position_past_the_head_is_refused_with_the_epoch_of_the_topic() -> None:
    stage = SharedStage()
    stage.create("a")
    stage.append("a", 1, 2)
    answer = stage.shared_diff("a", after_seq=9, epoch=EPOCH)["error"]
    assert answer["code"] == "position_past_head"
    assert answer["detail"] == {"topic": "a", "head_seq": 2, "epoch": EPOCH}


def test_a_position_of_a_former_topic_is_recreated() -> None:
    stage = SharedStage()
    stage.create("a")
    stage.append("a", 1, 2)
    for body in ({"after_seq": 9}, {"after_seq": 1, "epoch": EPOCH + 1}):
        answer = stage.shared_diff("a", **body)
        assert answer["tombstone"] == {
            "gap_from": 1,
            "gap_to": 2,
            "reason": "recreated",
            "missed_estimate": 2,
            "earliest_seq": 1,
            "head_seq": 2,
        }
        assert [one["$seq"] for one in answer["records"]] == [1, 2]
        assert answer["epoch"] == EPOCH


def test_records_that_another_broker_has_just_committed_are_not_past_the_head() -> None:
    stage = SharedStage()
    stage.create("a")
    stage.append("a", 1)
    other = OneBroker(other=stage.one)
    reader = BrokerReader(other, stage.shard)
    stage.reader, own = reader, stage.reader
    assert stage.shared_diff("a", after_seq=1)["caught_up"]
    stage.reader = own
    answers = stage.one.append("a", b"2")
    stage.one.broker.batcher.close()
    stage.settle()
    (appended,) = answers
    assert isinstance(appended, Appended)
    assert appended.last_seq == 2
    # Its head was compared with the catalog a moment ago, and is 1.
    stage.reader = reader
    assert other.broker.heads.is_current("a", EPOCH)
    answer = stage.shared_diff("a", after_seq=2, epoch=EPOCH)
    assert (answer["head_seq"], answer["caught_up"], answer["tombstone"]) == (2, True, None)


def test_a_read_that_reaches_the_head_reaches_what_another_broker_committed() -> None:
    stage = SharedStage()
    stage.create("a")
    stage.append("a", 1)
    other = OneBroker(other=stage.one)
    reader = BrokerReader(other, stage.shard)
    stage.reader, own = reader, stage.reader
    assert stage.shared_diff("a", after_seq=0)["head_seq"] == 1
    stage.reader = own
    stage.append("a", 2)
    other.advance(1000)
    # The first record is in the memory of this broker, which has heard nothing of the second one.
    stage.reader = reader
    answer = stage.shared_diff("a", after_seq=0)
    assert (len(answer["records"]), answer["head_seq"], answer["caught_up"]) == (2, 2, True)


def test_damage_is_a_range_of_exact_seqs_after_the_records_before_it() -> None:
    stage = SharedStage(OneBroker(read_limits=ReadLimits(tail_cache_bytes=0)))
    stage.create("a")
    stage.append("a", *["x" * 50] * 5)
    stage.append("a", *["y" * 50] * 5)
    key = damage(stage, "a", 3, 7)
    first = stage.shared_diff("a")
    assert [one["$seq"] for one in first["records"]] == [1, 2]
    for after_seq, until, then in ((2, 3, [4, 5, 6]), (6, 7, [8, 9, 10])):
        error = stage.shared_diff("a", after_seq=after_seq)["error"]
        assert error["code"] == "corrupt_segment"
        assert error["detail"] == {
            "segment": key[until],
            "first_seq": after_seq + 1,
            "last_seq": until,
            "next_from_seq": until,
        }
        answer = stage.shared_diff("a", after_seq=error["detail"]["next_from_seq"])
        assert [one["$seq"] for one in answer["records"]] == then


def damage(stage: SharedStage, name: str, *seqs: int) -> dict[int, str]:
    """Change a byte of the data of some records in the store; return their objects by seq."""
    keys = {}
    for extent in stage.one.topics.extents_from(name, 1, 100):
        for seq in seqs:
            if extent.first_seq <= seq <= extent.last_seq:
                stored = stage.one.store.objects[extent.key]
                count = extent.last_seq - extent.first_seq + 1
                at = extent.byte_offset + extent.byte_length // count * (seq - extent.first_seq) + 60
                data = stored.data[:at] + b"!" + stored.data[at + 1 :]
                stage.one.store.objects[extent.key] = stored._replace(data=data)
                keys[seq] = extent.key
    return keys


def test_a_wrong_length_damages_only_its_record() -> None:
    stage = SharedStage(OneBroker(read_limits=ReadLimits(tail_cache_bytes=0)))
    stage.create("a")
    stage.append("a", *["x" * 50] * 100)
    (extent,) = stage.one.topics.extents_from("a", 1, 2)
    stored = stage.one.store.objects[extent.key]
    at = extent.byte_offset + extent.byte_length // 100 * 49
    stage.one.store.objects[extent.key] = stored._replace(
        data=stored.data[:at] + b"\xff\xff\xff\xff" + stored.data[at + 4 :]
    )
    answer = stage.shared_diff("a", limit=1000)
    assert [one["$seq"] for one in answer["records"]] == list(range(1, 50))
    detail = stage.shared_diff("a", after_seq=49)["error"]["detail"]
    assert (detail["first_seq"], detail["last_seq"]) == (50, 50)
    answer = stage.shared_diff("a", after_seq=50, limit=1000)
    assert [one["$seq"] for one in answer["records"]] == list(range(51, 101))


def test_errors_of_catalog_and_store_are_refusals_and_records_before_them_are_returned() -> None:
    stage = SharedStage(OneBroker(BatchLimits(batch_bytes=1), ReadLimits(0, 0, 0)))
    stage.create("a")
    stage.append("a", 1)
    stage.append("a", 2)
    other = OneBroker(other=stage.one, read_limits=ReadLimits(0, 0, 0))
    stage.reader = BrokerReader(other, stage.shard)
    second = stage.one.topics.extents_from("a", 2, 1)[0]
    lost = stage.one.store.objects.pop(second.key)
    assert [one["$seq"] for one in stage.shared_diff("a")["records"]] == [1]
    assert stage.shared_diff("a", after_seq=1)["error"]["code"] == "storage_failed"
    stage.one.store.objects[second.key] = lost
    assert [one["$seq"] for one in stage.shared_diff("a", after_seq=1)["records"]] == [2]
    stage.advance(10_000)
    other.catalog.faults["topics"] = deque(["lost request"])
    assert stage.shared_diff("a", after_seq=1)["error"]["code"] == "catalog_unavailable"


def test_a_missing_topic_is_not_found() -> None:
    stage = SharedStage()
    local, shared = stage.compare_diff("none")
    assert (shared, shared[0]) == (local, 404)


def test_pages_of_a_former_topic_are_never_served() -> None:
    stage = SharedStage()
    stage.create("a")
    stage.append("a", "former", "former")
    assert len(stage.shared_diff("a")["records"]) == 2
    stage.one.broker.delete("a", EPOCH)(lambda outcome: None)
    stage.settle()
    stage.one.topics.create("a", EPOCH + 1, b"{}")
    stage.one.appended("a", b'"new"', b'"new"')
    answer = stage.shared_diff("a")
    assert [one["data"] for one in answer["records"]] == ["new", "new"]
    assert answer["epoch"] == EPOCH + 1


def test_a_tail_read_asks_neither_catalog_nor_store() -> None:
    stage = SharedStage(OneBroker(read_limits=ReadLimits(poll_seconds=1e6)))
    stage.create("a")
    stage.append("a", *range(200))
    stage.shared_diff("a", after_seq=200)
    calls, requests = dict(stage.one.catalog.calls), len(stage.one.store.requests)
    for after_seq in (0, 10, 100, 199, 200):
        stage.shared_diff("a", after_seq=after_seq, limit=1000)
    assert (dict(stage.one.catalog.calls), len(stage.one.store.requests)) == (calls, requests)


def test_pages_over_their_bound_are_read_again() -> None:
    stage = SharedStage()
    stage.create("a")
    for number in range(4):
        stage.append("a", *repeat(200, lambda one, n=number: "x" * (n + one % 50)))
    stage.reader = BrokerReader(OneBroker(other=stage.one, read_limits=ReadLimits(0)), stage.shard, 1000)
    for after_seq in (0, 700, 130, 0):
        local, shared = stage.compare_diff("a", after_seq=after_seq, limit=1000)
        assert shared == local


def test_compacted_records_are_read_and_found_by_time_as_before() -> None:
    stage = SharedStage(OneBroker(BatchLimits(batch_bytes=1), ReadLimits(tail_cache_bytes=0)))
    stage.create("a")
    times = []
    for _ in range(12):
        stage.append("a", *MIXED)
        times.append(stage.clock.now_ms())
    stage.clock.advance(REPEATED_MS + 1)
    stage.append("a", *MIXED)
    one = stage.one
    compactor = Compactor("c", one.store, one.catalog, one.retries, CompactorLimits())
    assert run_blocking(compactor.compact("a")).outcome == "merged"
    assert one.topics.extents_from("a", 1, 1)[0].type == "COMPACTED"
    requests: list[dict[str, Any]] = [{"after_seq": seq, "limit": 1000} for seq in (0, 7, 58, 61)]
    requests += [{"from_ts": ts + shift, "limit": 7} for ts in times for shift in (-301, -300, -299)]
    for body in (*requests, {"last": 20}, {"include_tags": True, "node": "n1"}):
        stage.reader = BrokerReader(one, stage.shard)
        local, shared = stage.compare_diff("a", **body)
        assert shared == local, body
