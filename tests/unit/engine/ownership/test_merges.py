"""Merges of small exported segments in the catalog and the store, also after a crash between two steps."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.harness.catalog.catalog_oracle import OracleTopic
from tests.harness.machine.fake_store import StoredObject
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import record
from tests.unit.engine.ownership.test_exporter import ExportingShard
from topicsd.engine.bundle.bundle_format import decode_bundle
from topicsd.engine.checkpoint.snapshot_files import snapshot_numbers
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.upkeep.merging import GROWTH
from topicsd.segment.entry import COLD, DATA, HOT, INDEX, STATE, SegmentName
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES
from topicsd.segment.rebuild import rebuild_index, rebuild_tags

pytestmark = pytest.mark.usefixtures("quiet_log")

INTERVAL_MS = 10_000
Records = dict[int, tuple[bytes, bytes]]


def slow_shard(count: int, batch: int = 1, **settings: Any) -> ExportingShard:
    """Return a shard with `batch` records in each of `count` intervals."""
    shard = ExportingShard(
        **{
            "segment_max_events": 1000,
            "export_interval_ms": INTERVAL_MS,
            "hot_retain_segments": 100,
            **settings,
        }
    )
    write_slowly(shard, count, batch)
    return shard


def write_slowly(shard: ExportingShard, count: int, batch: int = 1) -> None:
    head = shard.one.topic("t").head if "t" in shard.one.shard.state.topics else 0
    for first in range(head + 1, head + count * batch + 1, batch):
        numbers = range(first, first + batch)
        shard.one.append("t", *(record(number, f"tag-{number % 5}") for number in numbers))
        shard.settle(2 * INTERVAL_MS)


def ranges(shard: ExportingShard) -> list[tuple[int, int]]:
    return [(one.first_seq, one.last_seq) for one in shard.extents()]


def read(shard: ExportingShard) -> Records:
    return {one.seq: (one.data, one.tag) for one in shard.one.read("t").records}


def check_settled(shard: ExportingShard, expected: Records) -> None:
    """Check that the records are there, and that catalog, state and store agree on the segments."""
    assert read(shard) == expected
    extents = shard.extents()
    for one, other in pairwise(extents):
        assert one.last_seq + 1 == other.first_seq
    named = {one.key: one for extent in extents for one in extent.objects}
    for key, one in named.items():
        assert len(shard.store.objects[key].data) == one.size, key
    segments = shard.state().topic.segments
    data = [one.object_stem + DATA for one in segments]
    assert data == [key for extent in extents for one in extent.objects if (key := one.key).endswith(DATA)]
    assert sum(one.live_count for one in segments) == len(expected)


def test_small_segments_are_merged_once_there_are_enough() -> None:
    shard = slow_shard(GROWTH)
    assert len(ranges(shard)) == GROWTH
    write_slowly(shard, 1)
    shard.settle(120_000)
    assert ranges(shard) == [(1, GROWTH), (GROWTH + 1, GROWTH + 1)]
    assert [one.generation for one in shard.extents()] == [1, 0]
    assert read(shard) == {seq: (b"%d" % seq, b"tag-%d" % (seq % 5)) for seq in range(1, GROWTH + 2)}
    shard.settle()
    shard.check()
    shard.one.kill()
    shard.settle()
    assert len(read(shard)) == GROWTH + 1
    shard.check()


def test_a_day_of_a_slow_topic_leaves_few_objects() -> None:
    shard = slow_shard(0)
    for number in range(1, 289):
        shard.one.append("t", record(number, "tag"))
        shard.settle(300_000)
    shard.settle()
    # 4 of 64, 3 of 8, the rest of one record each; three objects each, and the state.
    assert len(shard.extents()) <= 4 + GROWTH + GROWTH
    assert max(one.last_seq - one.first_seq + 1 for one in shard.extents()) == GROWTH * GROWTH
    assert shard.one.seqs("t") == list(range(1, 289))
    shard.check()


@pytest.mark.parametrize("hot_retain_segments", [0, 100])
def test_merged_segments_come_from_the_store_when_only_it_has_them(hot_retain_segments: int) -> None:
    shard = slow_shard(GROWTH, hot_retain_segments=hot_retain_segments, checkpoint_interval_ms=1000)
    shard.settle()
    tiers = {run.entry.tier for run in shard.one.topic("t").runs if isinstance(run, SealedRun)}
    assert tiers == {HOT if hot_retain_segments else COLD}
    write_slowly(shard, 1)
    shard.settle()
    assert ranges(shard)[0] == (1, GROWTH)
    shard.check()
    shard.settle()
    merged = shard.one.topic("t").runs[0]
    assert isinstance(merged, SealedRun)
    assert merged.entry.tier == (HOT if hot_retain_segments else COLD)
    shard.one.delete("t", tag="tag-3")
    assert shard.one.seqs("t") == [seq for seq in range(1, GROWTH + 2) if seq % 5 != 3]


def test_deletes_before_and_during_a_merge_are_kept() -> None:
    shard = slow_shard(GROWTH)
    shard.one.delete("t", before_seq=2)
    shard.one.delete("t", seqs=[4])
    write_slowly(shard, 1)
    deleted = False

    def delete_once(verb: str) -> None:
        nonlocal deleted
        if verb == "publish_extents" and not deleted:
            deleted = True
            shard.one.send_delete("t", seqs=[6])

    shard.catalog.before_call = delete_once
    shard.settle()
    shard.settle()
    left = [2, 3, 5, *range(7, GROWTH + 2)]
    assert shard.one.seqs("t") == left
    shard.one.kill()
    assert shard.one.seqs("t") == left
    shard.settle()
    assert sum(one.live_count for one in shard.state().topic.segments) == len(left)


def test_a_damaged_segment_is_not_merged() -> None:
    shard = slow_shard(GROWTH, hot_retain_segments=0, checkpoint_interval_ms=1000)
    shard.settle()
    run = shard.one.topic("t").runs[3]
    assert isinstance(run, SealedRun)
    key = run.entry.object_stem + DATA
    damaged = bytearray(shard.store.objects[key].data)
    damaged[-1] ^= 1
    shard.store.objects[key] = shard.store.objects[key]._replace(data=bytes(damaged))
    before = ranges(shard)
    write_slowly(shard, 1)
    shard.settle()
    assert ranges(shard) == [*before, (GROWTH + 1, GROWTH + 1)]
    assert run.name in shard.one.shard.state.damaged_segments
    # The segments after it are merged once there are enough of them.
    write_slowly(shard, 4)
    shard.settle()
    assert ranges(shard)[:4] == before[:4]
    assert ranges(shard)[4] == (5, 4 + GROWTH)


def test_index_and_tags_of_a_merged_segment_can_be_rebuilt() -> None:
    shard = slow_shard(GROWTH, 3)
    shard.one.delete("t", seqs=[1, 5, 24])
    write_slowly(shard, 1)
    shard.settle()
    run, segments = shard.one.topic("t").runs[0], shard.one.shard.state.segments
    assert isinstance(run, SealedRun)
    assert (run.entry.count, run.entry.dead_count, run.name.generation) == (3 * GROWTH, 3, 1)
    read_data = partial(segments.hot.read_range, run.name.key(DATA))
    index, rebuilt = segments.load_index(run.name, run.entry), rebuild_index(read_data, run.name, run.entry)
    for column in ("offsets", "lengths", "times_ms", "flags"):
        assert getattr(index, column) == getattr(rebuilt, column), column
    assert segments.all_tags(run.name, run.entry) == rebuild_tags(read_data, run.name, run.entry)


def test_a_stale_owner_does_not_publish_a_merge() -> None:
    shard = slow_shard(GROWTH)
    write_slowly(shard, 1)
    shard.catalog.is_away = True
    shard.settle(120_000)
    assert shard.one.topic("t").runs[0].next_seq == GROWTH + 1
    before, row = shard.extents(), shard.oracle.row("t")
    assert row is not None
    shard.oracle.adopt("t", "node-b", row.incarnation, row.owner_epoch, accept_loss=True)
    shard.catalog.is_away = False
    shard.settle()
    assert "t" in shard.one.shard.state.departed
    assert shard.extents() == before
    named = {one.key for extent in before for one in extent.objects}
    assert named <= shard.store.objects.keys()


def test_a_merged_segment_that_waits_does_not_count_as_late() -> None:
    shard = slow_shard(GROWTH)
    exporter = shard.one.shard.exporter
    assert exporter is not None
    write_slowly(shard, 1)
    shard.catalog.is_away = True
    shard.settle(120_000)
    assert shard.one.topic("t").runs[0].next_seq == GROWTH + 1
    assert (exporter.state.waiting_count, exporter.state.oldest_ms) == (1, 0)
    written_ms = shard.one.clock.now_ms()
    shard.one.append("t", record(GROWTH + 2, "late"))
    shard.settle(120_000)
    assert (exporter.state.waiting_count, exporter.state.oldest_ms) == (2, written_ms)
    shard.catalog.is_away = False
    shard.settle()
    assert (exporter.state.waiting_count, exporter.state.oldest_ms) == (0, 0)
    shard.check()


def test_no_state_is_published_while_a_segment_is_in_no_object() -> None:
    shard = slow_shard(3)
    replaced: list[SealedRun] = []
    states: list[list[int]] = []

    def rewrite(verb: str) -> None:
        """As upkeep does while the exporter waits for the catalog."""
        run = shard.one.topic("t").runs[0]
        if verb == "extents_from" and not replaced:
            assert isinstance(run, SealedRun)
            replaced.append(run)
            run.entry = msgspec.structs.replace(run.entry, object_stem="")
        if verb == "publish_extents":
            bundles = [decode_bundle(one.data) for key, one in shard.store.objects.items() if STATE in key]
            states.extend([one.first_seq for one in bundle.topic.segments] for bundle in bundles)

    shard.one.append("t", record(4, "tag-4"))
    shard.catalog.before_call = rewrite
    shard.settle()
    assert replaced
    assert [1, 2, 3, 4] in states
    assert all(seqs[0] == 1 for seqs in states), states
    shard.check()


class World(NamedTuple):
    """What is left if everything ends before a request."""

    request: str
    disk: MemoryDisk
    after_power_cut: MemoryDisk
    objects: dict[str, StoredObject]
    topics: dict[str, OracleTopic]


def worlds_of_a_merge(shard: ExportingShard) -> list[World]:
    """Run the background work of a merge; return what is left before each request to store and catalog."""
    worlds: list[World] = []

    def capture(request: str) -> None:
        disk = shard.one.disk
        cut = disk.after_power_cut(Random(len(worlds)))
        topics = copy.deepcopy(shard.oracle.topics)
        worlds.append(World(request, disk.after_process_kill(), cut, dict(shard.store.objects), topics))

    class Requests(list[str]):
        def append(self, request: str) -> None:
            capture(request)
            super().append(request)

    shard.store.requests = Requests()
    shard.catalog.before_call = capture
    shard.settle(700_000)
    shard.store.requests = []
    shard.catalog.before_call = None
    assert any(one.request.startswith("delete segments") for one in worlds)
    return worlds


def seqs_in_extents(shard: ExportingShard) -> set[int]:
    """Return the seqs of the segments whose objects the catalog names."""
    seqs: set[int] = set()
    for extent in shard.extents():
        for one in extent.objects:
            name = SegmentName.of_object_stem(one.key.removesuffix(INDEX))
            if name is not None:
                count = (one.size - FOOTER_BYTES) // ENTRY_BYTES
                seqs |= {*range(name.first_seq, name.first_seq + count)}
    return seqs


@pytest.mark.parametrize("hot_retain_segments", [0, 100])
@pytest.mark.parametrize("ending", ["kill", "power cut", "damaged snapshot"])
def test_a_crash_between_any_two_requests_loses_nothing(ending: str, hot_retain_segments: int) -> None:
    """After a start from the older snapshot the segments differ from the extents (X9)."""
    shard = slow_shard(
        GROWTH,
        4,
        hot_retain_segments=hot_retain_segments,
        checkpoint_interval_ms=20_000 if ending == "damaged snapshot" else 1000,
    )
    head = shard.one.append("t", record(1, "last")).last_seq
    before = read(shard)
    worlds = worlds_of_a_merge(shard)
    assert ranges(shard)[0] == (1, head - 1)
    orphans = 0
    for world in worlds:
        expected = dict(before)
        shard.catalog.before_call = None
        shard.store.objects = dict(world.objects)
        shard.oracle.topics = copy.deepcopy(world.topics)
        disk = world.after_power_cut if ending == "power cut" else world.disk
        if ending == "damaged snapshot" and len(numbers := snapshot_numbers(disk, shard.one.paths)) > 1:
            disk.flip(shard.one.paths.snapshot(numbers[0]), 100, 1)
        shard.one.open(disk)
        assert read(shard) == expected, world.request
        # A segment that was merged before is compacted.
        for seq in (9, 10, 12) if ending == "damaged snapshot" else ():
            shard.one.delete("t", seqs=[seq])
            del expected[seq]

        missing: set[int] = set()

        def note_missing(verb: str, missing: set[int], exported: set[int]) -> None:
            missing |= exported - seqs_in_extents(shard)

        shard.catalog.before_call = partial(note_missing, missing=missing, exported={*expected} - {head})
        try:
            shard.settle(700_000)
            assert not missing, "no extent has these records"
            check_settled(shard, expected)
            assert ranges(shard)[0] == (1, head - 1)
        except AssertionError as error:
            error.add_note(f"ended before: {world.request}")
            raise
        named = {one.key for extent in shard.extents() for one in extent.objects}
        orphans += bool(shard.store.objects.keys() - named)
    print(f"{len(worlds)} worlds, {orphans} with objects that a vacuum finds")
    assert orphans < len(worlds)


@pytest.mark.parametrize("seed", range(4))
def test_merges_and_requests_that_fail_lose_nothing(seed: int) -> None:
    shard = slow_shard(0)
    shard.catalog._random = Random(seed)
    rng = Random(seed)
    for _ in range(6):
        shard.catalog.loss = rng.choice((0.0, 0.3))
        shard.store.faults = rng.choices(
            (None, "lost request", "lost answer", "conflict"), (8, 1, 1, 1), k=200
        )
        write_slowly(shard, rng.randrange(2, 7))
        if rng.random() < 0.5:
            shard.one.kill()
    shard.catalog.loss, shard.store.faults = 0.0, []
    expected = read(shard)
    shard.settle(1_400_000)
    check_settled(shard, expected)
    assert len(shard.extents()) < len(expected)
