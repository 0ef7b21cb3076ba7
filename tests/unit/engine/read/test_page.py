"""A page has its records as readers get them, and an empty place for what is not there."""

from __future__ import annotations

import pytest

from topicsd.engine.read.page import PAGE_RECORDS, VARIANTS, Frames, Page
from topicsd.log.frame import FrameType, encode_frame

PLAIN = VARIANTS[False, False]
TOPIC = 7


def frames(*seqs: int, **parts: bytes) -> Frames:
    """Frames of these seqs one behind the other; what is missing between them has the length 0."""
    data, starts, lengths = b"", [], []
    for seq in range(seqs[0], seqs[-1] + 1):
        frame = encode_frame(FrameType.APPEND, topic_id=TOPIC, seq=seq, ts=1, payload=b'"%d"' % seq, **parts)
        starts.append(len(data))
        lengths.append(len(frame) if seq in seqs else 0)
        data += frame if seq in seqs else b""
    return Frames(seqs[0], data, starts, lengths)


def test_records_stand_one_behind_the_other_each_with_its_comma() -> None:
    page = Page(PAGE_RECORDS)
    page.add_frames(TOPIC, frames(64, 65, 66), PLAIN)
    assert page.next_seq == 67
    assert bytes(page.slice(65, 65)) == b'{"$seq":65,"$ts":1,"data":"65"},'
    assert bytes(page.slice(64, 66)) == page.text
    size = len(page.slice(64, 64))
    assert [page.last_within(64, 66, room) for room in (size - 1, size, 2 * size, 9 * size)] == [
        63,
        64,
        65,
        66,
    ]


def test_what_is_not_there_has_an_empty_place() -> None:
    page = Page(0)
    page.skip(2)
    page.add_frames(TOPIC, frames(3, 5), PLAIN)
    assert page.next_seq == 6
    assert [bool(page.slice(seq, seq)) for seq in range(6)] == [False, False, False, True, False, True]


def test_a_damaged_frame_and_one_of_another_topic_or_seq_are_reported_and_the_rest_is_read() -> None:
    good = frames(1, 2, 3)
    damaged = bytearray(good.data)
    damaged[good.starts[1] + 40] ^= 1
    page = Page(0)
    page.skip(0)
    page.add_frames(TOPIC, good._replace(data=bytes(damaged)), PLAIN)
    assert page.damage is not None
    assert list(page.damage) == [2]
    assert page.slice(1, 1)
    assert page.slice(3, 3)
    other = Page(0)
    other.add_frames(TOPIC + 1, good, PLAIN)
    assert other.damage is not None
    assert list(other.damage) == [1, 2, 3]
    moved = Page(0)
    moved.add_frames(TOPIC, good.part(1, 1)._replace(first_seq=8), PLAIN)
    assert moved.damage is not None
    assert list(moved.damage) == [8]


def test_a_page_holds_what_its_variant_shows() -> None:
    page_frames = frames(1, tag=b"a", node=b"n")
    texts = {}
    for (with_tag, with_meta), variant in VARIANTS.items():
        page = Page(1)
        page.add_frames(TOPIC, page_frames, variant)
        texts[with_tag, with_meta] = page.text
        assert page.nodes == {1: "n"}
    assert texts[False, False] == texts[False, True] == b'{"$seq":1,"$ts":1,"$node":"n","data":"1"},'
    assert texts[True, False] == b'{"$seq":1,"$ts":1,"$node":"n","$tag":"a","data":"1"},'


@pytest.mark.parametrize("tag", [b"", b"a"])
def test_bytes_that_are_over_too_early_are_damage(tag: bytes) -> None:
    good = frames(1, 2, 3, tag=tag)
    whole = len(good.data)
    for size in range(good.starts[2], whole):
        page = Page(1)
        page.add_frames(TOPIC, good._replace(data=good.data[:size]), PLAIN)
        assert page.damage is not None
        assert list(page.damage) == [3]
    for length in range(1, good.lengths[2]):
        page = Page(1)
        page.add_frames(TOPIC, good._replace(lengths=[*good.lengths[:2], length]), PLAIN)
        assert page.damage is not None
        assert list(page.damage) == [3]


def test_every_byte_of_a_frame_is_looked_at() -> None:
    good = frames(1, 2, tag=b"tag")
    for at in range(len(good.data)):
        damaged = bytearray(good.data)
        damaged[at] ^= 1 << at % 8
        page = Page(1)
        page.add_frames(TOPIC, good._replace(data=bytes(damaged)), PLAIN)
        assert page.damage is not None
        assert list(page.damage) == [1 if at < good.starts[1] else 2]


def test_frames_of_more_lengths_than_are_remembered_are_read() -> None:
    frame = {
        size: encode_frame(FrameType.APPEND, topic_id=TOPIC, seq=1, ts=1, payload=b"1" * size)
        for size in range(1, 9000)
    }
    for size, data in frame.items():
        page = Page(1)
        page.add_frames(TOPIC, Frames(1, data, (0,), (len(data),)), PLAIN)
        assert len(page.text) == size + len('{"$seq":1,"$ts":1,"data":},')
