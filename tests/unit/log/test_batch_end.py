from __future__ import annotations

from random import Random

from tests.harness.shard.wal_bytes import EPOCH
from topicsd.log.batch_end import (
    BATCH_END_BYTES,
    BatchEnd,
    chain_of,
    encode_batch_end,
    find_batch_end,
    parse_batch_end,
)
from topicsd.log.frame import HEADER_BYTES, FrameType, parse_frame

END = BatchEnd(EPOCH, ordinal=9, offset=118, length=54, chain=0x1122334455667788, synced=64)


def test_any_end_comes_back_as_it_was() -> None:
    rng = Random(3)
    for _ in range(500):
        end = BatchEnd(rng.randbytes(16), *(rng.getrandbits(64) for _ in range(5)))
        frame = encode_batch_end(end, ts=rng.getrandbits(64))
        assert len(frame) == BATCH_END_BYTES
        assert parse_batch_end(b"x" * 7 + frame + b"y", 7, end.epoch) == end


def test_it_is_a_frame_like_any_other() -> None:
    frame = parse_frame(encode_batch_end(END, ts=77), 0, BATCH_END_BYTES)
    assert (frame.type, frame.flags, frame.topic_id, frame.seq, frame.ts) == (
        FrameType.BATCH_END,
        0,
        0,
        0,
        77,
    )
    assert frame.payload.startswith(EPOCH)


def test_the_bytes_are_those_of_the_format() -> None:
    assert encode_batch_end(END, ts=2)[HEADER_BYTES:-8].hex(" ", 8) == (
        "65706f63682d6f66 2d612d66696c652d 0900000000000000 7600000000000000 3600000000000000 "
        "8877665544332211 4000000000000000"
    )


def test_one_of_another_file_is_none_of_this() -> None:
    assert parse_batch_end(encode_batch_end(END, ts=0), 0, b"f" * 16) is None


def test_one_cut_or_flipped_at_any_byte_is_none() -> None:
    frame = encode_batch_end(END, ts=0)
    for offset in range(len(frame)):
        assert parse_batch_end(frame[:offset], 0, EPOCH) is None
        flipped = bytearray(frame)
        flipped[offset] ^= 0x04
        assert parse_batch_end(bytes(flipped), 0, EPOCH) is None


def test_the_search_finds_each_place_that_may_be_one() -> None:
    frame = encode_batch_end(END, ts=0)
    buffer = b"a" * 30 + frame + b"b" * 5 + frame
    first = find_batch_end(buffer, EPOCH, 0)
    second = find_batch_end(buffer, EPOCH, first + 1)
    assert (first, second) == (30, 30 + BATCH_END_BYTES + 5)
    assert find_batch_end(buffer, EPOCH, 30) == 30
    assert find_batch_end(buffer, EPOCH, second + 1) == -1
    assert find_batch_end(buffer, b"f" * 16, 0) == -1


def test_an_epoch_too_near_to_the_start_is_no_end_that_began_before() -> None:
    assert find_batch_end(EPOCH + bytes(200), EPOCH, 0) == -1


def test_a_payload_that_holds_the_epoch_is_found_and_is_none() -> None:
    buffer = bytes(HEADER_BYTES) + EPOCH + bytes(100)
    offset = find_batch_end(buffer, EPOCH, 0)
    assert offset == 0
    assert parse_batch_end(buffer, offset, EPOCH) is None


def test_the_chain_depends_on_every_batch_before() -> None:
    assert chain_of(b"second", chain_of(b"first", 0)) != chain_of(b"second", chain_of(b"other", 0))
    assert chain_of(b"x", 1) != chain_of(b"x", 2)
