from __future__ import annotations

from random import Random

import pytest
import xxhash

from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAG_BYTES,
    FLAG_DURABLE,
    FLAG_META,
    FLAG_NODE,
    FLAG_TAG,
    FLAGS_KNOWN,
    FRAME_LEN_MAX,
    FRAME_LEN_MIN,
    HEADER,
    HEADER_BYTES,
    KNOWN_TYPES,
    LEN_BYTES,
    U32,
    U64,
    FrameDamage,
    FrameType,
    Record,
    encode_frame,
    parse_frame,
    payload_with_meta,
    record_of,
    split_payload,
)

SEED = 20240611

GOLDEN = bytes.fromhex(
    "41000000"  # frame_len 65
    "01"  # Append
    "0f"  # has_tag, has_node, durable, has_meta
    "0807060504030201"  # topic_id
    "1100000000000000"  # seq 17
    "0068e5cf8b010000"  # ts
    "0200"  # node_len
    "0300"  # tag_len
    "12000000"  # data_len
    "6e31"  # n1
    "746167"  # tag
    "7b2261223a317d"  # {"a":1}
    "7b226b223a327d"  # {"k":2}
    "07000000"  # the meta's length
    "44f0acab7ed5998f"  # xxh3_64
)


def resealed(frame: bytes) -> bytes:
    """With a checksum that fits, so that only the content is wrong."""
    body = frame[LEN_BYTES:-CHECKSUM_BYTES]
    return frame[:LEN_BYTES] + body + U64.pack(xxhash.xxh3_64_intdigest(body))


def random_fields(rng: Random) -> dict[str, object]:
    def edge(bits: int) -> int:
        return rng.choice((0, 1, (1 << bits) - 1, rng.getrandbits(bits)))

    return {
        "topic_id": edge(64),
        "seq": edge(64),
        "ts": edge(64),
        "node": rng.randbytes(rng.choice((0, 0, 1, 128, 0xFFFF))),
        "tag": rng.randbytes(rng.choice((0, 0, 1, 256, 0xFFFF))),
        "payload": rng.randbytes(rng.choice((0, 1, 80, 5000))),
        "durable": rng.random() < 0.5,
        "has_meta": rng.random() < 0.5,
        "is_bytes": rng.random() < 0.5,
    }


def test_random_fields_come_back_as_they_were() -> None:
    rng = Random(SEED)
    for _ in range(2000):
        frame_type, fields = rng.choice(list(FrameType)), random_fields(rng)
        frame = encode_frame(frame_type, **fields)  # type: ignore[arg-type]
        before, behind = rng.randbytes(rng.randrange(20)), rng.randbytes(rng.randrange(20))
        frame_read = parse_frame(before + frame + behind, len(before), len(before) + len(frame) + len(behind))
        assert frame_read.type == frame_type
        assert frame_read.size == len(frame)
        assert {name: getattr(frame_read, name) for name in fields if hasattr(frame_read, name)} == {
            name: value for name, value in fields.items() if hasattr(frame_read, name)
        }
        assert bool(frame_read.flags & FLAG_DURABLE) is fields["durable"]
        assert bool(frame_read.flags & FLAG_META) is fields["has_meta"]
        assert bool(frame_read.flags & FLAG_BYTES) is fields["is_bytes"]
        assert bool(frame_read.flags & FLAG_TAG) is bool(fields["tag"])
        assert bool(frame_read.flags & FLAG_NODE) is bool(fields["node"])


def test_the_bytes_of_a_frame_are_those_of_the_format() -> None:
    frame = encode_frame(
        FrameType.APPEND,
        topic_id=0x0102030405060708,
        seq=17,
        ts=1_700_000_000_000,
        node=b"n1",
        tag=b"tag",
        payload=payload_with_meta(b'{"a":1}', b'{"k":2}'),
        durable=True,
        has_meta=True,
    )
    assert frame.hex() == GOLDEN.hex()


def test_the_numbers_of_the_types_never_change() -> None:
    assert {frame_type.name: int(frame_type) for frame_type in FrameType} == {
        "APPEND": 1,
        "TOPIC_CREATE": 2,
        "TOPIC_DELETE": 3,
        "FORWARD_CREATE": 4,
        "FORWARD_DELETE": 5,
        "DELETE": 6,
        "EVICT_WATERMARK": 7,
        "CHECKPOINT_MARK": 8,
        "CONFIG_UPDATE": 9,
        "LEASE": 10,
        "HEAD_WATERMARK": 11,
        "IDEMPOTENCY": 12,
        "FORWARD_CURSOR": 13,
        "BATCH_END": 14,
        "FILE_HEADER": 15,
        "WATCH_SESSION": 16,
        "CURSOR": 17,
        "LOST_RANGE": 18,
        "PRODUCER": 19,
        "ADOPT": 20,
        "OWNERSHIP": 21,
        "DEPARTED": 22,
        "SCHEDULE": 23,
    }
    assert (FLAG_TAG, FLAG_NODE, FLAG_DURABLE, FLAG_META, FLAG_BYTES) == (1, 2, 4, 8, 16)


def test_a_memoryview_is_as_good_as_bytes() -> None:
    assert parse_frame(memoryview(GOLDEN), 0, len(GOLDEN)) == parse_frame(GOLDEN, 0, len(GOLDEN))


def test_an_append_is_read_as_a_record() -> None:
    record = record_of(parse_frame(GOLDEN, 0, len(GOLDEN)))
    assert record == Record(17, 1_700_000_000_000, b'{"a":1}', b"tag", b"n1", b'{"k":2}')


def test_a_record_of_bytes_is_read_as_it_was() -> None:
    data = bytes(range(256))
    payload = payload_with_meta(data, b"{}")
    frame = encode_frame(FrameType.APPEND, seq=1, payload=payload, has_meta=True, is_bytes=True)
    assert frame[5] == FLAG_META | FLAG_BYTES
    assert record_of(parse_frame(frame, 0, len(frame))) == Record(1, 0, data, meta=b"{}", is_bytes=True)


def test_a_record_without_meta_has_none_and_an_empty_one_is_one() -> None:
    assert split_payload(b"abc", 0) == (b"abc", None)
    assert split_payload(payload_with_meta(b"abc", b""), FLAG_META) == (b"abc", b"")


@pytest.mark.parametrize("payload", [b"", b"\1", b"abc", b"abc\x04\0\0\0", b"\xff\xff\xff\xff"])
def test_a_meta_longer_than_its_payload_is_damage(payload: bytes) -> None:
    with pytest.raises(FrameDamage, match=r"meta length|length of its meta"):
        split_payload(payload, FLAG_META)


def test_a_frame_cut_at_any_byte_is_damage() -> None:
    for kept in range(len(GOLDEN)):
        with pytest.raises(FrameDamage, match=r"are left|exceeds the remaining"):
            parse_frame(GOLDEN[:kept], 0, kept)
        with pytest.raises(FrameDamage, match=r"are left|exceeds the remaining"):
            parse_frame(GOLDEN + bytes(100), 0, kept)


def test_any_flipped_byte_is_damage() -> None:
    for offset in range(len(GOLDEN)):
        for mask in (0x01, 0x80, 0xFF):
            frame = bytearray(GOLDEN)
            frame[offset] ^= mask
            with pytest.raises(FrameDamage):
                parse_frame(bytes(frame), 0, len(frame))


@pytest.mark.parametrize(
    ("frame_len", "what"),
    [
        (0, "below the minimum"),
        (1, "below the minimum"),
        (FRAME_LEN_MIN - 1, "below the minimum"),
        (0xFFFFFFFF, "above the maximum"),
        (FRAME_LEN_MAX + 1, "above the maximum"),
        (FRAME_LEN_MAX, "exceeds the remaining"),
        (len(GOLDEN) - LEN_BYTES + 1, "exceeds the remaining"),
        (len(GOLDEN) - LEN_BYTES - 1, "checksum"),
        (FRAME_LEN_MIN, "checksum"),
    ],
)
def test_a_wrong_frame_length_is_named_before_anything_is_read(frame_len: int, what: str) -> None:
    with pytest.raises(FrameDamage, match=what):
        parse_frame(U32.pack(frame_len) + GOLDEN[LEN_BYTES:], 0, len(GOLDEN))


@pytest.mark.parametrize("field", ["node_len", "tag_len", "data_len"])
@pytest.mark.parametrize("change", [-1, 1, 1000, -2])
def test_parts_that_do_not_add_up_are_damage_even_under_a_right_checksum(field: str, change: int) -> None:
    names = ("frame_len", "type", "flags", "topic_id", "seq", "ts", "node_len", "tag_len", "data_len")
    values = dict(zip(names, HEADER.unpack_from(GOLDEN), strict=True))
    values[field] += change
    frame = resealed(HEADER.pack(*values.values()) + GOLDEN[HEADER_BYTES:])
    with pytest.raises(FrameDamage, match="do not add up"):
        parse_frame(frame, 0, len(frame))


def test_every_type_that_is_not_known_is_refused_with_its_number() -> None:
    for frame_type in set(range(256)) - KNOWN_TYPES:
        frame = bytearray(GOLDEN)
        frame[4] = frame_type
        with pytest.raises(FrameDamage, match=f"frame type {frame_type} is unknown"):
            parse_frame(resealed(bytes(frame)), 0, len(frame))


def test_every_flag_that_is_not_known_is_refused() -> None:
    for bit in range(8):
        frame = bytearray(GOLDEN)
        frame[5] |= 1 << bit
        if 1 << bit & FLAGS_KNOWN:
            parse_frame(resealed(bytes(frame)), 0, len(frame))
        else:
            with pytest.raises(FrameDamage, match=r"frame flags 0x.* are unknown"):
                parse_frame(resealed(bytes(frame)), 0, len(frame))


def test_damage_says_where_it_is() -> None:
    with pytest.raises(FrameDamage, match=r"^at 12: ") as caught:
        parse_frame(b"x" * 12 + bytes(50), 12, 62)
    assert caught.value.offset == 12


def test_random_bytes_are_damage_and_nothing_else() -> None:
    rng = Random(SEED)
    for _ in range(5000):
        junk = rng.randbytes(rng.randrange(120))
        with pytest.raises(FrameDamage):
            parse_frame(junk, 0, len(junk))
