"""The stream reader with bounded batches and the trigger availableNow (PySpark 4.2 and newer)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.source.admission import shares
from spark.source.plan import view_of
from spark.source.read_options import ReadOptions
from spark.source.stream_offset import TopicOffset, TopicOffsets, decode, encode
from spark.source.stream_reader import StreamReader, ends_of
from spark.view.query_topic import QueryTopic
from spark.view.server_view import ServerView
from spark.view.topic_view import FileView


class BoundedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._goal: TopicOffsets | None = None
        """Where a query with the trigger availableNow ends."""
        self._latest: dict[str, Any] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  PySpark's name.
        if self._options.max_offsets:
            return ReadMaxRows(self._options.max_offsets)
        return ReadMaxBytes(self._options.max_bytes) if self._options.max_bytes else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  PySpark's name.
        with view_of(self._options) as view:
            self._goal = ends_of(view)

    def latestOffset(  # noqa: N802  PySpark's name.
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        assert start is not None, "PySpark 4.2 and newer pass `start`"
        self._release_locks()
        with view_of(self._options) as view:
            self._latest = encode(ends_of(view))
            starts = self._starts(view, decode(start))
            ends = {name: self._end(view.topics[name], first) for name, first in starts.items()}
            return encode(self._within(view, starts, ends, limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  PySpark's name.
        return self._latest

    def _end(self, topic: QueryTopic, start: TopicOffset) -> TopicOffset:
        end = super()._end(topic, start)
        if self._goal is None:
            return end
        goal = self._goal.get(topic.name)
        if goal is None or goal.epoch != start.epoch:
            return start
        return TopicOffset(start.epoch, max(start.offset, min(end.offset, goal.offset)))

    def _within(
        self,
        view: FileView | ServerView,
        starts: TopicOffsets,
        ends: TopicOffsets,
        limit: ReadLimit | None,
    ) -> TopicOffsets:
        """Return the ends, lowered to the limit."""
        if limit is None or isinstance(limit, ReadAllAvailable):
            return ends
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if rows_max:
            counts = shares({name: ends[name].offset - starts[name].offset for name in ends}, rows_max)
            ends = {
                name: TopicOffset(end.epoch, starts[name].offset + counts[name]) for name, end in ends.items()
            }
        if bytes_max:
            backlog = {
                name: view.topics[name].bytes_between(starts[name].offset, end.offset)
                for name, end in ends.items()
            }
            counts = shares(backlog, bytes_max)
            ends = {
                name: end
                if counts[name] >= backlog[name]
                else TopicOffset(
                    end.epoch,
                    view.topics[name].end_within(starts[name].offset, end.offset, counts[name]),
                )
                for name, end in ends.items()
            }
        return ends
