"""Damage anywhere in a slice or in a part of a compacted object: it is reported, and never an error."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest

from topicsd.broker.frames_v1 import (
    FRAMES_V1,
    SEGMENT_V1,
    NewFrame,
    Rebase,
    decode_frames,
    encode_frames,
)

TOPIC = 77
FIRST = 41


def starts_of(body: bytes) -> list[int]:
    """Return the offsets of the frames, and the end of the last one."""
    at, offsets = 0, [0]
    while at < len(body):
        at += 4 + struct.unpack_from("<I", body, at)[0]
        offsets.append(at)
    return offsets


def slice_of(records: list[NewFrame], encoding: str) -> bytes:
    return encode_frames(records, TOPIC, FIRST if encoding == SEGMENT_V1 else 3, ts=5)


def damaged_at(body: bytes, at: int, noise: bytes) -> tuple[bytes, set[int]]:
    """Return the body with other bytes from `at` on, and the numbers of the frames that have changed."""
    noise = noise[: len(body) - at]
    changed = body[:at] + noise + body[at + len(noise) :]
    places = [place for place in range(at, at + len(noise)) if changed[place] != body[place]]
    starts = starts_of(body)
    spans = enumerate(pairwise(starts))
    return changed, {n for n, (start, end) in spans if any(start <= one < end for one in places)}


def check(body: bytes, records: list[NewFrame], lost: set[int], from_seq: int, encoding: str) -> None:
    rebase = Rebase(TOPIC, FIRST, FIRST + len(records) - 1)
    decoded = decode_frames(body, rebase, from_seq, encoding=encoding)
    is_unknown = encoding == FRAMES_V1 and {0, len(records) - 1} <= lost
    numbers = set(range(len(records))) if is_unknown else lost
    seqs = [seq for one in decoded.damaged for seq in range(one.first_seq, one.last_seq + 1)]
    assert seqs == sorted(FIRST + number for number in numbers if FIRST + number >= from_seq)
    assert [(one.seq, one.data) for one in decoded.records] == [
        (seq, one.data)
        for seq, one in enumerate(records, FIRST)
        if seq >= from_seq and seq - FIRST not in numbers
    ]
    assert decoded.next_seq == FIRST + len(records)


@pytest.mark.parametrize("encoding", [FRAMES_V1, SEGMENT_V1])
def test_damage_of_some_bytes_is_reported_with_exact_seqs(encoding: str) -> None:
    for seed in range(1000):
        rng = random.Random(seed)
        sizes = [rng.choice((1, 8, 60)) for _ in range(rng.randint(1, 9))]
        records = [
            NewFrame(rng.randbytes(size), tag=rng.choice((None, "t")), is_bytes=True) for size in sizes
        ]
        body = slice_of(records, encoding)
        at, size = rng.randrange(len(body)), rng.randint(1, 8)
        if rng.random() < 0.5:
            # The header of a frame, which has its lengths.
            at = rng.choice(starts_of(body)[:-1]) + rng.randrange(38)
        noise = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))[: len(body) - at]
        changed, lost = damaged_at(body, at, noise)
        check(
            changed,
            records,
            lost,
            rng.choice((FIRST, rng.randint(FIRST, FIRST + len(records) - 1))),
            encoding,
        )


@pytest.mark.parametrize("encoding", [FRAMES_V1, SEGMENT_V1])
@pytest.mark.parametrize("frame_len", [*range(60), (1 << 32) - 1])
def test_any_length_of_a_frame_is_damage_of_that_frame(frame_len: int, encoding: str) -> None:
    records = [NewFrame(b"%d" % number) for number in range(4)]
    body = slice_of(records, encoding)
    for start in starts_of(body)[:-1]:
        changed, lost = damaged_at(body, start, struct.pack("<I", frame_len))
        check(changed, records, lost, FIRST, encoding)
        check(changed, records, lost, FIRST + 2, encoding)


def with_copies(rng: random.Random, encoding: str) -> list[NewFrame]:
    """Return records of which some hold a slice of the same topic, whose numbers are near their own."""
    first_number = FIRST if encoding == SEGMENT_V1 else 3
    count = rng.randint(3, 8)
    records = [NewFrame(b"%d" % number * rng.choice((1, 30))) for number in range(count)]
    for place in rng.sample(range(count), rng.randint(1, count)):
        forged = [NewFrame(b'"forged"')] * rng.randint(1, 4)
        copies = encode_frames(forged, TOPIC, first_number + place + rng.randint(-1, 3), ts=5)
        around = [rng.choice((b"", b"y", b"y" * 60)) for _ in range(2)]
        records[place] = NewFrame(around[0] + copies + around[1], is_bytes=True)
    return records


@pytest.mark.parametrize("encoding", [FRAMES_V1, SEGMENT_V1])
def test_copies_of_frames_in_a_damaged_record_are_no_records(encoding: str) -> None:
    for seed in range(1500):
        rng = random.Random(seed)
        records = with_copies(rng, encoding)
        body = slice_of(records, encoding)
        at = rng.choice(starts_of(body)[:-1]) + rng.randrange(38)
        size = rng.choice((1, 4, 8, 38))
        changed, lost = damaged_at(body, at, rng.choice((bytes(size), rng.randbytes(size))))
        check(changed, records, lost, FIRST, encoding)


@pytest.mark.parametrize("encoding", [FRAMES_V1, SEGMENT_V1])
def test_damage_in_several_places_makes_no_record_of_a_copy(encoding: str) -> None:
    """Intact records may be reported as damaged where copies contradict them; no other record is returned."""
    exact = 0
    for seed in range(1500):
        rng = random.Random(seed)
        records = with_copies(rng, encoding)
        body, lost = slice_of(records, encoding), set()
        starts = starts_of(body)
        changed = body
        for place in sorted(rng.sample(range(len(records)), 2)):
            noise = rng.choice((bytes(8), rng.randbytes(8)))
            at = starts[place] + rng.choice((0, 6, 30))
            changed = changed[:at] + noise + changed[at + 8 :]
            lost.add(place)
        decoded = decode_frames(changed, Rebase(TOPIC, FIRST, FIRST + len(records) - 1), encoding=encoding)
        damaged = {seq for one in decoded.damaged for seq in range(one.first_seq, one.last_seq + 1)}
        for record in decoded.records:
            assert record.data == records[record.seq - FIRST].data, seed
            assert record.seq not in damaged
        seqs = {record.seq for record in decoded.records}
        assert seqs | damaged == set(range(FIRST, FIRST + len(records)))
        exact += damaged == {FIRST + place for place in lost}
    assert exact > 1000
