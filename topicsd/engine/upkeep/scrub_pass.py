"""Scrub passes: once a day every sealed segment is read, so that damage is found before a reader finds it.

A pass over a large store takes hours at its bounded rate. So it runs for some time per call, and the caller
does other work in between. The first pass begins an hour after the start, so a process that is restarted
daily scrubs too.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from topicsd.engine.damage import note_segment_damage
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.upkeep.scrub import scrub
from topicsd.engine.upkeep.tiering import Throttle
from topicsd.segment.entry import SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader

logger = logging.getLogger("topicsd.engine")

SCRUB_SECONDS: Final = 86_400.0
FIRST_SCRUB_SECONDS: Final = 3600.0
"""Measured from the start."""


class ScrubPass:
    """The progress of the current pass."""

    def __init__(
        self, shard: ShardState, throttle: Throttle, exists: Callable[[Topic, SealedRun], bool]
    ) -> None:
        self._shard = shard
        self._throttle = throttle
        self._exists = exists
        self._begins_at = shard.clock.monotonic() + FIRST_SCRUB_SECONDS
        self._to_read: list[tuple[Topic, SealedRun]] = []
        """Segments still to read, the next one last."""

    def some(self, seconds: float) -> BackgroundJob[bool]:
        """Continue the pass for about `seconds`, or begin a due one; return whether more is left."""
        clock = self._shard.clock
        if clock.monotonic() >= self._begins_at:
            self._begins_at = clock.monotonic() + SCRUB_SECONDS
            self._to_read.clear()
            for topics in self._shard.topics_by_turns():
                for topic in topics:
                    self._to_read += [(topic, run) for run in topic.runs if isinstance(run, SealedRun)]
                yield None
            self._to_read.reverse()
        until = clock.monotonic() + seconds
        while self._to_read and clock.monotonic() < until:
            topic, run = self._to_read.pop()
            if self._exists(topic, run):
                yield from self._scrub_segment(topic, run)
        return bool(self._to_read)

    def _scrub_segment(self, topic: Topic, run: SealedRun) -> BackgroundJob[None]:
        entry = msgspec.structs.replace(run.entry, dead_count=run.saved_dead_count)
        work = partial(_read_whole, self._shard.segments, run.name, entry, self._throttle)
        try:
            damages = yield work
            if damages and self._shard.segments.distrust(run.name, entry):
                damages = yield work  # Of the copy in the object store; upkeep drops the local one.
        except OSError as error:
            if error.errno == errno.ECANCELED:
                raise
            logger.warning("scrub: segment %s skipped: %s", run.name.key(""), error)
            return
        for damage in damages if self._exists(topic, run) else ():
            note_segment_damage(self._shard, topic.name, damage)


def _read_whole(
    reader: SegmentReader, name: SegmentName, entry: SegmentEntry, throttle: Throttle
) -> list[SegmentDamage]:
    work: Callable[[], int] = partial(next, scrub(reader, name, entry))
    while True:
        try:
            throttle(work())
        except StopIteration as end:
            return end.value or []
