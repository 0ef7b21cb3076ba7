"""The search for a time, with damage: it may find an earlier record, and never skips one that is intact."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.brokers.one_broker import OneBroker
from topicsd.broker.upkeep.compactor import Compactor, CompactorLimits
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, SharedExtent
from topicsd.engine.jobs import run_blocking
from topicsd.log.frame import HEADER_BYTES
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES

EXTENTS = 8
RECORDS = 2
_TIME_AT = 22
DAMAGE = {
    "length": (0, b"\xff\xff\xff\x7f"),
    "short length": (0, b"\x01\x00\x00\x00"),
    "topic": (6, b"\x63"),
    "time of zero": (_TIME_AT, bytes(8)),
    "late time": (_TIME_AT, b"\xff" * 6),
    "data": (HEADER_BYTES, b"?"),
}


def written() -> tuple[OneBroker, list[int]]:
    """Return a broker with a topic of a few extents, and the time of each record from seq 1 on."""
    one = OneBroker(BatchLimits(batch_bytes=1))
    one.create("a")
    times: list[int] = []
    for number in range(EXTENTS):
        one.append("a", b'"%d"' % number, b'"again"')
        times += [one.clock.now_ms()] * RECORDS
        one.settle()
        one.advance(1000)
    return one, times


def extents_of(one: OneBroker) -> list[SharedExtent]:
    return one.topics.extents_from("a", 1, 256)


def first_seq_at(one: OneBroker, ts: int) -> int:
    """Return the first seq that a search at a broker without caches finds."""
    other = OneBroker(other=one)
    topic = one.topics.topics(["a"])[0]
    assert topic is not None
    answers: list[Any] = []
    other.broker.times.position_at(topic, topic.head, ts)(answers.append)
    other.settle()
    (position,) = answers
    assert isinstance(position, int), position
    return position + 1


def damage(one: OneBroker, key: str, at: int, data: bytes) -> None:
    stored = one.store.objects[key]
    one.store.objects[key] = stored._replace(data=stored.data[:at] + data + stored.data[at + len(data) :])


def intact_from(times: list[int], ts: int, damaged: range) -> int:
    """Return the first seq of an intact record that is not older, or the one after the last record."""
    seqs = [seq for seq, one in enumerate(times, 1) if one >= ts and seq not in damaged]
    return min(seqs, default=len(times) + 1)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_extent_hides_no_record_after_it(kind: str) -> None:
    one, times = written()
    extents = extents_of(one)
    assert len(extents) == EXTENTS
    offset, data = DAMAGE[kind]
    for extent in extents:
        stored = one.store.objects[extent.key]
        damage(one, extent.key, extent.byte_offset + offset, data)
        assert one.store.objects[extent.key] != stored
        damaged = range(extent.first_seq, extent.first_seq + 1)
        for ts in {*times, times[0] - 1, times[-1] + 1}:
            assert first_seq_at(one, ts) <= intact_from(times, ts, damaged), (extent.first_seq, ts)
        one.store.objects[extent.key] = stored
    for ts in times:
        assert first_seq_at(one, ts) == times.index(ts) + 1


def test_an_object_that_ends_early_hides_no_record_after_it() -> None:
    one, times = written()
    for extent in extents_of(one):
        stored = one.store.objects[extent.key]
        for kept in (0, 10, HEADER_BYTES, HEADER_BYTES + 4):
            one.store.objects[extent.key] = stored._replace(data=stored.data[: extent.byte_offset + kept])
            for ts in times:
                damaged = range(extent.first_seq, extent.last_seq + 1)
                assert first_seq_at(one, ts) <= intact_from(times, ts, damaged), (extent.first_seq, ts)
        one.store.objects[extent.key] = stored


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_in_a_compacted_object_hides_no_record_after_it(kind: str) -> None:
    one, times = written()
    one.clock.advance(REPEATED_MS + 1)
    for value in (b"1", b"2"):
        one.append("a", value)
        times.append(one.clock.now_ms())
        one.settle()
        one.advance(1000)
    compactor = Compactor("c", one.store, one.catalog, one.retries, CompactorLimits())
    assert run_blocking(compactor.compact("a")).outcome == "merged"
    extent = extents_of(one)[0]
    assert extent.type == "COMPACTED"
    offset, data = DAMAGE[kind]
    stored = one.store.objects[extent.key]
    at = SEGMENT_HEADER_BYTES
    for seq in range(1, extent.last_seq + 1):
        size = 4 + int.from_bytes(stored.data[at : at + 4], "little")
        damage(one, extent.key, at + offset, data)
        for ts in times:
            assert first_seq_at(one, ts) <= intact_from(times, ts, range(seq, seq + 1)), (seq, ts)
        one.store.objects[extent.key] = stored
        at += size
