"""A slice with a damaged length near its start: its other records are read, and the loop is not held."""

from __future__ import annotations

import pytest

from tests.harness.brokers.one_broker import OneBroker
from tests.harness.shard.one_shard import record
from tests.harness.stage.shared_stage import EPOCH, SharedStage
from topicsd.broker.broker import ReadLimits
from topicsd.broker.frames_v1 import Decoded
from topicsd.broker.read.tail_cache import TailChunk
from topicsd.stream.shared import chunk_pages, shared_reads

RECORDS = 3000
DAMAGED = 10


def damaged_stage(tail_cache_bytes: int = 0, tag: str | None = None) -> SharedStage:
    stage = SharedStage(OneBroker(read_limits=ReadLimits(tail_cache_bytes=tail_cache_bytes)))
    stage.create("a")
    stage.append("a", *[record("x" * 50, tag=tag)] * RECORDS)
    (extent,) = stage.one.topics.extents_from("a", 1, 2)
    stored = stage.one.store.objects[extent.key]
    at = extent.byte_offset + extent.byte_length // RECORDS * (DAMAGED - 1)
    data = stored.data[:at] + b"\xff\xff\xff\xff" + stored.data[at + 4 :]
    stage.one.store.objects[extent.key] = stored._replace(data=data)
    stage.one.broker.cache.drop("a")
    return stage


@pytest.fixture(name="decodes")
def _decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the chunks that are decoded as a whole."""
    names: list[str] = []

    def decode(chunk: TailChunk) -> Decoded:
        names.append(chunk.name)
        return chunk_pages.decode_damaged(chunk)

    monkeypatch.setattr(shared_reads, "decode_damaged", decode)
    return names


@pytest.mark.parametrize("tail_cache_bytes", [0, 64 << 20])
def test_a_damaged_slice_is_decoded_once(tail_cache_bytes: int, decodes: list[str]) -> None:
    stage = damaged_stage(tail_cache_bytes)
    at = DAMAGED
    seqs: list[int] = []
    while at < RECORDS:
        answer = stage.shared_diff("a", after_seq=at, limit=1000)
        seqs += [one["$seq"] for one in answer["records"]]
        at = answer["next_from_seq"]
    assert seqs == list(range(DAMAGED + 1, RECORDS + 1))
    assert decodes == ["a"]
    detail = stage.shared_diff("a", after_seq=DAMAGED - 1)["error"]["detail"]
    assert (detail["first_seq"], detail["last_seq"]) == (DAMAGED, DAMAGED)
    assert [one["$seq"] for one in stage.shared_diff("a")["records"]] == list(range(1, DAMAGED))
    assert decodes == ["a"]


def test_a_reader_with_a_filter_learns_of_damage_and_gets_the_records_after_it() -> None:
    stage = damaged_stage(tag="t")
    assert [one["$seq"] for one in stage.shared_diff("a", match="t")["records"]] == list(range(1, DAMAGED))
    assert stage.shared_diff("a", after_seq=DAMAGED, match="t", limit=1)["records"][0]["$seq"] == DAMAGED + 1
    for match in ("t", "none"):
        error = stage.shared_diff("a", after_seq=DAMAGED - 1, match=match)["error"]
        assert (error["code"], error["detail"]["first_seq"]) == ("corrupt_segment", DAMAGED)
    assert stage.shared_diff("a", after_seq=DAMAGED, match="none")["records"] == []


def test_nothing_is_decoded_on_the_loop(decodes: list[str]) -> None:
    stage = damaged_stage(tail_cache_bytes=64 << 20)
    call = stage.begin_diff("a", after_seq=DAMAGED)
    while not call.answers:
        # Only the loop runs, then only the threads.
        before = len(decodes)
        stage.one.loop.run_until_idle()
        assert len(decodes) == before
        ran = [thread.run_one() for thread in stage.one.threads]
        assert any(ran) or call.answers
    assert decodes == ["a"]


def test_bytes_that_are_intact_when_they_are_read_again_are_served(decodes: list[str]) -> None:
    stage = damaged_stage()
    before = stage.shared_diff("a", after_seq=DAMAGED - 1)
    assert before["error"]["code"] == "corrupt_segment"
    (extent,) = stage.one.topics.extents_from("a", 1, 2)
    stored = stage.one.store.objects[extent.key]
    data = stored.data.replace(b"\xff\xff\xff\xff", stored.data[extent.byte_offset :][:4], 1)
    stage.one.store.objects[extent.key] = stored._replace(data=data)
    other = SharedStage(OneBroker(other=stage.one, read_limits=ReadLimits(0)))
    other.reader.reads._decoded = stage.reader.reads._decoded
    answer = other.shared_diff("a", after_seq=DAMAGED - 1, limit=5)
    assert [one["$seq"] for one in answer["records"]] == list(range(DAMAGED, DAMAGED + 5))


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("a failure")], ids=["bug", "failure"])
def test_a_slice_that_cannot_be_decoded_refuses_only_its_topic(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = damaged_stage()
    stage.one.topics.create("b", EPOCH, b"{}")
    stage.one.appended("b", b"1")

    def fail(*args: object, **fields: object) -> Decoded:
        raise error

    monkeypatch.setattr(chunk_pages, "decode_frames", fail)
    refused = stage.shared_diff("a", after_seq=DAMAGED)["error"]
    assert refused["code"] == "storage_failed"
    assert "decoded" in refused["message"]
    assert [one["$seq"] for one in stage.shared_diff("b")["records"]] == [1]
