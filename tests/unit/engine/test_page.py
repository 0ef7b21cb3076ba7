"""A page has its records as readers get them, and an empty place for what is not there."""

from __future__ import annotations

from topicsd.engine.page import PAGE_RECORDS, VARIANTS, Page
from topicsd.wal.frame import FrameType, encode_frame

PLAIN = VARIANTS[False, False]
TOPIC = 7


def frames(*seqs: int, **parts: bytes) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Frames of these seqs one behind the other, and their places."""
    data, places = b"", []
    for seq in seqs:
        frame = encode_frame(FrameType.APPEND, topic_id=TOPIC, seq=seq, ts=1, payload=b'"%d"' % seq, **parts)
        places.append((seq, len(data), len(frame)))
        data += frame
    return data, places


def test_records_stand_one_behind_the_other_each_with_its_comma() -> None:
    page = Page(PAGE_RECORDS)
    data, places = frames(64, 65, 66)
    page.add_frames(TOPIC, data, places, PLAIN)
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
    data, places = frames(3, 5)
    page.add_frames(TOPIC, data, places, PLAIN)
    assert page.next_seq == 6
    assert [bool(page.slice(seq, seq)) for seq in range(6)] == [False, False, False, True, False, True]


def test_a_damaged_frame_and_one_of_another_topic_or_seq_are_told_and_the_rest_is_read() -> None:
    data, places = frames(1, 2, 3)
    damaged = bytearray(data)
    damaged[places[1][1] + 45] ^= 1
    page = Page(0)
    page.skip(0)
    page.add_frames(TOPIC, bytes(damaged), places, PLAIN)
    assert page.damage is not None
    assert list(page.damage) == [2]
    assert page.slice(1, 1)
    assert page.slice(3, 3)
    other = Page(0)
    other.add_frames(TOPIC + 1, data, places, PLAIN)
    assert other.damage is not None
    assert list(other.damage) == [1, 2, 3]
    moved = Page(0)
    moved.add_frames(TOPIC, data, [(8, *places[0][1:])], PLAIN)
    assert moved.damage is not None
    assert list(moved.damage) == [8]


def test_a_page_holds_what_its_variant_shows() -> None:
    data, places = frames(1, tag=b"a", node=b"n")
    texts = {}
    for (with_tag, with_meta), variant in VARIANTS.items():
        page = Page(1)
        page.add_frames(TOPIC, data, places, variant)
        texts[with_tag, with_meta] = page.text
        assert page.nodes == {1: "n"}
    assert texts[False, False] == texts[False, True] == b'{"$seq":1,"$ts":1,"$node":"n","data":"1"},'
    assert texts[True, False] == b'{"$seq":1,"$ts":1,"$node":"n","$tag":"a","data":"1"},'
