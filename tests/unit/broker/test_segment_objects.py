"""Compacted objects: an ordinary segment, read in parts, with exact seqs for what is damaged."""

from __future__ import annotations

import random

import pytest

from tests.harness.brokers.one_broker import OneBroker
from topicsd.broker.broker import ReadLimits
from topicsd.broker.frames_v1 import (
    SEGMENT_V1,
    NewFrame,
    OtherTopic,
    Rebase,
    decode_frames,
    encode_frames,
)
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.segment_v1 import ENTRIES_AT_ONCE, SegmentBuilder, SegmentParts, segment_of
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import Compactor
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, SharedExtent
from topicsd.segment.data_file import scan_data
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES, decode_index
from topicsd.store.block_cache import BLOCK_BYTES

TOPIC = 7
FIRST = 41


class Segment:
    """A compacted object in memory, whose reads are noted."""

    def __init__(self, sizes: list[int], slices: int = 1, times: list[int] | None = None) -> None:
        """`sizes` are of the records of each slice, `times` of the slices."""
        self.values = [b"%d" % number * size for number in range(slices) for size in sizes]
        builder = SegmentBuilder(TOPIC, FIRST)
        for number in range(slices):
            values = self.values[number * len(sizes) : (number + 1) * len(sizes)]
            ts = 1000 + number if times is None else times[number]
            frames = [NewFrame(value, tag="t" if len(value) % 2 else None) for value in values]
            # Numbers of slices begin anywhere.
            body = encode_frames(frames, TOPIC, 3, ts)
            first = FIRST + number * len(sizes)
            assert builder.add(body, Rebase(TOPIC, first, first + len(sizes) - 1))
        self.data = b"".join(builder.parts())
        self.rebase = Rebase(TOPIC, FIRST, FIRST + len(self.values) - 1)
        self.count = len(self.values)
        self.byte_length = len(self.data)
        self.data_bytes = self.byte_length - self.count * ENTRY_BYTES - FOOTER_BYTES
        self.reads: list[tuple[int, int]] = []
        self.parts = SegmentParts()

    def read(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        return self.data[offset : offset + size]

    def place_of(self, seq: int) -> tuple[int, int]:
        index = decode_index(self.data[self.data_bytes :], FIRST, self.count, sealed=True)
        return index.place_of(seq)

    def flip(self, at: int) -> None:
        self.data = self.data[:at] + bytes([self.data[at] ^ 1]) + self.data[at + 1 :]
        self.parts = SegmentParts()

    def records_from(self, seq: int, bytes_max: int) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
        """Read to the end in parts; return records and damaged ranges."""
        records: dict[int, bytes] = {}
        damaged: list[tuple[int, int]] = []
        while seq <= self.rebase.last_seq:
            part = self.parts.read(self.read, "key", self.rebase, self.byte_length, seq, bytes_max)
            assert part is not None
            assert part.rebase.first_seq == seq
            decoded = decode_frames(part.body, part.rebase, seq, encoding=SEGMENT_V1)
            assert decoded.next_seq == part.rebase.last_seq + 1
            records.update((record.seq, record.data) for record in decoded.records)
            damaged += [(lost.first_seq, lost.last_seq) for lost in decoded.damaged]
            seq = decoded.next_seq
        return records, damaged

    def values_from(self, seq: int) -> dict[int, bytes]:
        return {at: value for at, value in enumerate(self.values, FIRST) if at >= seq}


def seqs_of(damaged: list[tuple[int, int]]) -> set[int]:
    return {seq for first, last in damaged for seq in range(first, last + 1)}


def test_the_object_is_the_files_of_a_segment() -> None:
    segment = Segment([3, 500, 1], slices=4, times=[5000, 4000, 6000, 6000])
    name, entry = segment_of(segment.rebase, segment.data_bytes)
    frames = list(scan_data(segment.read, name, entry))
    assert [(one.seq, one.frame.payload) for one in frames] == list(enumerate(segment.values, FIRST))
    index = decode_index(segment.data[segment.data_bytes :], FIRST, 12, sealed=True)
    assert index.data_end == segment.data_bytes
    assert [index.place_of(one.seq)[0] for one in frames] == [one.offset for one in frames]
    assert index.times_ms.tolist() == [one.frame.ts for one in frames]


@pytest.mark.parametrize("bytes_max", [1, 200, 3_000, 1 << 20])
def test_records_are_read_from_any_seq_in_parts_of_any_size(bytes_max: int) -> None:
    segment = Segment([1, 400, 30, 1000], slices=15)
    for seq in range(FIRST, segment.rebase.last_seq + 1, 7):
        assert segment.records_from(seq, bytes_max) == (segment.values_from(seq), [])


def test_a_part_in_the_middle_reads_its_entries_and_its_frames_only() -> None:
    segment = Segment([1000] * 100, slices=100)
    seq = FIRST + 7_000
    part = segment.parts.read(segment.read, "key", segment.rebase, segment.byte_length, seq, 50_000)
    assert part is not None
    assert 20 <= part.rebase.last_seq - seq <= 25
    (entries_at, entries_size), (frames_at, frames_size) = segment.reads
    assert entries_at == segment.data_bytes + 7_000 * ENTRY_BYTES
    assert entries_size == 3_000 * ENTRY_BYTES
    assert frames_at == segment.place_of(seq)[0]
    assert frames_size <= 50_000


def test_a_part_has_a_bounded_number_of_records() -> None:
    segment = Segment([1] * 9_000, slices=1)
    part = segment.parts.read(segment.read, "key", segment.rebase, segment.byte_length, FIRST, 1 << 30)
    assert part is not None
    assert part.rebase == Rebase(TOPIC, FIRST, FIRST + ENTRIES_AT_ONCE - 1)


def test_each_damaged_byte_of_the_object_costs_its_record_and_no_other() -> None:
    """A byte of a frame costs that record; one of the header or of the index costs nothing."""
    intact = Segment([3, 40, 1], slices=3)
    seq_of = {
        at: seq
        for seq in range(FIRST, intact.rebase.last_seq + 1)
        for at in range(intact.place_of(seq)[0], sum(intact.place_of(seq)))
    }
    for at in range(intact.byte_length):
        for bytes_max in (1, 1 << 20):
            segment = Segment([3, 40, 1], slices=3)
            segment.flip(at)
            records, damaged = segment.records_from(FIRST, bytes_max)
            assert seqs_of(damaged) == ({seq_of[at]} if at in seq_of else set()), at
            expected = segment.values_from(FIRST)
            if at in seq_of:
                del expected[seq_of[at]]
            assert records == expected, at


def test_random_damage_is_reported_with_exact_seqs() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        segment = Segment([rng.choice((1, 30, 300)) for _ in range(20)], slices=10)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(segment.byte_length)
            length = rng.choice((1, 60, 2_000))
            noise = rng.randbytes(min(length, segment.byte_length - at))
            segment.data = segment.data[:at] + noise + segment.data[at + len(noise) :]
        seq = rng.randint(FIRST, segment.rebase.last_seq)
        records, damaged = segment.records_from(seq, rng.choice((1, 500, 1 << 20)))
        expected = segment.values_from(seq)
        assert all(expected[at] == value for at, value in records.items())
        assert records.keys() | seqs_of(damaged) == expected.keys()
        assert not records.keys() & seqs_of(damaged)


def test_an_object_that_ends_too_early_loses_what_is_missing() -> None:
    segment = Segment([100] * 10, slices=2)
    offset, _ = segment.place_of(FIRST + 12)
    segment.data = segment.data[: offset + 20]
    records, damaged = segment.records_from(FIRST, 1 << 20)
    assert records == {seq: value for seq, value in segment.values_from(FIRST).items() if seq < FIRST + 12}
    assert seqs_of(damaged) == set(range(FIRST + 12, FIRST + 20))


def test_the_object_of_another_incarnation_is_no_damage() -> None:
    segment = Segment([10] * 3)
    other = segment.rebase._replace(incarnation=8)
    assert segment.parts.read(segment.read, "key", other, segment.byte_length, FIRST, 100) is None


def test_a_damaged_slice_is_not_added() -> None:
    body = encode_frames([NewFrame(b"1"), NewFrame(b"2")], TOPIC, 1, 1000)
    for at in range(len(body)):
        builder = SegmentBuilder(TOPIC, 1)
        assert builder.add(body, Rebase(TOPIC, 1, 2))
        before = builder.parts()
        damaged = body[:at] + bytes([body[at] ^ 4]) + body[at + 1 :]
        assert not builder.add(damaged, Rebase(TOPIC, 3, 4))
        assert builder.parts() == before
    assert not SegmentBuilder(TOPIC, 1).add(body[: len(body) // 2], Rebase(TOPIC, 1, 2))
    assert not SegmentBuilder(TOPIC, 1).add(body, Rebase(TOPIC, 1, 3))
    with pytest.raises(OtherTopic):
        SegmentBuilder(8, 1).add(body, Rebase(8, 1, 2))


def test_a_slice_with_a_frame_of_another_incarnation_is_not_added() -> None:
    builder = SegmentBuilder(TOPIC, 1)
    assert builder.add(encode_frames([NewFrame(b"1")], TOPIC, 1, 1000), Rebase(TOPIC, 1, 1))
    before = builder.parts()
    own, other = encode_frames([NewFrame(b"2")], TOPIC, 1, 1000), encode_frames([NewFrame(b"x")], 8, 2, 1000)
    with pytest.raises(OtherTopic):
        builder.add(own + other, Rebase(TOPIC, 2, 3))
    assert builder.parts() == before


# -- through a broker


def compacted(blobs: int, size: int, **limits: int) -> OneBroker:
    """Return a broker with small caches, and a topic that is one compacted object."""
    one = OneBroker(read_limits=ReadLimits(tail_cache_bytes=0, laggard_cache_bytes=4 << 20))
    one.create("a")
    for number in range(blobs):
        one.appended("a", *[b"%04d" % number + b"x" * size] * 100)
    one.clock.advance(REPEATED_MS)
    run_compactor(one, **limits)
    assert one_extent(one).encoding == SEGMENT_V1
    return one


def run_compactor(one: OneBroker, **limits: int) -> None:
    steps = Compactor("c", one.store, one.catalog, one.retries, CompactorLimits(**limits)).compact("a")
    result = None
    while True:
        try:
            result = steps.send(result)()
        except StopIteration:
            return


def one_extent(one: OneBroker) -> SharedExtent:
    (extent,) = one.topics.extents_from("a", 1, 10)
    return extent


def read(one: OneBroker, seq: int, bytes_max: int) -> TopicRecords:
    answers = one.read(SharedRead([TopicRead("a", seq, bytes_max)]))
    one.settle()
    ((answer,),) = answers
    assert answer.refusal is None
    return answer


def test_a_read_in_the_middle_of_a_large_object_gets_two_ranges() -> None:
    one = compacted(blobs=60, size=900)
    extent = one_extent(one)
    assert extent.byte_length > 5 << 20
    one.store.requests.clear()
    answer = read(one, 4_000, 10_000)
    assert [record.seq for record in answer.records][:3] == [4_000, 4_001, 4_002]
    requests = [request.split() for request in one.store.requests]
    assert {(verb, key) for verb, key, *_ in requests} == {("read", extent.key)}
    # The entries, and the frames: whole blocks of the cache.
    assert len(requests) == 2
    assert sum(int(size) for *_, size in requests) <= 3 * BLOCK_BYTES
    one.store.requests.clear()
    assert read(one, 4_010, 10_000).records[0].seq == 4_010
    assert not one.store.requests


def test_a_whole_object_is_read_in_order_with_few_requests() -> None:
    one = compacted(blobs=60, size=900)
    one.store.requests.clear()
    seq = 1
    while seq <= 6_000:
        answer = read(one, seq, 1 << 20)
        assert [record.seq for record in answer.records] == list(range(seq, answer.next_seq))
        seq = answer.next_seq
    assert len(one.store.requests) <= 15


def test_readers_of_compacted_records_leave_the_caches_of_others_alone() -> None:
    one = compacted(blobs=3, size=10)
    before = one.broker.extents.laggard_gets
    read(one, 1, 1 << 20)
    assert one.broker.extents.laggard_gets > before


def test_damage_of_a_compacted_object_is_reported_to_its_reader() -> None:
    one = compacted(blobs=4, size=10)
    extent = one_extent(one)
    stored = one.store.objects[extent.key]
    at = stored.data.index(b"0002xxx")
    one.store.objects[extent.key] = stored._replace(data=stored.data[:at] + b"?" + stored.data[at + 1 :])
    answer = read(one, 1, 1 << 20)
    assert [(lost.first_seq, lost.last_seq, lost.reason) for lost in answer.lost] == [(201, 201, "damaged")]
    assert len(answer.records) == 399


def test_a_damaged_slice_gets_an_object_alone_and_stops_nothing() -> None:
    one = OneBroker(read_limits=ReadLimits(tail_cache_bytes=0, block_cache_bytes=0))
    one.create("a")
    for number in range(6):
        one.appended("a", b"%d" % number, b"+%d" % number)
    key = one.topics.extents_from("a", 5, 1)[0].key
    stored = one.store.objects[key]
    at = stored.data.rindex(b"+2")
    one.store.objects[key] = stored._replace(data=stored.data[:at] + b"?" + stored.data[at + 1 :])
    before = one.values("a")
    assert [seq for seq, _ in before] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    one.clock.advance(REPEATED_MS)
    for _ in range(3):
        run_compactor(one)
    extents = one.topics.extents_from("a", 1, 10)
    assert [(one.first_seq, one.last_seq, one.type, one.encoding) for one in extents] == [
        (1, 4, "COMPACTED", SEGMENT_V1),
        (5, 6, "COMPACTED", "frames-v1"),
        (7, 12, "COMPACTED", SEGMENT_V1),
    ]
    assert one.values("a") == before


def test_a_slice_that_was_damaged_on_its_way_is_not_kept_so() -> None:
    one = OneBroker(read_limits=ReadLimits(tail_cache_bytes=0, block_cache_bytes=0))
    one.create("a")
    for number in range(3):
        one.appended("a", b"%d" % number)
    one.clock.advance(REPEATED_MS)
    key = one.topics.extents_from("a", 1, 1)[0].key
    stored = one.store.objects[key]
    one.store.objects[key] = stored._replace(data=stored.data[:-1] + b"?")
    steps = Compactor("c", one.store, one.catalog, one.retries, CompactorLimits()).compact("a")
    call, report = next(steps), None
    while report is None:
        requests = len(one.store.requests)
        result = call()
        if len(one.store.requests) > requests:
            # The first read is over; from now on the store gives what it has.
            one.store.objects[key] = stored
        try:
            call = steps.send(result)
        except StopIteration as end:
            report = end.value
    assert report.outcome == "nothing"
    run_compactor(one)
    assert one_extent(one).encoding == SEGMENT_V1
    assert one.values("a") == [(1, b"0"), (2, b"1"), (3, b"2")]


def test_objects_of_earlier_releases_are_read() -> None:
    """They hold the frames of a topic as one slice, in the encoding `frames-v1`."""
    one = OneBroker(read_limits=ReadLimits(tail_cache_bytes=0, block_cache_bytes=0))
    one.create("a")
    for number in range(3):
        one.appended("a", b"%d" % number)
    body = encode_frames([NewFrame(b"%d" % number) for number in range(3)], TOPIC, 1, 1000)
    one.store.create("llog/compacted/old", [body], "id")
    old = SharedExtent(1, 3, "COMPACTED", "llog/compacted/old", "frames-v1", 0, len(body), 1000)
    one.topics.replace_extents("a", old)
    assert one.values("a", 2) == [(2, b"1"), (3, b"2")]
