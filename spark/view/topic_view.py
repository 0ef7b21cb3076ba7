"""The topics of a query as a `diff` request would see them, and what all views of files have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Self

from spark.errors import DamagedRecord, SourceError
from spark.source.admission import bytes_between, end_within
from spark.source.read_options import Selection
from spark.view.object_place import ObjectPlace
from spark.view.shared_topics import SharedTopicView
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.topic import Topic
from topicsd.log.walk import WalkedFile
from topicsd.segment.entry import SegmentDamage
from topicsd.segment.reader import SegmentReader
from topicsd.store.object_store import StoreRefused, StoreUnavailable

logger = logging.getLogger("topicsd.spark")


class TopicView(NamedTuple):
    topic: Topic
    shard: int
    durable: int
    """The last seq that is on the disk itself."""
    segments: SegmentReader
    wal_files: list[WalkedFile]
    """The log of its shard; empty without one."""

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def head(self) -> int:
        """The last seq that was assigned, whether it is on disk or not."""
        return self.topic.head

    @property
    def end(self) -> int:
        """The seq after the last readable one."""
        return self.durable + 1

    @property
    def epoch(self) -> int:
        return self.topic.epoch

    @property
    def earliest(self) -> int:
        return self.topic.earliest_seq

    def seq_at(self, ts: int) -> int | None:
        """Return the first seq whose record is not older than `ts`.

        Calls may pass times in any order, unlike the expiry lookup.
        """
        for run in self.topic.runs:
            if run.first_seq < run.next_seq:
                find = run.find_seq_at_or_after if isinstance(run, SealedRun) else run.seq_at_or_after
                seq = find(ts)
                if seq < run.next_seq:
                    return max(seq, self.topic.earliest_seq)
        return None

    def seqs_between(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """Return the first and last seq that cover the records of this time range.

        Other records of the same segments may be included: indexes are not read.
        """
        first, last = self.end, 0
        for run in self.topic.runs:
            if isinstance(run, SealedRun):
                if run.entry.last_ts >= from_ms and run.entry.first_ts <= to_ms:
                    first, last = min(first, run.first_seq), run.next_seq - 1
            else:
                low, high = run.seq_at_or_after(from_ms), run.seq_at_or_after(to_ms + 1) - 1
                if low <= high:
                    first, last = min(first, low), high
        return first, last

    def lost(self, start: int, end: int) -> LostRange | None:
        """Return the first lost range from `start` up to `end`; deleted records are not lost."""
        topic = self.topic
        if start < topic.evict_floor:
            return LostRange(start, topic.evict_floor - 1, topic.reason_for(start))
        lost = topic.lost.next_after(start - 1)
        if lost is None or lost.first >= end:
            return None
        return LostRange(max(start, lost.first), lost.last, lost.reason)

    def bytes_between(self, start: int, end: int) -> int:
        return bytes_between(self.topic, start, end)

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        return end_within(self.topic, start, end, bytes_max)


class FileView:
    """The topics of a query whose records are in files or in objects. Close it after use."""

    def __init__(self, location: str) -> None:
        self.location = location
        """Where the topics are, for messages."""
        self._stack = ExitStack()
        self.departed: dict[str, str] = {}
        """Where the topics are that these files have no right to any more, by name, as sentences."""
        self.topics: dict[str, TopicView | SharedTopicView] = {}
        """The topics that the options select, by name, sorted."""

    def _select(self, views: Iterable[TopicView], selection: Selection) -> None:
        for view in sorted(views, key=lambda view: view.name):
            if not selection.matches(view.name):
                continue
            if not view.topic.is_ephemeral:
                self.topics[view.name] = view
            elif selection.pattern:
                logger.info("read: topic skipped: an ephemeral topic has no files  topic=%s", view.name)
            else:
                raise SourceError(
                    f'topic "{view.name}" is ephemeral: it has no files; set url to read it from the server'
                )

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close the view, and say what happened in words for the user, when its constructor fails."""
        try:
            yield
        except BaseException as error:
            self.__exit__(type(error), error)
            raise

    def hold(self, stack: ExitStack) -> None:
        """Keep the files of the topics from being dropped until the stack is closed."""

    def place_of(self, shard: int, keys: Iterable[str]) -> ObjectPlace | None:
        """Return the place of a shard's files with these keys; None when a task reads a data directory."""
        return None

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        self.close()
        if isinstance(error, SegmentDamage):
            # Looking up a position by time or size needs a segment's index.
            message = f"{self.location}: {error}"
            raise DamagedRecord(
                f"{message}; if the object store has moved, set storeUrl to its URL"
            ) from None
        if isinstance(error, StoreUnavailable):
            raise SourceError(
                f"{self.location}: the object store does not answer: {error}; check its URL, and "
                "its credentials in the environment"
            ) from None
        if isinstance(error, StoreRefused):
            raise SourceError(f"{self.location}: the object store refuses a read: {error}") from None
