from __future__ import annotations

from random import Random

import pytest

from tests.unit.segment.written_segment import HEADER, NAME, Written, parsed, replaced
from topicsd.log.file_header import UnknownVersion
from topicsd.log.frame import FrameDamage, FrameType, encode_frame
from topicsd.segment.data_file import (
    BLOCK_BYTES,
    SCAN_BYTES,
    SEGMENT_HEADER_BYTES,
    ScannedDamage,
    ScannedFrame,
    encode_segment_header,
    parse_segment_header,
    scan_data,
)
from topicsd.segment.entry import SegmentEntry

FIRST = NAME.first_seq


def frame_of(seq: int, size: int = 10, topic_id: int = NAME.topic_id, tag: bytes = b"") -> bytes:
    return encode_frame(FrameType.APPEND, topic_id=topic_id, seq=seq, ts=5, payload=b"x" * size, tag=tag)


def entry_for(frames: list[bytes], count: int, generation: int = 0) -> SegmentEntry:
    size = SEGMENT_HEADER_BYTES + sum(map(len, frames))
    return SegmentEntry(FIRST, count, generation, size, 5, 5, True, False, "hot", count, size, 0, 1)


def scanned(data: bytes, entry: SegmentEntry) -> list[int | tuple[int, int]]:
    """The seqs of the frames, and the damaged ranges."""
    name = NAME._replace(generation=entry.generation)
    items: list[int | tuple[int, int]] = []
    for one in scan_data(lambda offset, size: data[offset : offset + size], name, entry):
        if isinstance(one, ScannedFrame):
            assert data[one.offset : one.offset + one.frame.size] == data_frame(data, one)
            items.append(one.seq)
        else:
            items.append((one.first_seq, one.last_seq))
    return items


def data_frame(data: bytes, item: ScannedFrame) -> bytes:
    again = parsed(data[item.offset : item.offset + item.frame.size])
    assert again == item.frame
    return data[item.offset : item.offset + item.frame.size]


def file_of(frames: list[bytes], generation: int = 0) -> bytes:
    return encode_segment_header(HEADER._replace(generation=generation)) + b"".join(frames)


def test_a_header_comes_back_and_any_change_of_it_is_damage() -> None:
    frame = encode_segment_header(HEADER)
    assert parse_segment_header(frame + b"behind") == HEADER
    assert HEADER.name == NAME
    for offset in range(len(frame)):
        with pytest.raises(FrameDamage):
            parse_segment_header(frame[:offset])
        flipped = bytearray(frame)
        flipped[offset] ^= 0x10
        with pytest.raises(FrameDamage):
            parse_segment_header(bytes(flipped))


def test_an_unknown_version_is_refused() -> None:
    payload = bytearray(encode_segment_header(HEADER)[38:-8])
    payload[8:12] = (2).to_bytes(4, "little")
    with pytest.raises(UnknownVersion, match="version 2; this program reads version 1"):
        parse_segment_header(encode_frame(FrameType.FILE_HEADER, payload=bytes(payload)))
    payload[:8] = b"TOPICWAL"
    with pytest.raises(FrameDamage, match="unknown magic"):
        parse_segment_header(encode_frame(FrameType.FILE_HEADER, payload=bytes(payload)))


def test_every_frame_of_an_intact_file_is_found() -> None:
    frames = [frame_of(FIRST + number, size=number) for number in range(100)]
    data = file_of(frames)
    assert scanned(data, entry_for(frames, 100)) == list(range(FIRST, FIRST + 100))
    # What stands behind the length that counts was never taken over.
    assert scanned(data + frame_of(FIRST + 100), entry_for(frames, 100)) == list(range(FIRST, FIRST + 100))


def test_frames_larger_than_a_window_and_across_its_end_are_found() -> None:
    sizes = [SCAN_BYTES - 60, 100, 3 * SCAN_BYTES, 10, SCAN_BYTES]
    frames = [frame_of(FIRST + number, size) for number, size in enumerate(sizes)]
    data = bytearray(file_of(frames))
    entry = entry_for(frames, 5)
    assert scanned(bytes(data), entry) == list(range(FIRST, FIRST + 5))
    data[SEGMENT_HEADER_BYTES + len(frames[0]) + len(frames[1]) + SCAN_BYTES] ^= 1
    assert scanned(bytes(data), entry) == [FIRST, FIRST + 1, (FIRST + 2, FIRST + 2), FIRST + 3, FIRST + 4]


def test_a_rewritten_file_may_lack_any_seq_but_no_byte() -> None:
    frames = [frame_of(FIRST + number) for number in (3, 4, 8)]
    entry = entry_for(frames, 20, generation=2)
    data = file_of(frames, generation=2)
    assert scanned(data, entry) == [FIRST + 3, FIRST + 4, FIRST + 8]
    cut = file_of(frames[:2], generation=2)
    assert scanned(cut, entry) == [FIRST + 3, FIRST + 4, (FIRST + 5, FIRST + 19)]


def test_a_file_as_first_written_may_lack_none() -> None:
    frames = [frame_of(FIRST), frame_of(FIRST + 2)]
    assert scanned(file_of(frames), entry_for(frames, 3)) == [FIRST, (FIRST + 1, FIRST + 1), FIRST + 2]
    assert scanned(file_of(frames[:1]), entry_for(frames[:1], 3)) == [FIRST, (FIRST + 1, FIRST + 2)]


def test_frames_of_another_topic_are_damage() -> None:
    frames = [frame_of(FIRST), frame_of(FIRST + 1, topic_id=8), frame_of(FIRST + 2)]
    assert scanned(file_of(frames), entry_for(frames, 3)) == [FIRST, (FIRST + 1, FIRST + 1), FIRST + 2]
    stranger = encode_segment_header(HEADER._replace(epoch=7)) + b"".join(frames)
    assert scanned(stranger, entry_for(frames, 3)) == [(FIRST, FIRST + 2)]


def test_a_damaged_header_takes_no_record_with_it() -> None:
    frames = [frame_of(FIRST), frame_of(FIRST + 1)]
    data = bytearray(file_of(frames))
    data[50] ^= 1
    assert scanned(bytes(data), entry_for(frames, 2)) == [(FIRST, FIRST - 1), FIRST, FIRST + 1]


def test_more_bytes_than_frames_are_damage() -> None:
    frames = [frame_of(FIRST), frame_of(FIRST + 1)]
    entry = replaced(entry_for(frames, 1), count=1)
    assert scanned(file_of(frames), entry) == [FIRST, (FIRST + 1, FIRST)]


@pytest.mark.slow
@pytest.mark.parametrize("generation", [0, 1])
def test_a_byte_changed_anywhere_costs_at_most_the_record_it_is_in(generation: int) -> None:
    seqs = [FIRST + number for number in range(12) if generation == 0 or number % 3]
    frames = [frame_of(seq, size=seq % 7, tag=b"tag" * (seq % 2)) for seq in seqs]
    data = file_of(frames, generation)
    entry = entry_for(frames, 12, generation)
    intact = scanned(data, entry)
    owner: list[int | None] = [None] * SEGMENT_HEADER_BYTES + [
        seq for seq, frame in zip(seqs, frames, strict=True) for _ in frame
    ]
    rng = Random(generation)
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= rng.randrange(1, 256)
        items = scanned(bytes(changed), entry)
        good = [one for one in items if isinstance(one, int)]
        damaged = [one for one in items if not isinstance(one, int)]
        assert len(damaged) == 1
        assert good == [seq for seq in intact if seq != owner[offset]]
        seq = owner[offset]
        if seq is not None:
            assert damaged[0][0] <= seq <= damaged[0][1]


def test_a_cut_anywhere_leaves_what_is_whole() -> None:
    frames = [frame_of(FIRST + number, size=number) for number in range(6)]
    data, entry = file_of(frames), entry_for(frames, 6)
    ends = [SEGMENT_HEADER_BYTES + sum(map(len, frames[: number + 1])) for number in range(6)]
    for size in range(len(data)):
        items = scanned(data[:size], entry)
        assert [one for one in items if isinstance(one, int)] == [
            FIRST + number for number, end in enumerate(ends) if end <= size
        ]
        assert isinstance(items[-1], tuple)
        assert items[-1][1] == FIRST + 5


def test_what_cannot_be_read_is_damage_and_what_is_behind_it_is_found() -> None:
    frames = [frame_of(FIRST + number, size=1000) for number in range(40)]
    data, entry = file_of(frames), entry_for(frames, 40)
    bad = range(2 * BLOCK_BYTES, 3 * BLOCK_BYTES)

    def read(offset: int, size: int) -> bytes:
        if offset < bad.stop and offset + size > bad.start:
            raise OSError(5, "Input/output error")
        return data[offset : offset + size]

    items = list(scan_data(read, NAME, entry))
    damaged = [one for one in items if isinstance(one, ScannedDamage)]
    good = [one.seq for one in items if isinstance(one, ScannedFrame)]
    assert len(damaged) == 1
    assert "Input/output" in damaged[0].what
    lost = set(range(damaged[0].first_seq, damaged[0].last_seq + 1))
    assert 1 <= len(lost) <= 7
    assert sorted(lost | set(good)) == list(range(FIRST, FIRST + 40))


def test_a_search_over_many_false_starts_ends() -> None:
    decoy = NAME.topic_id.to_bytes(8, "little")
    frames = [frame_of(FIRST), frame_of(FIRST + 1, size=9), frame_of(FIRST + 2)]
    frames[1] = frame_of(FIRST + 1, tag=b"t")[:38] + decoy * 50_000
    data = file_of(frames)
    assert scanned(data, entry_for(frames, 3)) == [FIRST, (FIRST + 1, FIRST + 1), FIRST + 2]


def test_a_frame_across_the_end_of_a_window_is_found_by_a_search() -> None:
    for short in range(-2, 48):
        first = frame_of(FIRST)
        overhead = len(frame_of(FIRST + 1, size=0))
        size = SCAN_BYTES - short - len(first) - overhead
        frames = [first, frame_of(FIRST + 1, size=size), frame_of(FIRST + 2)]
        data = bytearray(file_of(frames))
        at = SEGMENT_HEADER_BYTES + len(first)
        # A length that no frame has: nothing more is read for it.
        data[at : at + 4] = b"\xff" * 4
        assert scanned(bytes(data), entry_for(frames, 3)) == [FIRST, (FIRST + 1, FIRST + 1), FIRST + 2]


def test_the_written_segment_is_what_it_says() -> None:
    written = Written(count=30)
    data = written.files()[".data"]
    assert len(data) == written.entry.data_bytes
    assert scanned(data, written.entry) == list(range(FIRST, FIRST + 30))


@pytest.mark.parametrize("at", range(46))
@pytest.mark.parametrize("generation", [0, 2])
def test_frames_inside_a_damaged_record_of_bytes_are_no_records(at: int, generation: int) -> None:
    inner = b"".join(frame_of(FIRST + number) for number in (2, 3, 4))
    outer = encode_frame(
        FrameType.APPEND, topic_id=NAME.topic_id, seq=FIRST + 1, ts=5, payload=inner, is_bytes=True
    )
    frames = [frame_of(FIRST), outer, *(frame_of(FIRST + number, 50) for number in (2, 3, 4))]
    data = bytearray(file_of(frames, generation))
    start = SEGMENT_HEADER_BYTES + len(frames[0])
    data[start + at] ^= 0x55
    entry = entry_for(frames, 5, generation)
    expected = [FIRST, (FIRST + 1, FIRST + 1), FIRST + 2, FIRST + 3, FIRST + 4]
    assert scanned(bytes(data), entry) == expected
    name = NAME._replace(generation=generation)
    scan = scan_data(lambda offset, size: bytes(data[offset : offset + size]), name, entry)
    payloads = [one.frame.payload for one in scan if isinstance(one, ScannedFrame)]
    assert payloads == [b"x" * 10, *[b"x" * 50] * 3]


@pytest.mark.parametrize("generation", [0, 2])
def test_copies_of_frames_in_a_damaged_record_are_no_records(generation: int) -> None:
    for seed in range(800):
        rng = Random(seed)
        count, step = rng.randint(3, 8), 1 if generation == 0 else 3
        seqs = [FIRST + number * step for number in range(count)]
        frames = [frame_of(seq, rng.choice((1, 30))) for seq in seqs]
        for place in rng.sample(range(count), rng.randint(1, count)):
            near = seqs[place] + rng.randint(-1, 3)
            copies = b"".join(frame_of(near + number, 7) for number in range(rng.randint(1, 4)))
            around = [rng.choice((b"", b"y" * 60)) for _ in range(2)]
            payload = around[0] + copies + around[1]
            frames[place] = encode_frame(
                FrameType.APPEND,
                topic_id=NAME.topic_id,
                seq=seqs[place],
                ts=5,
                payload=payload,
                is_bytes=True,
            )
        data = bytearray(file_of(frames, generation))
        damaged = rng.randrange(count)
        at = SEGMENT_HEADER_BYTES + sum(map(len, frames[:damaged]))
        # In a rewritten segment one of the lengths stays.
        at, noise_bytes = rng.choice(((at, 38), (at + rng.randrange(31), 8))[generation // 2 :])
        data[at : at + noise_bytes] = rng.randbytes(noise_bytes)
        size = len(data)
        entry = SegmentEntry(
            FIRST, seqs[-1] - FIRST + 1, generation, size, 5, 5, True, False, "hot", count, size, 0, 1
        )
        name = NAME._replace(generation=generation)
        scan = list(
            scan_data(lambda offset, size, data=data: bytes(data[offset : offset + size]), name, entry)
        )
        frames_by_seq = {one.seq: one.frame for one in scan if isinstance(one, ScannedFrame)}
        assert list(frames_by_seq) == [seq for seq in seqs if seq != seqs[damaged]], seed
        for seq, frame in frames_by_seq.items():
            assert frame.payload == parsed(frames[seqs.index(seq)]).payload
        lost = {
            seq
            for one in scan
            if isinstance(one, ScannedDamage)
            for seq in range(one.first_seq, one.last_seq + 1)
        }
        assert lost & set(seqs) == {seqs[damaged]}
