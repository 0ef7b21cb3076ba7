"""A sweep that ends a reshard at each of its disk calls; then a server starts, or the reshard runs again.

Promises: the directory is that of `reshard_base.py`. Whatever the end, the next start finds the old shards or
the new ones, with the same content (`Content`), and a finished reshard leaves no other file than those of its
shards, and in the store no other object than those of its segments and those that it lists to be deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from shared.settings.settings import Settings
from shared.settings.store_url import folder_url
from tests.harness.books.ledger_entries import TopicContents
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import COLD_DIR, DATA_DIR, INSTANCE, ShardDriver
from tests.harness.shard.shard_reader import contents_of
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.reshard_base import DELETED, KEY, PINNED, SETTINGS, SHARDS
from topicsd.disk.atomic_replace import exists
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.layout import Layout, lock_path, parse_topic_dir_name, read_layout, shard_paths
from topicsd.disk.placement_file import read_placement
from topicsd.engine.checkpoint.capture import PendingRequests, capture
from topicsd.engine.checkpoint.job import files_to_drop_of, objects_to_delete_of
from topicsd.engine.checkpoint.manifest import read_manifest
from topicsd.engine.checkpoint.snapshot_files import read_snapshot
from topicsd.engine.ownership.departed import Departed, ToForget
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.shard import Shard
from topicsd.engine.write.idempotency import key_digest
from topicsd.log.writer import Identity
from topicsd.offline.check.shard_check import check_shard
from topicsd.offline.data_dir import DataDir
from topicsd.offline.reshard.reshard import reshard
from topicsd.offline.reshard.swap import settle
from topicsd.segment.entry import SegmentEntry

FILES: Final = ["LAYOUT.json", "LOCK", "PLACEMENT.json", "shards"]


class TopicContent(NamedTuple):
    """All that clients can observe of a topic."""

    state: Any
    contents: TopicContents
    sections: dict[str, bytes]
    epoch: int
    has_key: bool


class Content(NamedTuple):
    """All that clients can observe of a data directory."""

    topics: dict[str, TopicContent]
    sessions: dict[bytes, int]
    """The home shard of each session."""
    departed: dict[str, DepartedTopic]
    to_forget: set[ToForget]


class DepartedTopic(NamedTuple):
    """All that the shard keeps of a topic that it does not serve."""

    note: Departed
    head: int
    live: int
    segments: list[SegmentEntry]


def open_on(disk: MemoryDisk, clock: ManualClock) -> Callable[[DataDir, int], Shard]:
    def open_shard(data_dir: DataDir, number: int) -> Shard:
        settings = Settings(store_url=data_dir.store_url, wal_file_bytes=1 << 20)
        driver = ShardDriver(clock, settings, data_dir.paths(number), Identity(INSTANCE, number))
        driver.start(disk)
        return driver.shard

    return open_shard


def run_reshard(disk: MemoryDisk, clock: ManualClock, shards: int) -> None:
    """Run the whole command, with its lock."""
    lock = DirLock(disk, lock_path(DATA_DIR))
    settle(disk, DATA_DIR)
    layout = read_layout(disk, DATA_DIR)
    assert layout is not None
    data_dir = opened(disk, layout)
    reshard(disk, clock, data_dir, shards, open_on(disk, clock), lambda line: None)
    lock.release()


def opened(disk: MemoryDisk, layout: Layout) -> DataDir:
    placement = read_placement(disk, DATA_DIR, layout.shards)
    return DataDir(disk, DATA_DIR, layout, placement, list(range(layout.shards)), folder_url(COLD_DIR))


def shard_count(disk: MemoryDisk) -> int:
    layout = read_layout(disk, DATA_DIR)
    assert layout is not None
    return layout.shards


def content_of(disk: MemoryDisk, clock: ManualClock) -> Content:
    """Return what a server on a copy of the disk would serve."""
    twin = disk.after_process_kill()
    count = shard_count(twin)
    topics: dict[str, TopicContent] = {}
    sessions: dict[bytes, int] = {}
    departed: dict[str, DepartedTopic] = {}
    to_forget: set[ToForget] = set()
    placement = read_placement(twin, DATA_DIR, count)
    for number in range(count):
        one = OneShard(shard=number, shards=count, disk=twin, clock=clock, **SETTINGS)
        for name in one.shard.topic_names():
            assert name not in topics, f"{name} is on two shards"
            assert placement.owner_of(name) == number, f"{name} is on shard {number} of {count}"
            topics[name] = _topic_content(one, name)
        for known in one.shard.state.watch_sessions:
            assert known not in sessions
            sessions[known] = number
        departed |= _departed_topics(one, departed)
        assert to_forget.isdisjoint(one.shard.state.to_forget)
        to_forget.update(one.shard.state.to_forget)
        one.close()
    return Content(topics, sessions, departed, to_forget)


def _departed_topics(one: OneShard, others: dict[str, DepartedTopic]) -> dict[str, DepartedTopic]:
    state = one.shard.state
    departed = {}
    for name, note in state.departed.items():
        assert name not in others, f"{name} is on two shards"
        topic = state.topics_by_id[note.topic_id]
        sealed = [run.entry for run in topic.runs if isinstance(run, SealedRun)]
        # What is in the log of the twin becomes segments by the reshard.
        segments = [msgspec.structs.replace(entry, since_ordinal=0) for entry in sealed]
        departed[name] = DepartedTopic(note, topic.head, topic.live_count, segments)
    return departed


def _topic_content(one: OneShard, name: str) -> TopicContent:
    topic, state = one.topic(name), one.shard.state
    digest = key_digest(topic.epoch, topic.topic_id, KEY)
    keyed = state.idempotency_keys.find(digest, topic.windows_ms, one.clock.now_ms())
    contents = contents_of(one.shard, name)
    public = msgspec.structs.replace(one.state(name), durable_seq=0)
    sections = capture(topic, PendingRequests({}, {}, one.shard.log.batch.next_ordinal)).entry.sections
    return TopicContent(public, contents, sections, topic.epoch, keyed is not None)


def check_same(before: Content, after: Content, home_shards: int) -> None:
    """Check that nothing is lost and nothing is there twice; sessions of other home shards may have ended."""
    assert after.topics.keys() == before.topics.keys()
    for name, topic in before.topics.items():
        assert after.topics[name] == topic, name
    assert after.departed == before.departed
    assert after.to_forget == before.to_forget
    kept = {known: home for known, home in before.sessions.items() if home < home_shards}
    assert after.sessions == kept


def check_tree(disk: MemoryDisk, clock: ManualClock, shards: int, least: int) -> None:
    """Check that only the files of these shards are left, and that they are undamaged."""
    assert sorted(disk.list_dir(DATA_DIR)) == FILES
    names = [f"{number:02d}" for number in range(shards)]
    assert disk.list_dir(f"{DATA_DIR}/shards") == names
    layout = read_layout(disk, DATA_DIR)
    assert layout is not None
    data_dir = opened(disk, layout)
    check_placement(data_dir, least)
    check_objects(disk, data_dir)
    for number in range(shards):
        verdict = check_shard(data_dir, number, clock)
        assert not verdict.problems, verdict.problems
        assert [note for note in verdict.notes if not note.startswith("quarantine has")] == []
        _check_named_cold(disk, data_dir, number)
    aside = [path for path in disk.all_files() if "/quarantine/" in path]
    assert len(aside) == SHARDS
    assert all(disk.read_file(path) == b"set aside" for path in aside)


def check_placement(data_dir: DataDir, least: int) -> None:
    """Check the exceptions, and that the cold directory has each topic in its own shard only.

    `least` is the lowest number of shards that there was.
    """
    fs, shards, placement = data_dir.fs, data_dir.layout.shards, data_dir.placement
    assert placement.shard_count == shards
    # With more shards the rule places a topic on a new shard or on the same as before, never on shard 1.
    expected = {DELETED: 1, PINNED: 1} if least > 1 else {}
    assert placement.exceptions == expected, "an exception stays until its shard is removed"
    for shard in fs.list_dir(f"{COLD_DIR}/shards"):
        assert int(shard) < shards
        for directory in fs.list_dir(f"{COLD_DIR}/shards/{shard}/topics"):
            incarnation = parse_topic_dir_name(directory)
            assert incarnation is not None
            assert placement.shard_of(incarnation[0]) == int(shard)


def check_objects(disk: MemoryDisk, data_dir: DataDir) -> None:
    """Check that each object in the store is of one segment in use, or listed once to be deleted."""
    stems: list[str] = []
    for number in data_dir.shards:
        manifest = read_manifest(disk, data_dir.paths(number))
        head = read_snapshot(disk, data_dir.paths(number), manifest.number).head
        segments = [one for topic in manifest.topics for one in topic.segments]
        stems += [one.object_stem for one in segments if one.object_stem]
        stems += objects_to_delete_of(head)
        for topic in manifest.topics:
            for one in (one for one in topic.segments if one.object_stem):
                data = f"{data_dir.paths(number).root}/{topic.dir}/{one.stem}.data"
                assert (one.tier == "cold") != exists(disk, data), data
    objects = {
        os.path.splitext(os.path.relpath(path, COLD_DIR))[0]
        for path in disk.all_files()
        if path.startswith(f"{COLD_DIR}/segments/")
    }
    assert len(stems) == len(set(stems))
    assert set(stems) == objects


def _check_named_cold(disk: MemoryDisk, data_dir: DataDir, number: int) -> None:
    """Check that every file in the cold directory is of a segment in use, or is listed to be dropped."""
    manifest = read_manifest(disk, data_dir.paths(number))
    head = read_snapshot(disk, data_dir.paths(number), manifest.number).head
    stems = {
        f"{topic.dir}/{one.stem}" for topic in manifest.topics for one in topic.segments if one.tier == "cold"
    }
    stems |= {dropped.name.key("") for one in files_to_drop_of(head) for dropped in one.segments}
    root = shard_paths(COLD_DIR, number).root
    for path in (one for one in disk.all_files() if one.startswith(f"{root}/")):
        assert os.path.splitext(os.path.relpath(path, root))[0] in stems, path


def end_once(
    base: MemoryDisk, clock: ManualClock, before: Content, shards: int, calls: int, *, by_cut: bool
) -> bool:
    """End a reshard in call `calls + 1`, start again, and finish it; return False if it had ended before."""
    old = shard_count(base)
    rng = Random(f"{shards} {calls} {by_cut}")
    with attempt("reshard, ended", f"end_once(base, clock, before, {shards}, {calls}, by_cut={by_cut})"):
        disk = base.after_process_kill()
        arm = disk.cut_power_after if by_cut else disk.kill_process_after
        arm(calls)
        with suppress(MachineGoneError):
            run_reshard(disk, clock, shards)
        has_ended = disk.is_gone
        disk = disk.after_power_cut(rng) if by_cut else disk.after_process_kill()
        if rng.random() < 0.5:
            # A server starts first.
            settle(disk, DATA_DIR)
            count = shard_count(disk)
            assert count in (old, shards)
            assert {*disk.list_dir(DATA_DIR)} | {"LOCK"} == {*FILES}
            check_same(before, content_of(disk, clock), count if count == old else min(old, shards))
            layout = read_layout(disk, DATA_DIR)
            assert layout is not None
            check_placement(opened(disk, layout), min(old, count))
        if rng.random() < 0.3:
            # The next run ends too, at any place.
            disk.kill_process_after(rng.randrange(300))
            with suppress(MachineGoneError):
                run_reshard(disk, clock, shards)
            disk = disk.after_process_kill()
        run_reshard(disk, clock, shards)
        check_same(before, content_of(disk, clock), min(old, shards))
        check_tree(disk, clock, shards, min(old, shards))
    return has_ended
