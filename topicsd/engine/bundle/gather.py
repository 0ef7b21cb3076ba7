"""Gathering: one topic of a running shard as a bundle, while its requests wait and its reads continue.

G1  A frozen topic does not change: each request for it is deferred, and background jobs leave it alone. Only
    reads may evict its records by age, as they would anywhere.
G2  First everything of the topic that has joined the log is synced and published. Then the topic is captured
    like by a checkpoint, its tail is copied into segments, the last one is sealed, and marks are written and
    synced. No checkpoint runs beside it, since both exchange runs.
G3  Until the topic departs, nothing is lost by a crash: no snapshot names the new segments, and the log still
    has their records. A start opens the sealed segment as the active one again.
G4  Gathered *apart*, the tail is copied into segments in memory, and the shard stays as it is: nothing is
    written or installed, and no sync is waited for unless a request is on its way. The bundle has records
    that may not be synced here. They are there before the topic is placed, and are lost here, at worst, like
    any others of their class.
G5  A departure is one synced frame. Before it the shard has the topic whole, after it nothing of it; its
    files are dropped like those of a deleted topic.

For a short freeze, `prepare` runs a checkpoint first that seals the active segment. What is left to copy then
is what was written since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from shared.contract.errors import TOPIC_NOT_FOUND, Refusal, throttled
from topicsd.disk.atomic_replace import exists, read_all
from topicsd.disk.layout import ShardPaths
from topicsd.disk.memory_fs import MemoryFs
from topicsd.engine.bundle.bundle_format import Bundle, SealedPart
from topicsd.engine.bundle.contents import (
    NotMovable,
    checked_bundle,
    copied_marks,
    final_entry,
    gather_apart,
    keys_of,
    sealed_marks,
)
from topicsd.engine.bundle.segment_source import suffixes_of
from topicsd.engine.checkpoint.capture import capture, pending_requests
from topicsd.engine.checkpoint.checkpointer import Checkpointer
from topicsd.engine.checkpoint.install import install, undo_capture
from topicsd.engine.checkpoint.job import log_damages, log_floor, needs_floor, save_marks
from topicsd.engine.checkpoint.segment_copy import Files, SegmentBounds, SegmentCopy
from topicsd.engine.checkpoint.snapshot_format import KeyGeneration
from topicsd.engine.jobs import SYNCED, BackgroundJob, operation
from topicsd.engine.pending import call_reply
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import Reply, TopicDeleted
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import join_deletion, missing_topic, retry_deferred
from topicsd.segment.entry import DATA
from topicsd.segment.store import SegmentStore


class Gathered(NamedTuple):
    """A bundle, and the segment files that are in no directory."""

    bundle: Bundle
    tail: Mapping[str, bytes] = MappingProxyType({})
    """The files of the segments that were made apart, by key."""
    frozen_at: float = 0.0
    """The monotonic time at which the topic was frozen."""


class Gatherer:
    """The source of bundles of one shard. A topic is frozen from `gather` until `resume` or `depart`."""

    def __init__(self, shard: ShardState, checkpoints: Checkpointer, files: Files, hot: SegmentStore) -> None:
        self._shard = shard
        self._checkpoints = checkpoints
        self._files = files
        self._hot = hot
        self._bounds = SegmentBounds.of(shard.settings)

    def prepare(self, name: str) -> BackgroundJob[Refusal | None]:
        """Run a checkpoint that seals the topic's active segment, while requests are served."""
        topic = self._movable(name)
        if isinstance(topic, Refusal):
            return topic
        self._shard.topics_to_seal.add(topic)
        try:
            while True:
                failure: Exception | None = yield from operation(self._checkpoints.start)
                if failure is not None:
                    raise failure
                if not self._shard.is_live(topic):
                    return missing_topic(self._shard, name)
                # One that was running already may have captured the topic before.
                if not any(isinstance(run, TailRun) and run.source is not None for run in topic.runs):
                    break
        finally:
            self._shard.topics_to_seal.discard(topic)
        return None

    def gather(self, name: str) -> BackgroundJob[Gathered | Refusal]:
        """Freeze a topic and return its bundle, with all segments in the shard's directory.

        A failure or a refusal leaves the topic as it was.
        """
        return (yield from self._checkpoints.exclusive(self._gather(name, self._seal)))

    def gather_apart(self, name: str) -> BackgroundJob[Gathered | Refusal]:
        """Freeze a topic and return its bundle, with the tail apart from the shard's directory (G4).

        For a tail that fits into memory (`tail_bytes`): `prepare` precedes it.
        """
        return (yield from self._checkpoints.exclusive(self._gather(name, self._copy_apart)))

    def _movable(self, name: str) -> Topic | Refusal:
        topic = self._shard.visible_topic(name)
        if topic is None:
            return missing_topic(self._shard, name)
        if topic.deferred_requests is not None:
            return throttled(f'topic "{name}" is being moved or deleted')
        return topic

    def _gather(
        self, name: str, take: Callable[[Topic], BackgroundJob[Gathered]]
    ) -> BackgroundJob[Gathered | Refusal]:
        topic = self._movable(name)
        if isinstance(topic, Refusal):
            return topic
        freeze(self._shard, topic)
        frozen_at = self._shard.clock.monotonic()
        is_done = False
        try:
            gathered = yield from take(topic)
            is_done = True
            return gathered._replace(frozen_at=frozen_at)
        except NotMovable as error:
            return throttled(str(error))
        finally:
            if not is_done:
                resume(self._shard, topic)

    def _copy_apart(self, topic: Topic) -> BackgroundJob[Gathered]:
        shard = self._shard
        yield None
        while _is_busy(shard, topic):
            yield SYNCED
        fs, paths = MemoryFs(), ShardPaths("/shard")
        try:
            for directory in (paths.root, paths.topics):
                fs.make_dir(directory)
            files = self._files._replace(fs=fs, paths=paths)
            bundle = yield from gather_apart(shard, topic, files, topic.head)
            return Gathered(bundle, _files_of(bundle, fs, paths))
        finally:
            fs.release()

    def _seal(self, topic: Topic) -> BackgroundJob[Gathered]:
        shard = self._shard
        yield SYNCED
        assert topic.visible
        assert not topic.pending_count
        assert not topic.waiting_count
        captured = capture(topic, pending_requests(shard))
        is_installed = False
        try:
            # Both in the turn of the capture: reads may evict by age from the next turn on.
            entry = final_entry(topic, captured.entry, [], topic.head)
            marks = sealed_marks(topic)
            if needs_floor(captured):
                yield from log_floor(shard, topic)
            copy = SegmentCopy(self._files, self._bounds, captured, shard.clock.now_ms(), seals_all=True)
            yield from copy.run()
            log_damages(shard, topic, copy.damages)
            yield from save_marks(self._files, captured)
            install(shard.segments, self._hot, captured, copy.segments)
            is_installed = True
            topic.dropped = captured.dropped + topic.dropped
        finally:
            if not is_installed:
                undo_capture(captured)
        marks |= copied_marks(copy, captured)
        keys: list[KeyGeneration] = []
        for generation in keys_of(shard.idempotency_keys, topic):
            keys.append(generation)
            yield None
        entry = msgspec.structs.replace(entry, segments=copy.entries())
        return Gathered(checked_bundle(entry, marks, keys))


def tail_bytes(topic: Topic) -> int:
    """Return the bytes of the records that no sealed segment has."""
    return sum(sum(run.lengths) for run in topic.runs if isinstance(run, TailRun))


def sealed_part(topic: Topic) -> SealedPart:
    """Return the sealed segments of a topic now."""
    segments = [run.entry for run in topic.runs if isinstance(run, SealedRun)]
    return SealedPart(topic.name, topic.epoch, segments)


def _is_busy(shard: ShardState, topic: Topic) -> bool:
    """Return whether requests of the topic are on their way to the log or not published yet."""
    is_waiting = bool(topic.pending_count or topic.waiting_count)
    return is_waiting or topic in pending_requests(shard).first_ordinals


def _files_of(bundle: Bundle, fs: MemoryFs, paths: ShardPaths) -> dict[str, bytes]:
    """Return the segment files of a bundle that are in memory, by key."""
    files = {}
    for entry in reversed(bundle.topic.segments):
        name = bundle.name_of(entry)
        if not exists(fs, os.path.join(paths.root, name.key(DATA))):
            break  # The tail is the end of the topic.
        for key in map(name.key, suffixes_of(entry)):
            path = os.path.join(paths.root, key)
            files[key] = read_all(fs, path, fs.stat(path).size)
    return files


def freeze(shard: ShardState, topic: Topic) -> None:
    """Defer all requests for a topic from now on."""
    assert topic.deferred_requests is None
    topic.deferred_requests = []
    topic.is_frozen = True
    shard.frozen[topic] = None


def resume(shard: ShardState, topic: Topic) -> None:
    """End the freeze of a topic: its deferred requests run, and everything else continues."""
    assert topic.is_frozen
    topic.is_frozen = False
    shard.frozen.pop(topic, None)
    if topic.visible:
        shard.creations.note(topic.name)
    if topic.queue is not None and topic.queue.parked:
        shard.parked.add(topic)
    retry_deferred(topic)


def refuse_deferred(topic: Topic, refusal: Refusal) -> None:
    """Refuse the deferred requests of a topic; later ones are still deferred."""
    waiting = topic.deferred_requests or []
    topic.deferred_requests = []
    for request in waiting:
        call_reply(request.refuse, refusal)


def depart(shard: ShardState, topic: Topic, refusal: Refusal, reply: Reply[TopicDeleted]) -> None:
    """Remove a frozen topic from the shard durably; `reply` gets `TopicDeleted` or a `Refusal`.

    Deferred requests, and later ones, get `refusal`, and so do readers and routes that follow the topic: its
    code must say that the topic exists elsewhere, since a deletion would end them. When `reply` gets a
    refusal, the topic stays frozen.
    """
    assert topic.is_frozen
    assert refusal.code != TOPIC_NOT_FOUND
    if (not_admitted := shard.log.admit_control()) is not None:
        reply(not_admitted)
        return
    topic.is_frozen = False
    shard.departures[topic.name] = refusal

    def end(answer: TopicDeleted | Refusal) -> None:
        if isinstance(answer, Refusal):
            topic.is_frozen = True
            shard.departures.pop(topic.name, None)
        else:
            shard.frozen.pop(topic, None)
            refuse_deferred(topic, refusal)
            topic.deferred_requests = None
        call_reply(reply, answer)

    join_deletion(shard, topic, end, has_moved=True)
