"""An intact file is proved so in a short way; whatever is not is taken apart with care. Both say the same."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.segment.test_data_file import FIRST, entry_for, file_of, frame_of
from tests.unit.segment.written_segment import NAME, Written
from topicsd.segment import rebuild
from topicsd.segment.data_file import SCAN_BYTES, Read
from topicsd.segment.entry import DATA, SegmentDamage, SegmentEntry
from topicsd.segment.index_file import SegmentIndex
from topicsd.segment.rebuild import _intact_rows, rebuild_index, rebuild_tags


def reading(data: bytes) -> Read:
    return lambda offset, size: data[offset : offset + size]


def columns_of(index: SegmentIndex) -> tuple[list[int], list[int], list[int], bytes, bool]:
    return [*index.offsets], [*index.lengths], [*index.times_ms], bytes(index.flags), index.has_damage


def both_ways(
    data: bytes, entry: SegmentEntry, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[object], list[object], bool]:
    """Index and tags, with the short way and without, and whether the short way was gone."""
    name = NAME._replace(generation=entry.generation)
    is_short = _intact_rows(reading(data), name, entry) is not None
    answers: list[list[object]] = []
    for _ in range(2):
        indexes: list[object] = [columns_of(rebuild_index(reading(data), name, entry))]
        try:
            indexes.append(rebuild_tags(reading(data), name, entry))
        except SegmentDamage as damage:
            indexes.append((damage.first_seq, damage.last_seq))
        answers.append(indexes)
        monkeypatch.setattr(rebuild, "_intact_rows", lambda read, name, entry: None)
    monkeypatch.undo()
    return answers[0], answers[1], is_short


def test_an_intact_file_is_proved_so(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(count=300)
    one, other, is_short = both_ways(written.files()[DATA], written.entry, monkeypatch)
    assert one == other
    assert is_short
    assert one[1] == written.tags


@pytest.mark.parametrize("generation", [0, 1])
def test_frames_of_every_size_are_taken_whole(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [10, SCAN_BYTES - 200, 30, 3 * SCAN_BYTES, 0, SCAN_BYTES, SCAN_BYTES + 1, 5]
    frames = [frame_of(FIRST + at * (1 + generation), size, tag=b"t" * at) for at, size in enumerate(sizes)]
    entry = entry_for(frames, 8 * (1 + generation), generation)
    one, other, is_short = both_ways(file_of(frames, generation), entry, monkeypatch)
    assert one == other
    assert is_short


@pytest.mark.slow
@pytest.mark.parametrize("generation", [0, 1])
def test_a_changed_byte_or_a_cut_is_never_taken_for_intact(
    generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(generation)
    frames = [
        frame_of(FIRST + at * (1 + generation), rng.randrange(5), tag=b"tag" * (at % 2)) for at in range(9)
    ]
    entry = entry_for(frames, 9 * (1 + generation), generation)
    data = file_of(frames, generation)
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= rng.randrange(1, 256)
        one, other, is_short = both_ways(bytes(changed), entry, monkeypatch)
        assert one == other
        assert not is_short
        assert _intact_rows(reading(data[:offset]), NAME._replace(generation=generation), entry) is None


def test_seqs_that_do_not_fit_are_not_intact() -> None:
    name = NAME._replace(generation=1)
    for numbers in ((0, 2, 1), (0, 0, 1), (0, 1, 30), (-1, 0, 1)):
        frames = [frame_of(FIRST + number) for number in numbers]
        assert _intact_rows(reading(file_of(frames, 1)), name, entry_for(frames, 20, 1)) is None
    frames = [frame_of(FIRST), frame_of(FIRST + 2)]
    assert _intact_rows(reading(file_of(frames)), NAME, entry_for(frames, 3)) is None
    assert _intact_rows(reading(file_of(frames[:1])), NAME, entry_for(frames[:1], 3)) is None
    assert _intact_rows(reading(file_of([], 1)), name, entry_for([], 3, 1)) is None
