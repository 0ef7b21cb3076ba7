"""Files that are garbage, cut, missing, strange: a start is refused in a sentence, or right; nothing else.

And whatever a length field says, no read of the disk is larger than a window because of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random

import pytest

from shared.runtime.disk_thread import Threads
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import DATA_DIR, PATHS
from tests.harness.shard.shard_run import ShardRun
from tests.harness.sweeps.small_store import ENDS, BoundedReads, SmallStore
from topicsd.disk.dir_lock import DirectoryInUse
from topicsd.disk.layout import LAYOUT_BYTES_MAX, LayoutError, create_data_dir, read_layout, shard_paths
from topicsd.engine.shard import Shard
from topicsd.log.batch_end import BATCH_END_BYTES, find_batch_end, parse_batch_end
from topicsd.log.file_header import FILE_HEADER_BYTES, parse_file_header
from topicsd.log.frame import FRAME_LEN_MAX, FRAME_LEN_MIN, LEN_BYTES, U32
from topicsd.log.reader import WINDOW_BYTES
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog
from topicsd.log.writer import Identity

LENGTHS = (0xFFFFFFFF, 0x7FFFFFFF, FRAME_LEN_MAX + 1, FRAME_LEN_MAX, FRAME_LEN_MIN - 1, 1, 0)

pytestmark = pytest.mark.usefixtures("quiet_log")


def _start(
    store: SmallStore, change: Callable[[MemoryDisk], None], *, is_judged: bool = True
) -> ShardRun | str:
    """A start on a changed copy of the store: the shard, or the sentence that refuses it."""
    disk = store.disk.after_process_kill()
    change(disk)
    book = store.book.copied()
    book.ledger.new_generation(machine_failed=True)
    reads = BoundedReads(disk)
    outcome: ShardRun | str
    try:
        outcome = run = ShardRun(disk, book, store.clock, fs=reads)  # type: ignore[arg-type]
        if is_judged:
            run.check(exact=False)
    except (RecoveryRefused, UnreadableLog) as error:
        outcome = str(error)
        assert DATA_DIR in outcome
    assert reads.largest <= WINDOW_BYTES + BATCH_END_BYTES
    return outcome


def _poke(path: str, offset: int, data: bytes) -> Callable[[MemoryDisk], None]:
    def change(disk: MemoryDisk) -> None:
        content = disk.read_file(path)
        disk.write_file(path, content[:offset] + data + content[offset + len(data) :])

    return change


def _replace(path: str, data: bytes) -> Callable[[MemoryDisk], None]:
    return lambda disk: disk.write_file(path, data)


def _frame_offsets(content: bytes) -> Iterator[int]:
    """Where each frame of a whole file begins, the header's and the BatchEnds' too."""
    at = 0
    while at < len(content) and (size := U32.unpack_from(content, at)[0]):
        yield at
        at += LEN_BYTES + size


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_field_is_never_believed(end: str, length: int) -> None:
    store = SmallStore(end)
    for path in store.wal_files:
        offsets = list(_frame_offsets(store.disk.read_file(path)))
        assert len(offsets) > 2
        for offset in offsets:
            outcome = _start(store, _poke(path, offset, struct.pack("<I", length)))
            if offset != offsets[-1] or end == "clean stop":
                assert isinstance(outcome, str), f"{path} is damaged at {offset}, and no error reports it"
                assert "offset" in outcome


@pytest.mark.parametrize("end", ENDS)
def test_a_length_behind_the_end_of_the_log_is_never_believed(end: str) -> None:
    store = SmallStore(end)
    path = store.wal_files[-1]
    for length in LENGTHS:
        for behind in (0, 4, 100):
            poke = _poke(path, store.data_end(path) + behind, struct.pack("<I", length))
            outcome = _start(store, poke)
            assert isinstance(outcome, ShardRun)
            assert outcome.all_contents() == store.shown


@pytest.mark.parametrize("end", ENDS)
def test_a_file_cut_at_every_byte_of_its_last_batch_is_refused_or_loses_nothing_that_was_acked(
    end: str,
) -> None:
    store = SmallStore(end)
    path = store.wal_files[-1]
    content = store.disk.read_file(path)
    data_end = store.data_end(path)
    for size in range(data_end - BATCH_END_BYTES, data_end):
        for replacement in (content[:size], content[:size].ljust(len(content), b"\0")):
            outcome = _start(store, _replace(path, replacement))
            if end == "clean stop":
                assert isinstance(outcome, str)
                assert "offset" in outcome
            else:
                assert isinstance(outcome, ShardRun), outcome
                recovered = outcome.all_contents()
                assert {name: one.records for name, one in recovered.items()} == {
                    name: one.records for name, one in store.shown.items()
                }


@pytest.mark.parametrize("end", ENDS)
def test_a_file_cut_anywhere_raises_nothing_but_what_is_meant(end: str) -> None:
    store = SmallStore(end)
    for path in store.wal_files:
        content = store.disk.read_file(path)
        for size in range(0, store.data_end(path), 7):
            _start(store, _replace(path, content[:size]), is_judged=False)
            _start(store, _replace(path, content[:size].ljust(len(content), b"\0")), is_judged=False)


def _garbage() -> list[bytes]:
    rng = Random(7)
    return [
        b"",
        b"\0" * 4096,
        b"\xff" * 4096,
        b"TOPICWAL" * 100,
        *(rng.randbytes(size) for size in (1, 117, 5000)),
    ]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("garbage", _garbage(), ids=len)
def test_garbage_in_place_of_a_file_is_refused(end: str, garbage: bytes) -> None:
    store = SmallStore(end)
    for path in store.wal_files:
        outcome = _start(store, _replace(path, garbage))
        assert isinstance(outcome, str)
        assert path.rpartition("/")[2] in outcome


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("garbage", _garbage(), ids=len)
def test_garbage_under_a_later_name_goes_to_quarantine_and_the_log_is_whole(end: str, garbage: bytes) -> None:
    store = SmallStore(end)
    outcome = _start(store, _replace(PATHS.wal_file(900), garbage))
    assert isinstance(outcome, ShardRun), outcome
    assert outcome.all_contents() == store.shown
    assert [path for path in outcome.disk.all_files() if path.startswith(PATHS.quarantine)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("garbage", _garbage(), ids=len)
def test_garbage_in_place_of_current_costs_nothing(end: str, garbage: bytes) -> None:
    outcome = _start(SmallStore(end), _replace(PATHS.current, garbage))
    assert isinstance(outcome, ShardRun), outcome
    assert outcome.all_contents() == SmallStore(end).shown


@pytest.mark.parametrize("garbage", [*_garbage(), b"{" * LAYOUT_BYTES_MAX, b"[" * 100_000], ids=len)
def test_garbage_in_place_of_the_layout_is_refused(garbage: bytes) -> None:
    store = SmallStore("clean stop")
    store.disk.write_file(f"{DATA_DIR}/LAYOUT.json", garbage)
    with pytest.raises(LayoutError, match=r"LAYOUT\.json"):
        read_layout(store.disk, DATA_DIR)


@pytest.mark.parametrize("end", ENDS)
def test_names_that_are_none_of_ours_are_passed_over(end: str) -> None:
    store = SmallStore(end)
    strange = (
        "wal-1.log",
        "wal-00000000000000001.log",
        "WAL-0000000000000001.LOG",
        "notes.txt",
        "wal-x.log.bak",
    )

    def change(disk: MemoryDisk) -> None:
        for name in strange:
            disk.write_file(f"{PATHS.wal}/{name}", b"whatever")
        for name in ("spare-9.log", "CURRENT.tmp", "wal-0000000000000001.log.tmp"):
            disk.write_file(f"{PATHS.wal}/{name}", b"left over")

    outcome = _start(store, change)
    assert isinstance(outcome, ShardRun), outcome
    assert outcome.all_contents() == store.shown
    names = outcome.disk.list_dir(PATHS.wal)
    assert set(strange) <= set(names)
    assert not {name for name in names if name.endswith(".tmp") or name.startswith("spare")}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_missing_file_is_refused(place: str) -> None:
    store = SmallStore("kill with several files")
    files = store.wal_files
    assert len(files) >= 3
    path = {"first": files[0], "middle": files[1], "last": files[-1]}[place]
    outcome = _start(store, lambda disk: disk.unlink(path))
    assert isinstance(outcome, str)


def test_a_file_from_the_middle_under_another_name_is_refused() -> None:
    store = SmallStore("kill with several files")
    first, second = store.wal_files[:2]

    def change(disk: MemoryDisk) -> None:
        disk.rename(second, PATHS.wal_file(77))

    assert isinstance(_start(store, change), str)
    assert isinstance(_start(store, _replace(second, store.disk.read_file(first))), str)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["of the log", "of a snapshot"])
@pytest.mark.parametrize("which", ["instance", "shard"])
def test_a_file_of_another_shard_or_instance_is_refused(which: str, checkpoint: bool) -> None:
    store = SmallStore("clean stop")
    (path,) = store.wal_files
    header = parse_file_header(store.disk.read_file(path)[:FILE_HEADER_BYTES])
    other = {"instance": Identity(b"another instance", 0), "shard": Identity(header.instance, 1)}[which]
    run = ShardRun(store.disk.after_process_kill(), store.book, store.clock)
    run.append("d", 1)
    run.settle()
    run.close(checkpoint=checkpoint)
    with pytest.raises(UnreadableLog, match="belongs to shard"):
        Shard(
            run.disk,
            run.clock,
            run.loop,
            Threads(*[run.thread] * len(Threads._fields)),
            PATHS,
            other,
            run.shard.state.settings,
            run.failures.append,
        )


def test_a_directory_is_one_shard_s_at_a_time() -> None:
    store = SmallStore("clean stop")
    disk = store.disk.after_process_kill()
    ShardRun(disk, store.book, store.clock)
    with pytest.raises(DirectoryInUse, match="LOCK"):
        ShardRun(disk, store.book, store.clock)


def test_a_layout_without_its_shards_and_shards_without_their_layout_are_refused() -> None:
    store = SmallStore("clean stop")
    bare = MemoryDisk()
    bare.make_dirs(DATA_DIR)
    bare.write_file(f"{DATA_DIR}/LAYOUT.json", store.disk.read_file(f"{DATA_DIR}/LAYOUT.json"))
    with pytest.raises(LayoutError, match=": missing, but"):
        read_layout(bare, DATA_DIR)
    store.disk.unlink(f"{DATA_DIR}/LAYOUT.json")
    with pytest.raises(LayoutError, match="holds a log"):
        create_data_dir(store.disk, DATA_DIR, 1, b"i" * 16)


def test_a_data_directory_is_made_whole_whatever_call_the_power_is_cut_in() -> None:
    calls, went = 0, True
    while went:
        for seed in range(10):
            disk = MemoryDisk()
            disk.cut_power_after(calls)
            try:
                create_data_dir(disk, DATA_DIR, 2, b"i" * 16)
            except BaseException:
                if not disk.is_gone:
                    raise
            went = disk.is_gone
            after = disk.after_power_cut(Random(seed))
            layout = read_layout(after, DATA_DIR) or create_data_dir(after, DATA_DIR, 2, b"i" * 16)
            assert layout.instance_bytes == b"i" * 16
            for shard in range(2):
                assert after.list_dir(shard_paths(DATA_DIR, shard).wal) == []
            again = read_layout(after.after_power_cut(Random(seed)), DATA_DIR)
            assert again == layout
        calls += 1
    assert calls > 10


def test_the_batch_ends_of_a_store_are_where_these_tests_take_them_to_be() -> None:
    for end in ENDS:
        store = SmallStore(end)
        for path in store.wal_files:
            content = store.disk.read_file(path)
            epoch = parse_file_header(content[:FILE_HEADER_BYTES]).epoch
            last = list(_frame_offsets(content))[-1]
            assert find_batch_end(content, epoch, last) == last
            assert parse_batch_end(content, last, epoch) is not None
            assert store.data_end(path) in range(last + BATCH_END_BYTES - 8, last + BATCH_END_BYTES + 1)
