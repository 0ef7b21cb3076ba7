"""A reader never gets a wrong record: damage is reported with its place and the position after it."""

from __future__ import annotations

import pytest

from shared.contract.reader_options import ReaderOptions
from shared.contract.tag_filter import TagFilter
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import PATHS
from tests.harness.shard.shard_reader import read_now
from topicsd.disk.layout import wal_name
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import ReadAnswer, ReadRequest
from topicsd.segment.entry import DATA, TAGS


def damaged(seq: int, *, offset: int = 20, count: int = 6, **config: object) -> OneShard:
    """A topic whose record at `seq` has one wrong byte on the disk."""
    one = OneShard()
    one.put("t", **config)
    for number in range(1, count + 1):
        one.append("t", record(number, node=f"node-{number % 2}"))
    flip(one, seq, offset)
    return one


def flip(one: OneShard, seq: int, offset: int = 20, topic: str = "t") -> None:
    run = one.topic(topic).run_of(seq)
    assert run is not None
    file, at = run.place_of(seq, one.shard.state.files)
    one.disk.flip(f"/data/shards/00/wal/{file}", at + offset)


def test_what_is_good_in_front_of_the_damage_is_answered_first() -> None:
    one = damaged(4)
    answer = one.read("t")
    assert [record.seq for record in answer.records] == [1, 2, 3]
    assert (answer.next_from_seq, answer.caught_up) == (3, False)


def test_the_damage_is_named_with_its_place_and_the_way_around_it() -> None:
    one = damaged(4)
    refusal = one.refused_read("t", 3)
    assert refusal.code == "corrupt_segment"
    assert refusal.detail == {"segment": wal_name(1), "first_seq": 4, "last_seq": 4, "next_from_seq": 4}
    assert 'seq 4 of topic "t" is damaged at offset' in refusal.message
    assert one.seqs("t", 4) == [5, 6]


def test_every_byte_of_a_record_is_looked_at() -> None:
    clean = OneShard()
    clean.append("t", 1, 2, 3)
    length = clean.topic("t").run.lengths[1]
    for offset in range(length):
        one = OneShard()
        one.append("t", 1, 2, 3)
        flip(one, 2, offset)
        assert one.seqs("t") == [1]
        assert one.refused_read("t", 1).code == "corrupt_segment"
        assert one.seqs("t", 2) == [3]


def test_a_record_that_is_another_one_is_damage() -> None:
    one = OneShard()
    one.append("t", "aa", "bb")
    run = one.topic("t").run
    first, second = run.frame_positions
    _, at = one.shard.state.files.place_of(first)
    _, to = one.shard.state.files.place_of(second)
    fd = one.disk.open_write(one.wal_files()[0])
    one.disk.pwrite(fd, one.disk.pread(fd, run.lengths[0], at), to)
    refusal = one.refused_read("t", 1)
    assert refusal.code == "corrupt_segment"
    assert "holds seq 1 of topic id" in refusal.message


def test_damage_at_the_front_of_a_gap_does_not_swallow_the_tombstone() -> None:
    one = damaged(4, cap_records=3)
    answer = one.read("t")
    assert answer.records == []
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (1, 3)
    assert answer.next_from_seq == 3
    refusal = one.refused_read("t", answer.next_from_seq)
    assert refusal.detail is not None
    assert (refusal.code, refusal.detail["next_from_seq"]) == ("corrupt_segment", 4)


def read_on(
    one: OneShard, nodes: frozenset[str] = frozenset(), match: TagFilter | None = None
) -> tuple[list[int], list[str]]:
    """The seqs that a reader gets when it continues after each damage, and the refusal codes."""
    cursor, seqs, codes = 0, [], []
    while cursor < one.state("t").head_seq:
        answer = read_now(one.shard.state, "t", ReadRequest(cursor, ReaderOptions(nodes, match=match)))
        if isinstance(answer, ReadAnswer):
            seqs += [record.seq for record in answer.records]
            after = answer.next_from_seq
        else:
            codes.append(answer.code)
            assert answer.detail is not None
            after = answer.detail["next_from_seq"]
            assert isinstance(after, int)
        assert after > cursor
        cursor = after
    return seqs, codes


def tagged(state: str) -> tuple[OneShard, str]:
    """Thirty records with three tags in one segment, or in the log, and the path of their bytes."""
    one = OneShard(segment_max_events=30 if state == "sealed" else 100)
    one.put("t")
    one.append("t", *[record("x" * 50, tag=f"tag-{number % 3}") for number in range(30)])
    if state == "log":
        return one, one.wal_files()[0]
    one.checkpoint()
    run = one.topic("t").runs[0]
    assert isinstance(run, SealedRun) == (state == "sealed")
    if isinstance(run, SealedRun):
        return one, f"{PATHS.root}/{run.name.key(DATA)}"
    assert isinstance(run, TailRun)
    assert run.source is not None
    return one, f"{PATHS.root}/{run.source.name.key(DATA)}"


@pytest.mark.parametrize("state", ["log", "active", "active after a start", "sealed"])
@pytest.mark.parametrize("with_tags_file", [True, False])
def test_a_reader_with_a_filter_learns_of_damage_to_what_it_may_select(
    state: str, with_tags_file: bool
) -> None:
    one, path = tagged(state)
    data = one.disk.read_file(path)
    frame = data.index(b"x" * 50, data.index(b"tag-1") + 300)
    one.disk.flip(path, frame + 5)
    seq = 1 + data[:frame].count(b"tag-") - 1
    if state == "active after a start":
        one.open(one.disk.after_process_kill())
    if not with_tags_file and state == "sealed":
        one.disk.unlink(path.removesuffix(DATA) + TAGS)
    is_tag_known = state in ("log", "active") or (state == "sealed" and with_tags_file)
    for number in range(3):
        rest = [one_seq for one_seq in range(1, 31) if (one_seq - 1) % 3 == number and one_seq != seq]
        codes = ["corrupt_segment"] if not is_tag_known or (seq - 1) % 3 == number else []
        match = TagFilter(frozenset([f"tag-{number}"]))
        for _ in range(2):
            assert read_on(one, match=match) == (rest, codes), (number, seq)


def test_damage_behind_own_records_is_reached_in_the_end() -> None:
    assert read_on(damaged(4), frozenset({"node-0", "node-1"})) == ([], ["corrupt_segment"])


def test_a_deleted_record_may_be_damaged_without_anybody_minding() -> None:
    one = damaged(4)
    one.delete("t", before_seq=6)
    assert one.seqs("t") == [6]


@pytest.mark.parametrize("seq", [1, 6])
def test_damage_at_either_end_is_stepped_over(seq: int) -> None:
    rest = [number for number in range(1, 7) if number != seq]
    assert read_on(damaged(seq)) == (rest, ["corrupt_segment"])


def test_a_file_that_was_cut_from_outside_is_damage_and_no_exception() -> None:
    one = damaged(1, count=6)
    path = one.wal_files()[0]
    run = one.topic("t").run
    _, at = one.shard.state.files.place_of(run.frame_positions[3])
    fd = one.disk.open_write(path)
    one.disk.truncate(fd, at + 10)
    assert one.seqs("t", 1) == [2, 3]
    for seq in (4, 5, 6):
        refusal = one.refused_read("t", seq - 1)
        assert refusal.detail is not None
        assert (refusal.code, refusal.detail["first_seq"]) == ("corrupt_segment", seq)
