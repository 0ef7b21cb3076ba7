"""A reshard that is ended at any disk call loses nothing and leaves nothing behind."""

from __future__ import annotations

import errno
from array import array

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import Placement
from tests.harness.machine.faults import ProcessKilled
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import DATA_DIR
from tests.harness.shard.two_shards import TwoShards
from tests.harness.sweeps.crash_sweep import DEEP
from tests.harness.sweeps.reshard_base import DELETED, PINNED, SETTINGS, full_disk, names_of
from tests.harness.sweeps.reshard_sweep import (
    FILES,
    Content,
    check_same,
    check_tree,
    content_of,
    end_once,
    run_reshard,
    shard_count,
)
from topicsd.disk.layout import LayoutError, read_layout, shard_paths
from topicsd.disk.placement_file import placement_path, read_placement, write_placement
from topicsd.engine.checkpoint.reader_lock import ReaderLock
from topicsd.engine.checkpoint.snapshot_files import read_snapshot
from topicsd.engine.checkpoint.snapshot_format import KeyGeneration
from topicsd.log.recovery import RecoveryRefused
from topicsd.offline.reshard.divided_keys import divided_keys
from topicsd.offline.reshard.rest import ReshardRefused, RestedShard

pytestmark = pytest.mark.usefixtures("quiet_log")

Base = tuple[MemoryDisk, ManualClock, Content]


@pytest.fixture(scope="module")
def base() -> Base:
    disk, clock = full_disk()
    return disk, clock, content_of(disk, clock)


@pytest.mark.parametrize("path", [(5, 3, 1), (1, 2), (3, 2, 5)], ids=str)
def test_every_number_of_shards_serves_the_same(base: Base, path: tuple[int, ...]) -> None:
    original, clock, before = base
    disk, homes = original.after_process_kill(), shard_count(original)
    for shards in path:
        run_reshard(disk, clock, shards)
        homes = min(homes, shards)
        after = content_of(disk, clock)
        check_same(before, after, homes)
        check_tree(disk, clock, shards, homes)
        before = after


@pytest.mark.parametrize("shards", [5, 1])
@pytest.mark.parametrize("by_cut", [True, False], ids=["power cut", "kill"])
def test_an_end_at_any_call_loses_nothing(base: Base, shards: int, by_cut: bool) -> None:
    disk, clock, before = base
    stride = 1 if DEEP else 23
    calls = shards
    while end_once(disk, clock, before, shards, calls, by_cut=by_cut):
        calls += stride
    assert calls > 200


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_leaves_a_directory_that_can_be_resharded(base: Base, error: int) -> None:
    original, clock, before = base
    nth, stride, failures = 1, 5 if DEEP else 37, 0
    while True:
        disk = original.after_process_kill()
        fault = disk.fail(None, nth, error)
        try:
            run_reshard(disk, clock, 5)
        except (OSError, ReshardRefused, RecoveryRefused):
            failures += 1
            assert fault.fired
        if not fault.fired:
            break
        disk = disk.after_process_kill()
        run_reshard(disk, clock, 5)
        check_same(before, content_of(disk, clock), 2)
        check_tree(disk, clock, 5, 2)
        nth += stride
    assert failures > 5


def test_files_are_copied_where_there_are_no_links(base: Base) -> None:
    original, clock, before = base
    disk = original.after_process_kill()
    fault = disk.fail("link", 1, errno.EPERM, forever=True)
    run_reshard(disk, clock, 5)
    assert fault.fired > 10
    check_same(before, content_of(disk, clock), 2)
    check_tree(disk, clock, 5, 2)


def test_a_copy_that_does_not_fit_is_refused_with_numbers(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, clock, before = base
    disk = original.after_process_kill()
    disk.fail("link", 1, errno.EPERM, forever=True)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1024)
    with pytest.raises(ReshardRefused, match=r"has no hard links, .*: [0-9.]+ KiB needed, 1 KiB free"):
        run_reshard(disk, clock, 5)
    disk = disk.after_process_kill()
    assert sorted(disk.list_dir(DATA_DIR)) == FILES
    check_same(before, content_of(disk, clock), 2)


def test_a_full_disk_undoes_what_was_built(base: Base) -> None:
    original, clock, before = base
    disk = original.after_process_kill()
    disk.fail("link", 1, errno.EPERM, forever=True)
    disk.fail("pwrite", 40, errno.ENOSPC, forever=True)
    with pytest.raises(OSError, match="No space"):
        run_reshard(disk, clock, 5)
    disk = disk.after_process_kill()
    assert sorted(disk.list_dir(DATA_DIR)) == FILES
    check_same(before, content_of(disk, clock), 2)


def test_idempotency_keys_are_there_once_after_any_number_of_reshards(base: Base) -> None:
    original, clock, _ = base
    disk = original.after_process_kill()
    for shards in (1, 3, 5, 2, 1):
        run_reshard(disk, clock, shards)
    paths = shard_paths(DATA_DIR, 0)
    keys = read_snapshot(disk, paths, 1).keys
    digests = [one.digests[at : at + 16] for one in keys for at in range(0, len(one.digests), 16)]
    assert len(digests) == len(set(digests)) == 5, "two of each old shard, one of the moved topic"


def test_a_key_goes_to_the_shard_of_its_topic_only(base: Base) -> None:
    original, clock, _ = base
    disk = original.after_process_kill()
    run_reshard(disk, clock, 5)
    placement, count = read_placement(disk, DATA_DIR, 5), 0
    for number in range(5):
        for one in read_snapshot(disk, shard_paths(DATA_DIR, number), 1).keys:
            owners = {placement.shard_of(topic) for topic in array("Q", one.topic_ids)}
            assert owners == {number}
            count += len(one.topic_ids) // 8
    assert count == 5


def test_keys_of_an_earlier_version_follow_all_topics_of_their_shard(base: Base) -> None:
    def generation(topic_ids: bytes, *digests: bytes) -> KeyGeneration:
        rows = len(digests)
        columns = (b"r" * 16 * rows, bytes(8 * rows), bytes(4 * rows), bytes(8 * rows))
        return KeyGeneration(1000, 70, b"".join(digests), *columns, topic_ids)

    name = next(f"t{number}" for number in range(99) if Placement(3).owner_of(f"t{number}") == 2)
    known = array("Q", [topic_id(name), 0]).tobytes()
    old = [
        RestedShard(0, 1, [], [generation(b"", b"a" * 16, b"b" * 16)], [], [], {}, 0, [], []),
        RestedShard(1, 1, [], [generation(known, b"c" * 16, b"a" * 16)], [], [], {}, 0, [], []),
    ]
    divided = divided_keys(old, [{0, 1}, {1}], Placement(3), 7000)
    assert [b"".join(one.digests for one in keys) for keys in divided] == [
        b"a" * 16 + b"b" * 16,
        b"a" * 16 + b"b" * 16,
        b"c" * 16,
    ]
    assert divided[2][0].topic_ids == known[:8]
    assert divided_keys(old, [{0, 1}, {1}], Placement(3), 70_000) == [[], [], []]


def test_a_lost_placement_is_not_guessed(base: Base) -> None:
    original, clock, before = base
    disk = original.after_process_kill()
    disk.unlink(placement_path(DATA_DIR))
    sentence = f'"{PINNED}" is in shards/01, but by .* shard 00; run: topicsd doctor'
    with pytest.raises(ReshardRefused, match=sentence):
        run_reshard(disk, clock, 5)
    disk = disk.after_process_kill()
    write_placement(disk, DATA_DIR, Placement(2).changed({PINNED: 1, DELETED: 1}))
    run_reshard(disk, clock, 5)
    check_same(before, content_of(disk, clock), 2)
    check_tree(disk, clock, 5, 2)


def copied_to_both(original: MemoryDisk, clock: ManualClock, name: str) -> MemoryDisk:
    """Return the disk of a relocation that ended before the placement changed."""
    two = TwoShards(original.after_process_kill(), clock, **SETTINGS)
    two.adopt(two.gather(name))
    for one in two.shards:
        one.close()
    return two.disk


@pytest.mark.parametrize("owner", [0, 1])
def test_the_leftover_of_a_relocation_is_dropped(base: Base, owner: int) -> None:
    original, clock, before = base
    name = names_of(0).gone
    disk = copied_to_both(original, clock, name)
    write_placement(disk, DATA_DIR, read_placement(disk, DATA_DIR, 2).changed({name: owner}))
    run_reshard(disk, clock, 5)
    assert read_placement(disk, DATA_DIR, 5).exceptions.get(name) == (owner if owner else None)
    after = content_of(disk, clock)
    assert after.topics.keys() == before.topics.keys()
    assert after.topics[name] == before.topics[name]


def test_a_topic_in_two_shards_without_an_entry_is_refused(base: Base) -> None:
    original, clock, _ = base
    name = names_of(0).gone
    disk = copied_to_both(original, clock, name)
    with pytest.raises(ReshardRefused, match=f'"{name}" is in shards/00 and shards/01, and only PLACEMENT'):
        run_reshard(disk, clock, 5)
    assert shard_count(disk.after_process_kill()) == 2


def test_new_topics_have_epochs_that_no_earlier_topic_had(base: Base) -> None:
    original, clock, before = base
    disk = original.after_process_kill()
    run_reshard(disk, clock, 5)
    highest = max(topic.epoch for topic in before.topics.values())
    for number in range(5):
        one = OneShard(shard=number, shards=5, disk=disk, clock=clock, **SETTINGS)
        one.append("fresh", 1)
        assert one.topic("fresh").epoch > highest
        one.close()


def test_a_reader_in_another_process_is_waited_for(base: Base) -> None:
    original, clock, before = base
    disk = original.after_process_kill()
    with (
        ReaderLock(shard_paths(DATA_DIR, 1).readers, "spark", disk),
        pytest.raises(ReshardRefused, match="outside reader"),
    ):
        run_reshard(disk, clock, 5)
    disk = disk.after_process_kill()
    run_reshard(disk, clock, 5)
    check_same(before, content_of(disk, clock), 2)


def test_an_unfinished_exchange_is_refused_by_every_reader(base: Base) -> None:
    original, clock, _ = base
    whole = original.after_process_kill()
    run_reshard(whole, clock, 3)
    assert whole.trace is not None
    renames = [at for at, (call, _) in enumerate(whole.trace) if call == "rename"]
    first = whole.trace.index(("rename", "/data/reshard.new /data/reshard.ready"))
    last = whole.trace.index(("rename", "/data/reshard.ready/LAYOUT.json /data/LAYOUT.json"))
    assert renames.index(last) - renames.index(first) == 4
    for calls in range(first + 1, last + 1):
        disk = original.after_process_kill()
        disk.kill_process_after(calls)
        with pytest.raises(ProcessKilled):
            run_reshard(disk, clock, 3)
        disk = disk.after_process_kill()
        with pytest.raises(LayoutError, match="start the server, or run: topicsd reshard /data"):
            read_layout(disk, DATA_DIR)
