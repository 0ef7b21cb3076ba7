"""LLS1 blobs and frames-v1 bodies: the layout, hostile bytes, and damage with exact seqs."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from topicsd.broker.frames_v1 import (
    TOPIC_ID_MASK,
    NewFrame,
    OtherTopic,
    Rebase,
    Texts,
    UnknownEncoding,
    data_bytes,
    decode_frames,
    encode_frames,
    renumber,
)
from topicsd.broker.lls1 import BlobDamage, SliceBody, encode_blob, name_of, partition_of, read_blob
from topicsd.log.frame import FrameType, encode_frame

TOPIC = 77
RECORDS = [NewFrame(b'{"n":%d}' % number, tag="t" * (number % 3)) for number in range(10)]


def body() -> bytes:
    return encode_frames(RECORDS, TOPIC, first_number=1, ts=5)


def starts() -> list[int]:
    """The offsets of the frames of `body`."""
    data, at, offsets = body(), 0, []
    while at < len(data):
        offsets.append(at)
        at += 4 + struct.unpack_from("<I", data, at)[0]
    return offsets


def test_a_blob_has_the_published_layout() -> None:
    blob = b"".join(encode_blob(1760, "frames-v1", [SliceBody("a:3", 2, [b"xy", b"z"])]).parts)
    assert blob[:4] == b"LLS1"
    (length,) = struct.unpack(">I", blob[4:8])
    assert json.loads(blob[8 : 8 + length]) == {
        "version": 1,
        "created_at_ms": 1760,
        "partitions": [
            {
                "topic": "a",
                "partition": 3,
                "msg_count": 2,
                "encoding": "frames-v1",
                "body_offset": 0,
                "body_length": 3,
            }
        ],
    }
    assert blob[8 + length :] == b"xyz"


@pytest.mark.parametrize("name", ["a", "a:1", "a:0", "a:01", "a:b:12", "a:1234567890"])
def test_a_partition_has_the_name_of_its_topic(name: str) -> None:
    assert name_of(*partition_of(name)) == name


def test_a_cut_or_changed_blob_is_refused_and_never_misread() -> None:
    blob = b"".join(encode_blob(1, "frames-v1", [SliceBody("a", 1, [b"body"])]).parts)
    for length in range(len(blob)):
        with pytest.raises(BlobDamage):
            read_blob(blob[:length])
    for wrong in (b"LLS2" + blob[4:], blob.replace(b'"version":1', b'"version":2'), blob.replace(b"{", b"[")):
        with pytest.raises(BlobDamage):
            read_blob(wrong)
    with pytest.raises(BlobDamage, match="not within"):
        read_blob(blob.replace(b'"body_offset":0', b'"body_offset":9'))


def test_a_slice_is_rebased_to_its_seqs_from_any_of_them() -> None:
    for from_seq in range(38, 51):
        decoded = decode_frames(body(), Rebase(TOPIC, 41, 50), from_seq)
        first = max(41, from_seq)
        assert [record.seq for record in decoded.records] == [*range(first, 51)]
        assert [record.data for record in decoded.records] == [one.data for one in RECORDS[first - 41 :]]
        assert (decoded.damaged, decoded.next_seq) == ([], 51)


@pytest.mark.parametrize("others", [{}, {"tag": "a"}, {"node": "n"}, {"meta": b'{"k":1}'}])
def test_bytes_stay_bytes_beside_json(others: dict[str, Any]) -> None:
    data = bytes(range(256))
    records = [NewFrame(b"1"), NewFrame(data, is_bytes=True, **others), NewFrame(b"2", **others)]
    decoded = decode_frames(encode_frames(records, TOPIC, 1, 5), Rebase(TOPIC, 7, 9)).records
    assert [(one.data, one.is_bytes) for one in decoded] == [(b"1", False), (data, True), (b"2", False)]
    assert decoded[1].meta == others.get("meta")
    assert (decoded[1].tag, decoded[1].node) == (decoded[2].tag, decoded[2].node)


def test_an_extent_in_the_middle_of_a_slice_is_rebased() -> None:
    middle = body()[starts()[4] : starts()[7]]
    decoded = decode_frames(middle, Rebase(TOPIC, 900, 902))
    assert [(one.seq, one.data) for one in decoded.records] == [
        (900 + number, RECORDS[4 + number].data) for number in range(3)
    ]


def test_records_are_returned_as_far_as_they_fit_and_at_least_one() -> None:
    sizes = [after - before for before, after in zip(starts(), [*starts()[1:], len(body())], strict=True)]
    for bytes_max in range(0, sum(sizes) + 2, 7):
        decoded = decode_frames(body(), Rebase(TOPIC, 1, 10), 1, bytes_max)
        count = len(decoded.records)
        assert count >= 1
        assert decoded.byte_count == sum(sizes[:count])
        assert count == 1 or decoded.byte_count <= bytes_max
        assert count == 10 or decoded.byte_count + sizes[count] > bytes_max
        assert decoded.next_seq == count + 1


@pytest.mark.parametrize("damaged", [[0], [3], [9], [2, 3, 7], [0, 1], [8, 9]])
def test_damage_is_reported_with_exact_seqs(damaged: list[int]) -> None:
    data = bytearray(body())
    for number in damaged:
        data[starts()[number] + 20] ^= 0xFF
    decoded = decode_frames(bytes(data), Rebase(TOPIC, 41, 50))
    assert [one.seq for one in decoded.records] == [41 + n for n in range(10) if n not in damaged]
    lost = [seq for one in decoded.damaged for seq in range(one.first_seq, one.last_seq + 1)]
    assert lost == [41 + number for number in damaged]
    assert decoded.next_seq == 51


def test_an_extent_without_an_intact_end_is_damaged_as_a_whole() -> None:
    data = bytearray(body())
    data[10] ^= 0xFF
    data[-1] ^= 0xFF
    decoded = decode_frames(bytes(data), Rebase(TOPIC, 41, 50))
    assert not decoded.records
    assert [(one.first_seq, one.last_seq) for one in decoded.damaged] == [(41, 50)]


def test_any_flipped_byte_is_damage_and_never_another_record() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        data = bytearray(body())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        decoded = decode_frames(bytes(data), Rebase(TOPIC, 41, 50), rng.randint(38, 50))
        lost = {seq for one in decoded.damaged for seq in range(one.first_seq, one.last_seq + 1)}
        for record in decoded.records:
            assert record.data == RECORDS[record.seq - 41].data
            assert record.seq not in lost
        expected = range(decoded.records[0].seq if decoded.records else 51, 51)
        assert {one.seq for one in decoded.records} | lost >= set(expected)


def test_a_cut_body_reports_the_records_after_the_cut() -> None:
    for length in range(1, len(body())):
        decoded = decode_frames(body()[:length], Rebase(TOPIC, 41, 50))
        whole = sum(start <= length for start in [*starts()[1:], len(body())])
        lost = [seq for one in decoded.damaged for seq in range(one.first_seq, one.last_seq + 1)]
        assert [one.seq for one in decoded.records] == [*range(41, 41 + whole)]
        assert lost == [*range(41 + whole, 51)]


def test_frames_of_another_incarnation_are_no_damage() -> None:
    with pytest.raises(OtherTopic):
        decode_frames(body(), Rebase(TOPIC + 1, 1, 10))


def test_a_body_in_another_encoding_is_refused_by_name() -> None:
    with pytest.raises(UnknownEncoding, match="bytes-batch-v1"):
        decode_frames(b"anything", Rebase(TOPIC, 1, 1), encoding="bytes-batch-v1")


def test_numbered_again_a_body_is_the_same_but_for_its_numbers() -> None:
    again = renumber(body(), 100)
    assert again == encode_frames(RECORDS, TOPIC, first_number=100, ts=5)
    assert renumber(again, 1) == body()


@pytest.mark.parametrize("at", range(0, 46, 1))
def test_frames_inside_a_damaged_record_of_bytes_are_no_records(at: int) -> None:
    inner = encode_frames([NewFrame(b'"forged"')] * 3, TOPIC, first_number=3, ts=5)
    records = [NewFrame(b"1"), NewFrame(inner, is_bytes=True), NewFrame(b"3"), NewFrame(b"4")]
    data = bytearray(encode_frames(records, TOPIC, first_number=1, ts=5))
    start = 4 + struct.unpack_from("<I", data)[0]
    data[start + at] ^= 0x55
    decoded = decode_frames(bytes(data), Rebase(TOPIC, 1, 4))
    assert [(one.seq, one.data) for one in decoded.records] == [(1, b"1"), (3, b"3"), (4, b"4")]
    assert [(one.first_seq, one.last_seq) for one in decoded.damaged] == [(2, 2)]


@pytest.mark.parametrize(
    "payloads", [[], [b'""'], [b"1"] * 3, [b'"%b"' % (b"x" * n) for n in range(0, 3000, 300)]]
)
def test_plain_records_are_the_frames_of_the_log(payloads: list[bytes]) -> None:
    topic = TOPIC_ID_MASK + 6
    model = [
        encode_frame(FrameType.APPEND, topic_id=5, seq=seq, ts=1 << 40, payload=payload)
        for seq, payload in enumerate(payloads, 1 << 33)
    ]
    for records in (Texts(payloads), [NewFrame(payload) for payload in payloads]):
        assert encode_frames(records, topic, 1 << 33, 1 << 40) == b"".join(model)
        assert data_bytes(records) == sum(map(len, payloads))
