"""Exports: objects are whole, verified and equal to the local files, or the segment stays as it is."""

from __future__ import annotations

import errno
import hashlib
from contextlib import suppress
from random import Random

import pytest

from shared.runtime.retries import Retries
from tests.harness.machine.fake_store import FakeStore, Fault
from tests.harness.machine.faults import PowerCut
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.unit.segment.written_segment import NAME, PATHS, Written, replaced
from topicsd.disk.layout import make_dirs
from topicsd.engine.upkeep.tiering import Exported, Throttle, export_segment, no_throttle
from topicsd.segment.entry import COLD, DATA, DEAD, INDEX, TAGS, SegmentDamage, SegmentEntry
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore
from topicsd.store.file_objects import FileObjects
from topicsd.store.metered import MeteredStore
from topicsd.store.object_store import ObjectStore, StoreUnavailable

pytestmark = pytest.mark.usefixtures("quiet_log")

FIRST = NAME.first_seq
ALL = 1 << 60
STORE_ROOT = "/store"


def retries(seconds: float = 60.0) -> Retries:
    clock = ManualClock()
    return Retries(clock.monotonic, lambda wait: clock.advance(int(wait * 1000) + 1), seconds, lambda: 1.0)


def export(written: Written, store: ObjectStore, throttle: Throttle = no_throttle) -> Exported:
    return export_segment(store, written.hot, NAME, written.entry, 3, throttle, retries())


def exported_entry(written: Written, exported: Exported) -> SegmentEntry:
    return replaced(written.entry, tier=COLD, object_stem=exported.stem)


def reader_of(disk: MemoryDisk, store: ObjectStore) -> SegmentReader:
    return SegmentReader(LocalStore(disk, PATHS.root), None, SegmentObjects(MeteredStore(store)))


def assert_reads(reader: SegmentReader, written: Written, entry: SegmentEntry) -> None:
    index = reader.index(NAME, entry)
    data, start = reader.frames(NAME, entry, index, FIRST, entry.last_seq)
    reader.check_frames(NAME, index, data, start, FIRST, entry.last_seq)
    assert data == b"".join(written.frames)
    assert reader.find_tag(NAME, entry, b"all", False, ALL) == written.tags[b"all"]
    if entry.dead_count:
        assert reader.dead_set(NAME, entry).dead_count == entry.dead_count


def test_the_objects_are_the_local_files_under_a_key_that_is_never_used_again() -> None:
    written, store = Written(dead=(FIRST, FIRST + 9)), FakeStore()
    first, second = export(written, store), export(written, store)
    assert first.stem != second.stem
    assert first.stem.startswith(f"segments/{NAME.topic_id:016x}-{NAME.epoch}/3-seg-")
    assert [one.suffix for one in first.objects] == [TAGS, INDEX, DATA], "a listing with .data is whole"
    for one in first.objects:
        data = store.objects[first.stem + one.suffix].data
        assert data == written.files()[one.suffix]
        assert (one.size, one.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert not [key for key in store.objects if key.endswith(DEAD)], "marks are local"


def test_an_export_of_a_small_segment_reads_each_object_back_with_one_request() -> None:
    store = MeteredStore(FakeStore())
    exported = export(Written(), store)
    totals = store.totals
    assert (totals.creates, totals.reads) == (3, 3)
    assert totals.bytes_read == totals.bytes_written == sum(one.size for one in exported.objects)


def test_a_segment_is_read_from_its_objects_when_its_local_files_are_gone() -> None:
    written, store = Written(dead=(FIRST, FIRST + 9)), FakeStore()
    entry = exported_entry(written, export(written, store))
    for suffix in (DATA, INDEX, TAGS):
        written.disk.unlink(written.path(suffix))
    reader = reader_of(written.disk, store)
    assert_reads(reader, written, entry)
    for suffix in (INDEX, TAGS):
        assert written.disk.read_file(written.path(suffix)) == written.files()[suffix], "kept locally again"
    store.requests.clear()
    reader = reader_of(written.disk, store)
    reader.index(NAME, entry, is_local=True)
    assert reader.find_tag(NAME, entry, b"all", False, ALL) == written.tags[b"all"]
    assert store.requests == []


def test_the_event_loop_makes_no_request_for_an_index() -> None:
    written, store = Written(), FakeStore()
    entry = exported_entry(written, export(written, store))
    for suffix in (DATA, INDEX):
        written.disk.unlink(written.path(suffix))
    store.requests.clear()
    reader = reader_of(written.disk, store)
    with pytest.raises(StoreUnavailable):
        reader.index(NAME, entry, is_local=True)
    assert store.requests == []
    reader.index(NAME, entry)
    reader.index(NAME, entry, is_local=True)


def test_the_index_beside_damaged_records_is_read_without_a_request() -> None:
    written, store = Written(), FakeStore()
    entry = replaced(exported_entry(written, export(written, store)), tier="hot")
    store.requests.clear()
    reader = reader_of(written.disk, store)
    assert reader.distrust(NAME, entry)
    assert reader.index(NAME, entry, is_local=True).count == entry.count
    assert store.requests == []


@pytest.mark.parametrize("harm", ["cut", "flipped", "missing"])
def test_a_damaged_local_copy_is_read_from_the_store(harm: str) -> None:
    written, store = Written(count=40), FakeStore()
    entry = replaced(exported_entry(written, export(written, store)), tier="hot")
    path = written.path(DATA)
    if harm == "cut":
        written.disk.write_file(path, written.files()[DATA][:-100])
    elif harm == "flipped":
        written.disk.flip(path, len(written.files()[DATA]) - 20, 1)
    else:
        written.disk.unlink(path)
    reader = reader_of(written.disk, store)
    if harm == "flipped":
        assert reader.distrust(NAME, entry), "the code that parses the frames found it"
        assert not reader.distrust(NAME, entry)
    assert_reads(reader, written, entry)


def test_a_damaged_object_is_reported_exactly_where_there_is_no_local_copy() -> None:
    written, store = Written(count=40), FakeStore()
    exported = export(written, store)
    entry = exported_entry(written, exported)
    key = exported.stem + DATA
    store.objects[key] = store.objects[key]._replace(data=store.objects[key].data[:-1])
    assert_reads(reader_of(written.disk, store), written, entry)
    written.disk.unlink(written.path(DATA))
    reader = reader_of(written.disk, store)
    index = reader.index(NAME, entry)
    with pytest.raises(SegmentDamage) as damage:
        reader.frames(NAME, entry, index, FIRST, entry.last_seq)
    assert (damage.value.first_seq, damage.value.last_seq) == (entry.last_seq, entry.last_seq)


def test_a_store_that_is_away_or_not_configured_is_no_damage() -> None:
    written, store = Written(), FakeStore()
    entry = exported_entry(written, export(written, store))
    written.disk.unlink(written.path(DATA))
    reader = reader_of(written.disk, store)
    index = reader.index(NAME, entry)
    store.faults = ["lost request"]
    with pytest.raises(StoreUnavailable):
        reader.frames(NAME, entry, index, FIRST, entry.last_seq)
    assert_reads(reader, written, entry)
    with pytest.raises(StoreUnavailable, match="TOPICS_STORE_URL is not set"):
        SegmentReader(LocalStore(written.disk, PATHS.root)).frames(NAME, entry, index, FIRST, FIRST)


@pytest.mark.parametrize("suffix", [INDEX, TAGS])
@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_what_can_be_made_again_is_right_in_the_store(suffix: str, harm: str) -> None:
    written, store = Written(dead=(FIRST,)), FakeStore()
    before = written.files()[suffix]
    if harm == "missing":
        written.disk.unlink(written.path(suffix))
    else:
        written.disk.flip(written.path(suffix), 30, 1)
    exported = export(written, store)
    assert store.objects[exported.stem + suffix].data == before


def test_what_stands_behind_the_length_that_counts_is_not_exported() -> None:
    written, store = Written(), FakeStore()
    before = written.files()[DATA]
    written.disk.write_file(written.path(DATA), before + b"never taken over")
    exported = export(written, store)
    assert store.objects[exported.stem + DATA].data == before


def test_damage_in_the_local_copy_stops_the_export() -> None:
    written, store = Written(), FakeStore()
    written.disk.flip(written.path(DATA), len(written.files()[DATA]) // 2, 1)
    with pytest.raises(SegmentDamage):
        export(written, store)
    assert store.requests == []


def test_an_object_that_the_store_changed_is_not_taken_for_exported() -> None:
    class ChangingStore(FakeStore):
        def read(self, key: str, offset: int, size: int) -> bytes:
            data = super().read(key, offset, size)
            return data if not key.endswith(DATA) or not data else data[:-1] + b"?"

    written, store = Written(), ChangingStore()
    with pytest.raises(StoreUnavailable, match="differ"):
        export(written, store)
    assert store.objects == {}


@pytest.mark.parametrize("fault", ["lost request", "lost answer", "conflict"])
def test_a_fault_of_any_request_is_repeated(fault: Fault) -> None:
    nth = 0
    while True:
        written, store = Written(), FakeStore()
        store.faults = [*[None] * nth, fault]
        exported = export(written, store)
        assert sorted(store.objects) == sorted(exported.stem + one.suffix for one in exported.objects)
        if store.faults:
            break
        nth += 1
    assert nth >= 6


def test_the_rate_limit_counts_every_byte_twice() -> None:
    written, sizes = Written(), []
    export(written, FakeStore(), sizes.append)
    assert sum(sizes) >= 2 * written.entry.data_bytes


class Attempt:
    """One export into a folder of the same disk as the segment."""

    def __init__(self, disk: MemoryDisk, written: Written) -> None:
        self.exported: Exported | None = None
        self.store = FileObjects(disk, STORE_ROOT)
        local = LocalStore(disk, PATHS.root)
        with suppress(PowerCut, OSError):
            self.exported = export_segment(
                self.store, local, NAME, written.entry, 1, no_throttle, retries(0.0)
            )


def prepared() -> Written:
    written = Written(count=10, dead=(FIRST, FIRST + 9))
    make_dirs(written.disk, STORE_ROOT)
    return written


def assert_exported(disk: MemoryDisk, written: Written, exported: Exported) -> None:
    """The objects alone have the segment, after the local files have gone."""
    entry = exported_entry(written, exported)
    for suffix in (DATA, INDEX, TAGS):
        disk.unlink(written.path(suffix))
    assert_reads(reader_of(disk, FileObjects(disk, STORE_ROOT)), written, entry)


@pytest.mark.slow
def test_a_power_cut_at_any_call_leaves_a_whole_export_or_the_local_segment() -> None:
    written, calls = prepared(), 0
    while True:
        disk = written.disk.after_reboot()
        disk.cut_power_after(calls)
        attempt = Attempt(disk, written)
        for seed in range(5):
            survivor = disk.after_power_cut(Random(seed))
            assert_reads(reader_of(survivor, FileObjects(survivor, STORE_ROOT)), written, written.entry)
            exported = attempt.exported or Attempt(survivor, written).exported
            assert exported is not None
            assert_exported(survivor, written, exported)
        if not disk.is_gone:
            break
        calls += 1
    assert calls > 20


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_leaves_the_local_segment_and_the_next_try_succeeds(code: int) -> None:
    written, nth = prepared(), 1
    while True:
        disk = written.disk.after_reboot()
        fault = disk.fail(nth=nth, error=code)
        attempt = Attempt(disk, written)
        disk.clear_faults()
        if not fault.fired:
            break
        assert_reads(reader_of(disk, attempt.store), written, written.entry)
        exported = attempt.exported or Attempt(disk, written).exported
        assert exported is not None
        assert_exported(disk, written, exported)
        nth += 1
    assert nth > 20
