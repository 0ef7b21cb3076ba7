"""A stream: where it stands is a seq by topic, and every batch is what is on the disk between two such
places.

So a batch that Spark plans again after a restart, from the same two offsets, has the same rows, as far as
nobody deleted any meanwhile. While a batch runs, what the shards drop is kept by a reader's lock of the
driver, from its planning up to the question for the next one.

Must not know: how records are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.admission import shares
from spark.kept_store import hold_files
from spark.plan import Wanted, partitions_for, read, view_of
from spark.positions import check_topics, recreated, refuse_loss, start_of
from spark.progress_cursor import publish
from spark.read_options import ReadOptions
from spark.server_view import ServerTopic, ServerView
from spark.shard_view import DirectoryView, TopicView
from spark.source_error import DataLoss
from spark.stream_offset import Place, Places, decode, encode


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._goal: Places | None = None
        """Where a query with the trigger availableNow ends."""
        self._latest: dict[str, Any] | None = None
        self._held: ExitStack | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks, which hold locks of their own."""
        return {**self.__dict__, "_held": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  PySpark's name.
        with view_of(self._options) as view:
            check_topics(view, self._options)
            places = {
                name: Place(topic.epoch, start_of(topic, self._options))
                for name, topic in view.topics.items()
            }
            return encode(self._starts(view, places))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  PySpark's name.
        if self._options.max_offsets:
            return ReadMaxRows(self._options.max_offsets)
        return ReadMaxBytes(self._options.max_bytes) if self._options.max_bytes else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  PySpark's name.
        with view_of(self._options) as view:
            self._goal = _ends(view)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._let_go()
        with view_of(self._options) as view:
            self._latest = encode(_ends(view))
            starts = self._starts(view, decode(start))
            ends = {name: self._end(view.topics[name], place) for name, place in starts.items()}
            ends = self._within(view, starts, ends, limit)
        return encode(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  PySpark's name.
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options, ends = self._options, decode(end)
        self._let_go()
        if options.path:
            with DirectoryView(options) as looked_at:
                self._hold(looked_at)
        # Only what is named by a manifest that was read under the lock is sure to stay.
        with view_of(options) as view:
            starts = self._starts(view, decode(start))
            wanted = []
            for name, place in ends.items():
                topic = view.topics.get(name)
                if topic is None or topic.epoch != place.epoch:
                    if options.fail_on_data_loss:
                        raise DataLoss(f'topic "{name}" was deleted or made anew while a batch was planned')
                    continue
                first = starts[name].offset
                if options.fail_on_data_loss:
                    refuse_loss(topic, first, place.offset)
                wanted.append(Wanted(name, first, place.offset - 1))
            return partitions_for(view, wanted, options, self._schema)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark says it one batch late, and never of the last one."""
        if self._options.progress_cursor:
            publish(self._options, decode(end))

    def stop(self) -> None:
        self._let_go()

    def _hold(self, view: DirectoryView) -> None:
        self._held = ExitStack()
        for shard in sorted({topic.shard for topic in view.topics.values()}):
            hold_files(self._held, view.data_dir, shard)

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def _starts(self, view: DirectoryView | ServerView, places: Places) -> Places:
        """Where each topic goes on; one that came meanwhile, or was made anew, from its earliest record."""
        if self._options.fail_on_data_loss:
            for name in places:
                if name not in view.topics:
                    raise DataLoss(f'topic "{name}" was deleted; failOnDataLoss=false goes on without it')
        starts = {}
        for name, topic in view.topics.items():
            place = places.get(name)
            if place is not None and place.epoch != topic.epoch:
                if self._options.fail_on_data_loss:
                    raise recreated(topic, place.offset)
                place = None
            elif place is not None and self._options.fail_on_data_loss:
                refuse_loss(topic, place.offset, place.offset)
            earliest = Place(topic.epoch, min(topic.earliest, topic.end))
            starts[name] = earliest if place is None else place
        return starts

    def _end(self, topic: TopicView | ServerTopic, start: Place) -> Place:
        end = topic.end
        if self._goal is not None:
            goal = self._goal.get(topic.name)
            end = start.offset if goal is None or goal.epoch != start.epoch else min(end, goal.offset)
        return Place(start.epoch, max(start.offset, end))

    def _within(
        self, view: DirectoryView | ServerView, starts: Places, ends: Places, limit: ReadLimit
    ) -> Places:
        """The ends, no further than the limit."""
        if isinstance(limit, ReadAllAvailable):
            return ends
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if rows_max:
            taken = shares({name: ends[name].offset - starts[name].offset for name in ends}, rows_max)
            ends = {name: Place(end.epoch, starts[name].offset + taken[name]) for name, end in ends.items()}
        if bytes_max:
            waiting = {
                name: view.topics[name].bytes_between(starts[name].offset, end.offset)
                for name, end in ends.items()
            }
            taken = shares(waiting, bytes_max)
            ends = {
                name: end
                if taken[name] >= waiting[name]
                else Place(
                    end.epoch,
                    view.topics[name].end_within(starts[name].offset, end.offset, taken[name]),
                )
                for name, end in ends.items()
            }
        return ends


def _ends(view: DirectoryView | ServerView) -> Places:
    return {name: Place(topic.epoch, topic.end) for name, topic in view.topics.items()}
