"""An active segment that is damaged is closed with its good records, and its topic continues in a new one.

No other topic, and no checkpoint, waits for a person to come.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import PATHS
from tests.harness.shard.shard_reader import read_now
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import ReadRequest
from topicsd.segment.entry import DATA, INDEX

COUNT = 10


def with_active(**settings: int) -> OneShard:
    """Two topics with an active segment of ten records each, and three more in the log."""
    one = OneShard(**settings)
    for name in ("t", "other"):
        for number in range(COUNT):
            one.append(name, record(number, tag=f"tag-{number % 2}"))
    one.checkpoint()
    for name in ("t", "other"):
        one.append(name, *range(3))
    return one


def path_of(one: OneShard, suffix: str) -> str:
    run = one.topic("t").runs[0]
    assert isinstance(run, TailRun)
    assert run.source is not None
    return f"{PATHS.root}/{run.source.name.key(suffix)}"


def place_of(one: OneShard, seq: int) -> int:
    run = one.topic("t").runs[0]
    assert isinstance(run, TailRun)
    return run.frame_positions[seq - run.first_seq]


def cut(one: OneShard, path: str, size: int) -> None:
    fd = one.disk.open_write(path)
    one.disk.truncate(fd, size)
    one.disk.close(fd)


def shortened(one: OneShard) -> None:
    cut(one, path_of(one, DATA), place_of(one, 7) + 5)


def missing(one: OneShard) -> None:
    one.disk.unlink(path_of(one, DATA))


def missing_with_its_index(one: OneShard) -> None:
    one.disk.unlink(path_of(one, INDEX))
    missing(one)


def shortened_with_its_index(one: OneShard) -> None:
    cut(one, path_of(one, INDEX), 30)
    shortened(one)


def flipped(one: OneShard) -> None:
    one.disk.flip(path_of(one, DATA), place_of(one, 4) + 40)


def readable(one: OneShard, topic: str) -> tuple[list[int], set[int]]:
    """The seqs that are read, and those that are said to be damaged."""
    good: list[int] = []
    damaged: set[int] = set()
    cursor = 0
    while True:
        answer = read_now(one.shard.state, topic, ReadRequest(cursor, ReaderOptions(limit=100)))
        if isinstance(answer, Refusal):
            assert answer.code == "corrupt_segment"
            assert answer.detail is not None
            first, last = answer.detail["first_seq"], answer.detail["last_seq"]
            assert isinstance(first, int)
            assert isinstance(last, int)
            damaged |= set(range(first, last + 1))
            assert last > cursor
            cursor = last
            continue
        good += [record.seq for record in answer.records]
        cursor = answer.next_from_seq
        if answer.caught_up:
            return good, damaged


Damage = Callable[[OneShard], None]
CASES = [
    (shortened, set(range(7, 11))),
    (shortened_with_its_index, set(range(7, 11))),
    (missing, set(range(1, 11))),
    (missing_with_its_index, set(range(1, 11))),
    (flipped, {4}),
]


@pytest.mark.parametrize(("damage", "lost"), CASES)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_checkpoint_closes_it_and_continues(
    damage: Damage, lost: set[int], is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # With an age of nothing it is sealed, which is when every byte of it is read.
    one = with_active(segment_max_age_ms=1 if damage is flipped else 1 << 40)
    one.pass_time(10)
    damage(one)
    if is_restarted:
        one.kill()
    before = one.state("t").count
    one.checkpoint()
    assert one.shard.checkpoints.failure is None
    assert 'damaged: topic "t": ' in caplog.text or 'topic "t": active segment damaged' in caplog.text
    assert len(one.shard.state.damaged_segments) == 1
    run = one.topic("t").runs[0]
    assert isinstance(run, SealedRun)
    for _ in range(2):
        assert readable(one, "t") == ([seq for seq in range(1, 14) if seq not in lost], lost)
        assert readable(one, "other") == ([*range(1, 14)], set())
        assert one.state("t").count == before
        one.kill()
    assert one.append("t", 1).first_seq == 14
    one.checkpoint()
    assert one.shard.checkpoints.failure is None
    one.kill()
    assert one.seqs("t", 13) == [14]


def with_closed(damage: Damage) -> OneShard:
    """The same, after a start from the snapshot that says it."""
    one = with_active(segment_max_age_ms=1 if damage is flipped else 1 << 40)
    one.pass_time(10)
    damage(one)
    one.checkpoint()
    one.kill()
    return one


@pytest.mark.parametrize("damage", [shortened, shortened_with_its_index, missing, missing_with_its_index])
def test_what_is_good_in_it_is_deleted_by_its_tag(damage: Damage) -> None:
    one = with_closed(damage)
    good = readable(one, "t")[0]
    one.delete("t", tag="tag-1")
    assert readable(one, "t")[0] == [seq for seq in good if seq > COUNT or seq % 2]
    one.kill()
    assert readable(one, "t")[0] == [seq for seq in good if seq > COUNT or seq % 2]
    one.checkpoint()
    assert one.shard.checkpoints.failure is None
    one.restart()
    assert readable(one, "t")[0] == [seq for seq in good if seq > COUNT or seq % 2]


@pytest.mark.parametrize("damage", [shortened, missing, missing_with_its_index])
def test_what_was_deleted_of_it_stays_so(damage: Damage) -> None:
    one = with_active()
    one.delete("t", tag="tag-0")
    damage(one)
    one.checkpoint()
    assert one.shard.checkpoints.failure is None
    for _ in range(2):
        good, _ = readable(one, "t")
        assert [seq for seq in good if seq <= COUNT and seq % 2] == []
        one.kill()


def test_the_whole_directory_is_gone() -> None:
    one = with_active()
    one.delete("t", tag="tag-0")
    folder = path_of(one, DATA).rpartition("/")[0]
    for name in one.disk.list_dir(folder):
        one.disk.unlink(f"{folder}/{name}")
    one.disk.remove_dir(folder)
    one.checkpoint()
    assert one.shard.checkpoints.failure is None
    good, _ = readable(one, "t")
    assert good == [11, 12, 13]
    one.kill()
    assert readable(one, "t")[0] == [11, 12, 13]


def test_a_reader_that_meets_damage_has_it_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    one = with_active()
    one.shard.state.pages = PageCache(0)
    flipped(one)
    for _ in range(3):
        assert isinstance(read_now(one.shard.state, "t", ReadRequest(from_seq=3)), Refusal)
    assert len(one.shard.state.damaged_segments) == 1
    (logged,) = [line for line in caplog.records if "damaged" in line.getMessage()]
    run = one.topic("t").runs[0]
    assert isinstance(run, TailRun)
    assert run.source is not None
    file = run.source.name.key(DATA)
    expected = f'segment: {file}: damaged: topic "t": seqs 4 to 4: '
    assert logged.getMessage().startswith(expected)
    assert logged.getMessage().endswith(f"run: topicsd doctor {one.settings.data_dir}")


def test_damage_of_the_log_is_logged_once_for_each_file(caplog: pytest.LogCaptureFixture) -> None:
    one = OneShard()
    one.shard.state.pages = PageCache(0)
    one.append("t", *range(5))
    path = one.wal_files()[0]
    place = one.topic("t").run.frame_positions[2]
    name, offset = one.shard.state.files.place_of(place)
    assert path.endswith(name)
    one.disk.flip(path, offset + 40)
    for _ in range(3):
        assert isinstance(read_now(one.shard.state, "t", ReadRequest(from_seq=2)), Refusal)
    assert one.shard.state.damaged_segments == {name}
    assert sum(f"segment: {name}: damaged" in line.getMessage() for line in caplog.records) == 1
