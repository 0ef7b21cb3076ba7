"""The stream reader: a batch holds the durable records between two positions, a seq by topic.

Here a batch takes everything available; since PySpark 4.2 it can be bounded (`bounded_stream.py`). A batch
that Spark plans again after a restart, from the same two offsets, has the same rows unless records were
deleted in between. While a batch runs, a reader's lock of the driver keeps the files that the shards drop;
the driver holds it from the planning of the batch until Spark asks for the next offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark.errors import DataLoss
from spark.sink.progress_cursor import publish
from spark.source.offsets import check_topics, recreation_loss, refuse_loss, start_of
from spark.source.plan import QueryRange, partitions_for, read, view_of
from spark.source.read_options import ReadOptions
from spark.source.stream_offset import TopicOffset, TopicOffsets, decode, encode
from spark.view.query_topic import QueryTopic
from spark.view.server_view import ServerView
from spark.view.topic_view import FileView

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


class StreamReader(DataSourceStreamReader):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._locks: ExitStack | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the tasks, without locks: tasks hold their own."""
        return {**self.__dict__, "_locks": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  PySpark's name.
        with view_of(self._options) as view:
            check_topics(view, self._options)
            offsets = {
                name: TopicOffset(topic.epoch, start_of(topic, self._options))
                for name, topic in view.topics.items()
            }
            return encode(self._starts(view, offsets))

    def latestOffset(  # noqa: N802  PySpark's name.
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of everything available.

        PySpark passes `start` since 4.2. Without it, an invalid start is reported when the batch is planned.
        """
        self._release_locks()
        with view_of(self._options) as view:
            if start is None:
                return encode(ends_of(view))
            starts = self._starts(view, decode(start))
            return encode({name: self._end(view.topics[name], offset) for name, offset in starts.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options, ends = self._options, decode(end)
        self._release_locks()
        if options.is_directory:
            with view_of(options) as lock_view:
                assert isinstance(lock_view, FileView)
                self._locks = ExitStack()
                lock_view.hold(self._locks)
        # Files are sure to stay only if the manifest that names them was read under the lock.
        with view_of(options) as view:
            starts = self._starts(view, decode(start))
            ranges = []
            for name, offset in ends.items():
                topic = view.topics.get(name)
                if topic is None or topic.epoch != offset.epoch:
                    if options.fail_on_data_loss:
                        raise DataLoss(f'topic "{name}" was deleted or recreated while the batch was planned')
                    continue
                first = starts[name].offset
                if options.fail_on_data_loss:
                    refuse_loss(topic, first, offset.offset)
                ranges.append(QueryRange(name, first, offset.offset - 1))
            return partitions_for(view, ranges, options, self._schema)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the position; Spark calls this one batch late, and never for the last batch."""
        if self._options.progress_cursor:
            publish(self._options, decode(end))

    def stop(self) -> None:
        self._release_locks()

    def _release_locks(self) -> None:
        if self._locks is not None:
            self._locks.close()
            self._locks = None

    def _starts(self, view: FileView | ServerView, offsets: TopicOffsets) -> TopicOffsets:
        """Return where each topic resumes; a new or recreated topic begins at its earliest record."""
        if self._options.fail_on_data_loss:
            for name in offsets:
                if name not in view.topics:
                    raise DataLoss(
                        f'topic "{name}" was deleted; set failOnDataLoss=false to continue without it'
                    )
        starts = {}
        for name, topic in view.topics.items():
            offset = offsets.get(name)
            if offset is not None and offset.epoch != topic.epoch:
                if self._options.fail_on_data_loss:
                    raise recreation_loss(topic, offset.offset)
                offset = None
            elif offset is not None and self._options.fail_on_data_loss:
                refuse_loss(topic, offset.offset, offset.offset)
            earliest = TopicOffset(topic.epoch, min(topic.earliest, topic.end))
            starts[name] = earliest if offset is None else offset
        return starts

    def _end(self, topic: QueryTopic, start: TopicOffset) -> TopicOffset:
        return TopicOffset(start.epoch, max(start.offset, topic.end))


def ends_of(view: FileView | ServerView) -> TopicOffsets:
    return {name: TopicOffset(topic.epoch, topic.end) for name, topic in view.topics.items()}
