"""The new shards, built beside the old ones in `reshard.new`.

A topic keeps its id, epoch, config, floors, cursors, producers, queue and routes: its snapshot entry is taken
as it is, except for places in the log. Its segments are linked, so their headers name the shard that wrote
them. Objects stay as they are, since their keys name no shard.

N1  The log of every new shard begins at one ordinal, above every ordinal of every old shard, and all have
    the highest epoch floor: the epochs of later topics differ from all earlier ones, also in a shard that
    receives no topic.
N2  The order within a shard is: segments, then the empty log with its CURRENT, then the snapshot, then the
    manifest. Each is synced before the next, and all directories at the end, before the commit.
N3  Idempotency keys go with their topics (`divided_keys.py`).
N4  A watch session stays in its home shard, which its id names. Sessions of shards that no longer exist end,
    and their clients are answered as after any other end of a session.
N5  Dropped files are not taken along, except those that an earlier version moved to the cold directory and
    whose topics stay in a shard of the same number: they are listed again, and the next checkpoint deletes
    them. All objects that are still to be deleted are listed in the first shard.
N6  A departed topic goes where its name belongs, with its note. So does the note of a row that the catalog
    has to forget.
N7  The placement of the new count is written beside the new shards, and takes effect with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Final, NamedTuple

import msgspec

from shared.ipc.placement import Placement
from shared.runtime.clock import Clock
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.layout import (
    ShardPaths,
    create_data_dir,
    doctor_command,
    make_dirs,
    names_in,
    shard_paths,
    staged_path,
)
from topicsd.disk.placement_file import write_placement
from topicsd.engine.checkpoint.job import FilesToDrop, files_to_drop_section
from topicsd.engine.checkpoint.manifest import manifest_head, manifest_parts, topic_line, write_manifest
from topicsd.engine.checkpoint.snapshot_files import write_snapshot
from topicsd.engine.checkpoint.snapshot_format import (
    SnapshotHead,
    SnapshotTopic,
    encode_keys,
    encode_topic,
    epoch_floor_section,
    snapshot_parts,
)
from topicsd.engine.ownership.departed import departed_sections
from topicsd.engine.session_log import encode_session, session_section
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.writer import Identity
from topicsd.offline.data_dir import DataDir
from topicsd.offline.empty_log import begin_empty_log
from topicsd.offline.loaded_shard import LoadedShard
from topicsd.offline.reshard.divided_keys import divided_keys
from topicsd.offline.reshard.place_files import FilePlacer
from topicsd.offline.reshard.rest import ReshardRefused, RestedShard
from topicsd.offline.reshard.swap import JOURNAL_NAME, Journal, write_journal
from topicsd.offline.table import size
from topicsd.segment.entry import COLD, DATA, DEAD, SUFFIXES, DroppedSegment, SegmentEntry, SegmentName

_NUMBER: Final = 1
"""The number of the snapshot of a new shard."""


class MovedTopic(NamedTuple):
    """A topic and the number of its old shard."""

    old: int
    entry: SnapshotTopic


class Stage:
    """The construction of the new shards of one data directory."""

    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        data_dir: DataDir,
        old: list[RestedShard],
        placement: Placement,
        cold_dir: str,
        on_step: Callable[[str], object],
    ) -> None:
        """Build nothing yet; `cold_dir` is the folder of cold segments, which are moved in it."""
        self._fs = fs
        self._clock = clock
        self._data_dir = data_dir
        self._cold_dir = cold_dir
        self._old = old
        self._placement = placement
        self._shards = shards = placement.shard_count
        self._on_step = on_step
        self._ordinal = max(one.next_ordinal for one in old)
        self.placer = FilePlacer(fs)
        epochs = [entry.epoch for one in old for entry in one.topics]
        self._epoch_floor = max([*epochs, *(one.epoch_floor for one in old)], default=0)
        self.topics: list[list[MovedTopic]] = [[] for _ in range(shards)]
        receivers: list[set[int]] = [set() for _ in old]
        for one in old:
            for entry in one.topics:
                owner = placement.shard_of(entry.topic_id)
                self.topics[owner].append(MovedTopic(one.number, entry))
                receivers[one.number].add(owner)
        self._keys = divided_keys(old, receivers, placement, clock.now_ms())
        self.ended_sessions = sum(len(one.sessions) for one in old if one.number >= shards)

    def build(self) -> None:
        """Build all new shards, and load each as a start would."""
        fs, staged = self._fs, staged_path(self._data_dir.path)
        instance = self._data_dir.layout.instance_bytes
        layout = create_data_dir(fs, staged, self._shards, instance)
        journal = Journal(
            shards_before=len(self._old),
            shards=self._shards,
            cold_dir=os.path.abspath(self._cold_dir) if self._cold_dir else "",
        )
        # Before the first link in the cold directory, which nothing else would remove.
        write_journal(fs, staged, journal)
        self._refuse_full_disk(os.path.join(staged, JOURNAL_NAME))
        for number in range(self._shards):
            self._build_shard(number, shard_paths(staged, number))
            count = len(self.topics[number])
            self._on_step(f"new shard {number:02d}: {count:,} topic{'s' * (count != 1)}")
        self._place_quarantine(shard_paths(staged, 0))
        if self._data_dir.placement.version:
            write_placement(fs, staged, self._placement)
        built = self._data_dir._replace(
            path=staged, layout=layout, placement=self._placement, shards=list(range(self._shards))
        )
        for number in built.shards:
            self._check(built, number)
        fs.sync_dir(staged)

    def _build_shard(self, number: int, paths: ShardPaths) -> None:
        fs, identity = self._fs, Identity(self._data_dir.layout.instance_bytes, number)
        entries = []
        for topic in self.topics[number]:
            self._place_segments(topic, number, paths)
            entries.append(self._entry(topic.entry))
        fs.sync_dir(paths.topics)
        place = begin_empty_log(fs, self._clock, paths, identity, self._ordinal)
        head = SnapshotHead(
            instance=identity.instance,
            shard=number,
            number=_NUMBER,
            start=place,
            end_ordinal=self._ordinal,
            end_file=self._ordinal,
            end_offset=FILE_HEADER_BYTES,
            created_ms=self._clock.now_ms(),
            topic_count=len(entries),
            sections=self._sections(number),
        )
        parts = snapshot_parts(
            head, [encode_topic(one) for one in entries], [encode_keys(one) for one in self._keys[number]]
        )
        write_snapshot(fs, paths, _NUMBER, parts)
        lines = [topic_line(entry, entry.head) for entry in entries]
        write_manifest(fs, paths, manifest_parts(manifest_head(head, self._data_dir.store_url), lines))
        fs.sync_dir(paths.root)

    def _entry(self, entry: SnapshotTopic) -> SnapshotTopic:
        """Return an entry without places in the old log."""
        segments = [msgspec.structs.replace(one, since_ordinal=0) for one in entry.segments]
        return msgspec.structs.replace(entry, complete_to=self._ordinal, segments=segments)

    def _sections(self, number: int) -> dict[str, bytes]:
        placement = self._placement
        departed = {
            one.name: one
            for old in self._old
            for one in old.departed
            if placement.shard_of(one.topic_id) == number
        }
        to_forget = {
            one: None for old in self._old for one in old.to_forget if placement.owner_of(one.name) == number
        }
        sections = epoch_floor_section(self._epoch_floor) | departed_sections(departed, to_forget)
        objects = {} if number else self._objects_to_delete()
        if number >= len(self._old):
            return sections | files_to_drop_section([], objects)
        sections |= session_section([encode_session(one) for one in self._old[number].sessions])
        return sections | files_to_drop_section(self._files_to_drop(self._old[number]), objects)

    def _objects_to_delete(self) -> dict[str, int]:
        """Return the objects that no topic names, with those that the next checkpoints would have added."""
        objects = {stem: at for old in self._old for stem, at in old.objects_to_delete.items()}
        for old in self._old:
            for dropped in (one for later in old.files_to_drop for one in later.segments):
                if dropped.object_stem:
                    objects.setdefault(dropped.object_stem, self._clock.now_ms())
        return objects

    def _files_to_drop(self, old: RestedShard) -> list[FilesToDrop]:
        """Return the cold files to drop of topics that stay in the shard of this number."""

        def stays(topic_id: int) -> bool:
            return self._placement.shard_of(topic_id) == old.number

        segments = [
            dropped
            for one in old.files_to_drop
            for dropped in one.segments
            if _is_moved(dropped) and stays(dropped.name.topic_id)
        ]
        topics = [topic for one in old.files_to_drop for topic in one.topics if stays(topic[0])]
        return [FilesToDrop(_NUMBER, segments, topics)] if segments or topics else []

    def _refuse_full_disk(self, file: str) -> None:
        """Raise ReshardRefused when the segments have to be copied and do not fit; `file` is any."""
        fs, path = self._fs, self._data_dir.path
        if self.placer.can_link(file, f"{file}.link"):
            return
        needed = 0
        for topic in (topic for topics in self.topics for topic in topics):
            for segment in topic.entry.segments:
                needed += sum(fs.stat(source).size for source, _ in self._files(topic, segment, "", ""))
        free = fs.free_bytes(path)
        if needed > free:
            raise ReshardRefused(
                f"{path}: the file system has no hard links, so the segments must be copied: "
                f"{size(needed)} needed, {size(free)} free"
            )

    # -- segments ----------------------------------------------------------------------------------------

    def _place_segments(self, topic: MovedTopic, number: int, paths: ShardPaths) -> None:
        fs, entry = self._fs, topic.entry
        hot = paths.topic_dir(entry.topic_id, entry.epoch)
        cold = ""
        if self._cold_dir and topic.old != number:
            cold = shard_paths(self._cold_dir, number).topic_dir(entry.topic_id, entry.epoch)
        used: set[str] = set()
        for segment in entry.segments:
            for source, target in self._files(topic, segment, hot, cold):
                directory = os.path.dirname(target)
                if directory not in used:
                    used.add(directory)
                    self._make_dir(directory, hot)
                self.placer.place(source, target)
        for directory in used:
            fs.sync_dir(directory)

    def _make_dir(self, directory: str, hot: str) -> None:
        if directory == hot:
            self._fs.make_dir(directory)  # Synced with all other topics of the new shard.
        else:
            make_dirs(self._fs, directory)

    def _files(
        self, topic: MovedTopic, segment: SegmentEntry, hot: str, cold: str
    ) -> Iterable[tuple[str, str]]:
        """Yield source and target of each file of a segment; the cold ones of a topic that stays, stay.

        The `.data` of a cold segment in the object store is only there: a local one is a dropped file.
        """
        entry = topic.entry
        name = SegmentName(entry.topic_id, entry.epoch, segment.first_seq, segment.generation)
        hot_root = self._data_dir.paths(topic.old).root
        cold_root = shard_paths(self._cold_dir, topic.old).root if self._cold_dir else ""
        for suffix in SUFFIXES:
            key = name.key(suffix)
            if suffix == DATA and segment.tier == COLD and segment.object_stem:
                continue
            in_hot = exists(self._fs, os.path.join(hot_root, key))
            in_cold = bool(cold_root) and exists(self._fs, os.path.join(cold_root, key))
            if not in_hot and not in_cold:
                if suffix == DATA:
                    self._refuse_missing(hot_root, cold_root, key, segment)
                continue
            # Marks of a cold segment may be in the hot directory too, and newer. A second copy of any other
            # file is a leftover of an interrupted move.
            is_cold = in_cold and not segment.object_stem and (segment.tier == COLD or not in_hot)
            if in_hot and (not is_cold or suffix == DEAD):
                yield os.path.join(hot_root, key), os.path.join(hot, os.path.basename(key))
            if is_cold and cold:
                yield os.path.join(cold_root, key), os.path.join(cold, os.path.basename(key))

    def _refuse_missing(self, hot_root: str, cold_root: str, key: str, segment: SegmentEntry) -> None:
        if segment.tier == COLD:
            where = (
                f"in {cold_root}: is the cold directory mounted?"
                if cold_root
                else "; name it with --cold-dir"
            )
            raise ReshardRefused(f"cold segment {key} is missing {where}")
        advice = doctor_command(self._data_dir.path)
        raise ReshardRefused(f"{os.path.join(hot_root, key)}: missing; run: {advice}")

    # -- the rest ----------------------------------------------------------------------------------------

    def _place_quarantine(self, target: ShardPaths) -> None:
        """Place everything that was set aside in the first shard, under names that say where it was."""
        for old in self._old:
            source = self._data_dir.paths(old.number).quarantine
            for name in names_in(self._fs, source):
                new_name = name if old.number == 0 else f"shard-{old.number:02d}.{name}"
                number, path = 0, target.quarantine_file(new_name)
                while exists(self._fs, path):
                    number += 1
                    path = target.quarantine_file(f"{new_name}.{number}")
                self.placer.place_tree(os.path.join(source, name), path)
        self._fs.sync_dir(target.quarantine)

    def _check(self, built: DataDir, number: int) -> None:
        """Load a new shard as a start would; a shard that would not start is never committed."""
        with closing(LoadedShard(built, number, self._clock)) as loaded:
            loaded.walk()
            problem = loaded.problem or loaded.log.problem
            heads = {topic.entry.topic_id: topic.entry.head for topic in self.topics[number]}
            if not problem and loaded.chosen.heads != heads:
                problem = "its topics differ from those that were moved"
            if problem:
                raise ReshardRefused(f"new shard {number:02d} would not start: {problem}")


def _is_moved(dropped: DroppedSegment) -> bool:
    """Return whether an earlier version moved the files of a segment to the cold directory."""
    return dropped.tier == COLD and not dropped.object_stem
