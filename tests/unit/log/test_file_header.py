from __future__ import annotations

from random import Random

import pytest

from topicsd.log.file_header import (
    FILE_HEADER_BYTES,
    MAGIC,
    FileHeader,
    UnknownVersion,
    encode_file_header,
    parse_file_header,
)
from topicsd.log.frame import FrameDamage, FrameType, encode_frame

HEADER = FileHeader(
    shard=3,
    instance=bytes(range(16)),
    epoch=bytes(range(16, 32)),
    first_ordinal=1025,
    chain_seed=0x1122334455667788,
    file_bytes=65536,
    ts=1_700_000_000_000,
)


def with_payload(payload: bytes, frame_type: int = FrameType.FILE_HEADER) -> bytes:
    return encode_frame(frame_type, ts=1, payload=payload)


def payload_of(header: bytes) -> bytearray:
    return bytearray(header[38:-8])


def test_a_header_comes_back_as_it_was_with_room_behind_it() -> None:
    rng = Random(7)
    for _ in range(200):
        header = FileHeader(
            shard=rng.getrandbits(32),
            instance=rng.randbytes(16),
            epoch=rng.randbytes(16),
            first_ordinal=rng.getrandbits(64),
            chain_seed=rng.getrandbits(64),
            file_bytes=rng.getrandbits(64),
            ts=rng.getrandbits(64),
        )
        frame = encode_file_header(header)
        assert len(frame) == FILE_HEADER_BYTES
        assert parse_file_header(frame) == header
        assert parse_file_header(frame + bytes(500)) == header


def test_the_bytes_are_those_of_the_format() -> None:
    payload = bytes(payload_of(encode_file_header(HEADER)))
    assert payload.hex(" ", 8) == (
        "544f50494357414c 0100000003000000 0001020304050607 08090a0b0c0d0e0f "
        "1011121314151617 18191a1b1c1d1e1f 0104000000000000 8877665544332211 0000010000000000"
    )


def test_a_header_cut_or_flipped_at_any_byte_is_damage() -> None:
    frame = encode_file_header(HEADER)
    for offset in range(len(frame)):
        with pytest.raises(FrameDamage):
            parse_file_header(frame[:offset])
        flipped = bytearray(frame)
        flipped[offset] ^= 0x10
        with pytest.raises(FrameDamage):
            parse_file_header(bytes(flipped))


def test_zeros_are_damage() -> None:
    with pytest.raises(FrameDamage):
        parse_file_header(bytes(4096))


@pytest.mark.parametrize("version", [0, 2, 255, 0xFFFFFFFF])
def test_an_unknown_version_is_named_and_not_guessed_at(version: int) -> None:
    payload = payload_of(encode_file_header(HEADER))
    payload[8:12] = version.to_bytes(4, "little")
    with pytest.raises(UnknownVersion, match=f"version {version}; this program reads version 1"):
        parse_file_header(with_payload(bytes(payload)))


def test_another_magic_is_damage() -> None:
    payload = payload_of(encode_file_header(HEADER))
    payload[: len(MAGIC)] = b"SOMEFILE"
    with pytest.raises(FrameDamage, match="unknown magic"):
        parse_file_header(with_payload(bytes(payload)))


@pytest.mark.parametrize("size", [0, 71, 73])
def test_a_header_of_another_size_is_damage(size: int) -> None:
    payload = bytes(payload_of(encode_file_header(HEADER))).ljust(80, b"\0")[:size]
    with pytest.raises(FrameDamage):
        parse_file_header(with_payload(payload).ljust(FILE_HEADER_BYTES, b"\0"))


def test_another_frame_in_its_place_is_damage() -> None:
    payload = bytes(payload_of(encode_file_header(HEADER)))
    with pytest.raises(FrameDamage, match="not a file header"):
        parse_file_header(with_payload(payload, FrameType.APPEND))
