"""Adopting: a bundle becomes a topic of this shard, with its name, id and epoch: positions stay valid.

The order of the steps is the guarantee:

A1  A directory of the same incarnation, which the topic may have left here earlier, is dropped first, which
    takes two checkpoints. So no list of files to drop can name the new files.
A2  The directory gets an empty bundle file before anything else, and their names are synced. A directory with
    a bundle file, but without a topic, is therefore what an unfinished adopt has left, and each start drops
    it.
A3  The segment files follow, synced. Up to here `prepare` does everything ahead, while the topic is served
    elsewhere, with the segments that are sealed already.
A4  The name is taken in memory; requests for it are deferred until the end. The remaining segment files are
    written, then the content of the bundle file, in place: its name is synced already, and nothing reads it
    before the frame. Everything is synced, and the names of new segment files last.
A5  The ADOPT frame is logged and synced. It is the commit point: before it the shard has nothing of the
    topic, after it the topic whole.
A6  The first checkpoint captures the topic like any other, and writes the marks; the bundle file is dropped
    with the older snapshot.

The shard continues at head + 1: the head of a bundle is final. Lease numbers move with the jobs. A shard
begins its own at one of 2 ** 61 numbers at random, so the same number for the same job is as unlikely as
after a restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec
import xxhash

from shared.contract.errors import TOPIC_EXISTS_INCOMPATIBLE, Refusal, limit_reached, throttled
from shared.contract.names import topic_id
from topicsd.disk.atomic_replace import exists, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, parse_topic_dir_name
from topicsd.engine.bundle.bundle_format import Bundle, SealedPart, check_bundle, encode_bundle
from topicsd.engine.bundle.gather import freeze, resume
from topicsd.engine.bundle.load_bundle import add_adopted, topic_of
from topicsd.engine.bundle.segment_source import SegmentSource, is_in_store, suffixes_of
from topicsd.engine.checkpoint.checkpointer import Checkpointer
from topicsd.engine.checkpoint.load import columns_of
from topicsd.engine.checkpoint.segment_copy import Files
from topicsd.engine.checkpoint.trash import empty_deleted, mark_deleted
from topicsd.engine.jobs import SYNCED, BackgroundJob, operation
from topicsd.engine.pending import PendingControl
from topicsd.engine.routes.route import route_names
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.write.seq_ceiling import resume_ceiling, resume_ephemeral
from topicsd.log.control_frame import Adopt
from topicsd.segment.entry import HOT, SegmentEntry, SegmentName

CHECKPOINTS_MAX: Final = 4
"""Checkpoints to wait for until the files of an earlier stay of the topic are dropped; two usually do."""

BUSY_SECONDS: Final = 0.01


class Adopter:
    """The destination of bundles of one shard."""

    def __init__(self, shard: ShardState, checkpoints: Checkpointer, files: Files) -> None:
        self._shard = shard
        self._checkpoints = checkpoints
        self._fs = files.fs
        self._paths = files.paths
        self._prepared: dict[tuple[int, int], set[str]] = {}
        """The keys of the segment files that each prepared directory has, by incarnation."""
        self._busy: set[tuple[int, int]] = set()
        """Incarnations whose directory a job changes now."""

    def prepare(self, part: SealedPart, source: SegmentSource) -> BackgroundJob[Refusal | None]:
        """Do ahead what needs no bundle (A1 to A3); may be repeated with more segments.

        An adopt follows, or `discard`; a start discards too.
        """
        incarnation = (topic_id(part.topic), part.epoch)
        if (other := self._shard.topics_by_id.get(incarnation[0])) is not None:
            return _refuse_id(part.topic, other)
        yield from self._wait_for(incarnation)
        self._busy.add(incarnation)
        try:
            refusal = yield from self._make_directory(incarnation)
            if refusal is None:
                yield from self._fetch(incarnation, part.segments, source)
            return refusal
        except OSError:
            yield from self._drop_directory(incarnation)
            raise
        finally:
            self._busy.discard(incarnation)

    def discard(self, topic: str, epoch: int) -> BackgroundJob[None]:
        """Drop what `prepare` has made, unless an adopt has taken it over."""
        incarnation = (topic_id(topic), epoch)
        yield from self._wait_for(incarnation)
        if incarnation not in self._prepared:
            return
        self._busy.add(incarnation)
        try:
            yield from self._drop_directory(incarnation)
        finally:
            self._busy.discard(incarnation)

    def _wait_for(self, incarnation: tuple[int, int]) -> BackgroundJob[None]:
        while incarnation in self._busy:
            yield BUSY_SECONDS

    def adopt(
        self, bundle: Bundle, source: SegmentSource | None, *, stays_frozen: bool = False
    ) -> BackgroundJob[Topic | Refusal]:
        """Make the topic of a bundle a topic of this shard, durably; return it, or a refusal.

        `source` has the segment files; with None no segment has any here. With `stays_frozen` requests stay
        deferred until the caller resumes the topic.
        """
        check_bundle(bundle)
        refusal = self._refuse(bundle)
        if refusal is not None:
            return refusal
        shard, entry = self._shard, bundle.topic
        incarnation = (entry.topic_id, entry.epoch)
        reserved = Topic(entry.name, *incarnation, shard.intern_config(entry.config))
        reserved.last_ts = entry.last_ts
        shard.add_topic(reserved)
        freeze(shard, reserved)
        arrival = _Arrival(shard, reserved)
        self._busy.add(incarnation)
        try:
            outcome = yield from self._adopt(bundle, source, arrival)
        finally:
            arrival.end()
            self._busy.discard(incarnation)
        if isinstance(outcome, Topic) and not stays_frozen:
            resume(shard, outcome)
        return outcome

    def _refuse(self, bundle: Bundle) -> Refusal | None:
        shard, entry = self._shard, bundle.topic
        other = shard.topics_by_id.get(entry.topic_id)
        if other is not None:
            return _refuse_id(entry.name, other)
        if (entry.topic_id, entry.epoch) in self._busy:
            return throttled(f'topic "{entry.name}" is being prepared here')
        for name in route_names(entry.sections):
            if name in shard.routes:
                message = f'topic "{entry.name}" cannot be adopted: a route "{name}" exists here'
                return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"reason": "route_exists"})
        bound = shard.settings.max_topics
        if bound and len(shard.topics) >= bound:
            return limit_reached("max_topics", bound, "no more topics can be adopted")
        return shard.log.admit_control()

    def _adopt(
        self, bundle: Bundle, source: SegmentSource | None, arrival: _Arrival
    ) -> BackgroundJob[Topic | Refusal]:
        shard, entry = self._shard, bundle.topic
        incarnation = (entry.topic_id, entry.epoch)
        local = [] if source is None else [one for one in entry.segments if not source.stays(one)]
        moved = {
            one.first_seq: msgspec.structs.replace(one, tier=HOT) for one in local if not is_in_store(one)
        }
        segments = [moved.get(one.first_seq, one) for one in entry.segments]
        bundle = bundle._replace(topic=msgspec.structs.replace(entry, segments=segments))
        try:
            refusal = yield from self._make_directory(incarnation)
            if refusal is not None:
                return refusal
            if source is not None:
                yield from self._fetch(incarnation, local, source)
            outcome = yield from self._arrive(bundle, local, arrival)
        except OSError:
            # After a failure of the log the frame is in doubt, and a start may find it.
            if shard.log.failed is None:
                yield from self._drop_directory(incarnation)
            raise
        if isinstance(outcome, Topic):
            del self._prepared[incarnation]
        elif shard.log.failed is None:
            yield from self._drop_directory(incarnation)
        return outcome

    def _arrive(
        self, bundle: Bundle, local: Sequence[SegmentEntry], arrival: _Arrival
    ) -> BackgroundJob[Topic | Refusal]:
        shard, entry = self._shard, bundle.topic
        data = encode_bundle(bundle)
        used = {key for one in local for key in _keys_of(bundle.name_of(one), one)}
        unused = self._prepared[entry.topic_id, entry.epoch] - used
        topic: Topic = yield partial(self._write_bundle, bundle, data, unused)
        now_ms = shard.clock.now_ms()
        for generation in bundle.keys:
            shard.idempotency_keys.merge(columns_of(generation), now_ms)
            yield None
        control = Adopt(entry.name, entry.epoch, xxhash.xxh3_64_intdigest(data))
        outcome: Topic | Refusal = yield from operation(partial(arrival.log, topic, bundle, control))
        return outcome

    def _make_directory(self, incarnation: tuple[int, int]) -> BackgroundJob[Refusal | None]:
        """Make the directory of a topic, unless it is prepared (A1, A2)."""
        if incarnation in self._prepared:
            return None
        checkpoints = 0
        while self._checkpoints.is_to_drop(*incarnation):
            if checkpoints == CHECKPOINTS_MAX:
                return throttled("the topic was here before and its files are still being dropped")
            checkpoints += 1
            failure: Exception | None = yield from operation(self._checkpoints.start)
            if failure is not None:
                raise failure
        yield from self._drop_directory(incarnation)
        # Creates the first file of a new log: a start refuses a shard with segments and without a log.
        yield SYNCED
        yield partial(_make_synced, self._fs, self._paths, *incarnation)
        self._prepared[incarnation] = set()
        return None

    def _drop_directory(self, incarnation: tuple[int, int]) -> BackgroundJob[None]:
        fs, paths = self._fs, self._paths
        self._prepared.pop(incarnation, None)
        if not (yield partial(exists, fs, paths.topic_dir(*incarnation))):
            return
        now_ms = self._shard.clock.now_ms()
        while (yield partial(empty_deleted, fs, paths, now_ms)):
            pass
        yield partial(mark_deleted, fs, paths, *incarnation)
        while (yield partial(empty_deleted, fs, paths, now_ms)):
            pass

    def _fetch(
        self, incarnation: tuple[int, int], segments: Sequence[SegmentEntry], source: SegmentSource
    ) -> BackgroundJob[None]:
        """Put the files of segments into a prepared directory, unless it has them (A3, A4)."""
        fs, paths, present = self._fs, self._paths, self._prepared[incarnation]
        is_changed = False
        for one in segments:
            name = SegmentName(*incarnation, one.first_seq, one.generation)
            keys = _keys_of(name, one)
            if not source.stays(one) and not present.issuperset(keys):
                yield partial(_fetch_synced, fs, source, name, one, os.path.join(paths.root, name.key("")))
                present.update(keys)
                is_changed = True
        if is_changed:
            yield partial(fs.sync_dir, paths.topic_dir(*incarnation))

    def _write_bundle(self, bundle: Bundle, data: bytes, unused: Iterable[str]) -> Topic:
        """Write the bundle file and return its topic, on the disk thread."""
        fs, paths = self._fs, self._paths
        fd = fs.open_write(paths.bundle(bundle.topic.topic_id, bundle.topic.epoch))
        try:
            write_all(fs, fd, data, 0)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        for key in unused:
            # Prepared, and dropped, replaced or exported at the source since.
            fs.unlink(os.path.join(paths.root, key))
        return topic_of(self._shard, bundle)


def _keys_of(name: SegmentName, entry: SegmentEntry) -> list[str]:
    return [name.key(suffix) for suffix in suffixes_of(entry)]


def _refuse_id(name: str, other: Topic) -> Refusal:
    if other.name == name:
        message = f'topic "{name}" exists here already'
        return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"reason": "topic_exists"})
    message = f'topic "{name}" cannot be adopted: topic "{other.name}" has the same id here'
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"reason": "id_collision"})


class _Arrival:
    """The reserved name of a topic that is being adopted, until the topic takes its place."""

    def __init__(self, shard: ShardState, reserved: Topic) -> None:
        self._shard = shard
        self._reserved = reserved
        self._is_logged = False

    def log(
        self, topic: Topic, bundle: Bundle, control: Adopt, reply: Callable[[Topic | Refusal], object]
    ) -> None:
        """Log the frame; `reply` gets the topic, frozen and visible, or a refusal."""
        shard, reserved = self._shard, self._reserved

        def publish() -> None:
            topic.deferred_requests, reserved.deferred_requests = reserved.deferred_requests, None
            del shard.frozen[reserved]
            shard.remove_topic(reserved)
            topic.is_frozen = topic.visible = True
            shard.frozen[topic] = None
            topic.complete_to = pending.ordinal
            add_adopted(shard, topic, bundle)
            shard.departures.pop(topic.name, None)
            if topic.is_ephemeral:
                resume_ephemeral(topic)
            topic.next_seq = topic.head + 1
            resume_ceiling(shard, topic)
            shard.catalog_work.observe(topic, shard.clock.now_ms())
            for route in topic.routes.values():
                shard.report_route(route)
            reply(topic)

        def refuse(refusal: Refusal) -> None:
            self._is_logged = False
            reply(refusal)

        pending = PendingControl(reserved, publish, refuse)
        self._is_logged = True
        shard.join_config(reserved, control, pending)

    def end(self) -> None:
        """Release the name unless the topic has it, or gets it with a frame on its way to the disk."""
        shard, reserved = self._shard, self._reserved
        if not self._is_logged:
            shard.remove_topic(reserved)
            resume(shard, reserved)


def _make_synced(fs: Fs, paths: ShardPaths, topic_id: int, epoch: int) -> None:
    directory = paths.topic_dir(topic_id, epoch)
    fs.make_dir(directory)
    fs.close(fs.create(paths.bundle(topic_id, epoch)))
    fs.sync_dir(directory)
    fs.sync_dir(paths.topics)


def _fetch_synced(fs: Fs, source: SegmentSource, name: SegmentName, entry: SegmentEntry, path: str) -> None:
    for file in source.fetch(name, entry, path):
        fd = fs.open_write(file)
        try:
            fs.sync_data(fd)
        finally:
            fs.close(fd)


def drop_unfinished(fs: Fs, paths: ShardPaths, known: Container[tuple[int, int]], now_ms: int) -> int:
    """Drop the directories of unfinished adopts at a start; return how many there were.

    `known` has the incarnations of all topics, and of those whose files are still to be dropped.
    """
    dropped = 0
    for name in fs.list_dir(paths.topics):
        incarnation = parse_topic_dir_name(name)
        if incarnation is None or incarnation in known or not exists(fs, paths.bundle(*incarnation)):
            continue
        while empty_deleted(fs, paths, now_ms):
            pass
        mark_deleted(fs, paths, *incarnation)
        dropped += 1
    while dropped and empty_deleted(fs, paths, now_ms):
        pass
    return dropped
