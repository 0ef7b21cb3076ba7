"""The sink: tasks stage their rows, and the driver moves the batch when all tasks are done.

A batch therefore appears in its topics only when it is complete, and repeated work of a task never appears.
Spark runs a batch write once. It runs a micro-batch again until it has noted that the batch was done,
possibly days later; `decision.py` decides once which attempt counts. The same holds for a batch write that
has a number.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark.errors import SourceError
from spark.sink.decision import Decision, Decisions, decide
from spark.sink.publish import move_decided, move_keyed
from spark.sink.rows import SinkRows
from spark.sink.staging import StagedChunk, delete_before, open_staging, stage
from spark.sink.write_options import WriteOptions
from spark.view.server_client import ServerClient, in_path

QUERY = "sql.streaming.queryId"

logger = logging.getLogger("topicsd.spark")


class TaskReport(WriterCommitMessage):
    """The chunks that a task has staged."""

    def __init__(self, query: str, chunks: list[StagedChunk]) -> None:
        self.query = query
        self.chunks = chunks


Reports = Sequence[WriterCommitMessage | None]


class _Staging:
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def _client(self) -> ServerClient:
        return ServerClient(self._options.url, self._options.api_key, self._options.retry_s)

    def _topic(self, query: str) -> str:
        return f"{self._options.staging_prefix}{query}.staged"

    def _stage(
        self, query: str, partition: int, batches: Iterator[pa.RecordBatch], is_open: bool = False
    ) -> TaskReport:
        rows = SinkRows(self._options.topic, self._options.chunk_records, partition)
        topic = self._topic(query)
        with self._client() as client:
            staged = [stage(client, topic, chunk, rows, is_open) for chunk in rows.chunks(batches)]
        return TaskReport(query, staged)


class BatchWriter(_Staging, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self._id = str(uuid.uuid4())
        with self._client() as client:
            open_staging(client, self._topic(self._id))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._id, _task().partitionId(), iterator, is_open=True)

    def commit(self, messages: Reports) -> None:
        chunks = _chunks(messages)
        if chunks:
            move_keyed(self._client, self._topic(self._id), chunks)
        self._clear()

    def abort(self, messages: Reports) -> None:
        try:
            self._clear()
        except SourceError as refusal:
            logger.warning(
                "sink: delete of the staging topic failed, delete it: %s  topic=%s",
                refusal,
                self._topic(self._id),
            )

    def _clear(self) -> None:
        with self._client() as client:
            client.ask("DELETE", f"topics/{in_path(self._topic(self._id))}")


class NumberedWriter(_Staging, DataSourceArrowWriter):
    """A numbered batch write, applied exactly once.

    Running it again, after an interruption or after completion, does what is left of it, as for a
    micro-batch.
    """

    def __init__(self, options: WriteOptions, txn: tuple[str, int]) -> None:
        super().__init__(options)
        self._name, self._number = txn

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._name, _task().partitionId(), iterator)

    def commit(self, messages: Reports) -> None:
        with self._client() as client:
            last = Decisions(client, f"{self._options.staging_prefix}{self._name}.decided").last()
        if last is None or last.batch <= self._number:
            MicroBatches(self._options).commit(messages, self._number)

    def abort(self, messages: Reports) -> None:
        """Keep the staged chunks: the next write deletes them, as for a stream."""


class MicroBatches(_Staging):
    """The work of a stream's tasks and driver; `stream_writer.py` passes it to Spark."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query = task.getLocalProperty(QUERY)
        assert query is not None, "Spark sets the query id for every task of a stream"
        return self._stage(query, task.partitionId(), iterator)

    def commit(self, messages: Reports, batchId: int) -> None:  # noqa: N803  PySpark's name.
        """Move a complete attempt at a batch; each attempt may have another driver."""
        queries = {message.query for message in messages if isinstance(message, TaskReport)}
        if not queries:
            return
        (query,) = queries
        with self._client() as client:
            decisions = Decisions(client, f"{self._options.staging_prefix}{query}.decided")
            chunks = _chunks(messages)
            decision = self._decision(decisions, query, batchId, chunks)
            if decision is None:
                return
            move_decided(self._client, self._topic(query), decision, decisions, lambda: _new_id(query))
            # Includes everything staged so far by attempts that do not count.
            chunks_to_delete = [*chunks, *(move.chunk for move in decision.moves)]
            if chunks_to_delete:
                delete_before(
                    client, self._topic(query), max(chunk.last_seq for chunk in chunks_to_delete) + 1
                )

    def _decision(
        self, decisions: Decisions, query: str, batch: int, chunks: list[StagedChunk]
    ) -> Decision | None:
        """Return the batch's decision, or None for an undecided batch without rows."""
        decision = decisions.last()
        if (decision is None or decision.batch < batch) and chunks:
            decision = decisions.store(decide(batch, chunks, decision, lambda: _new_id(query)))
        if decision is not None and decision.batch > batch:
            raise SourceError(
                f"checkpoint: batch {batch} was planned after batch {decision.batch} of this query was "
                "written: the checkpoint is an older copy, or another driver runs the query; use a new "
                "checkpoint to start over"
            )
        return decision if decision is not None and decision.batch == batch else None

    def abort(self, messages: Reports, batchId: int) -> None:  # noqa: N803  PySpark's name.
        """Keep the staged chunks: the decision may already name them, and the next batch deletes them."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def _new_id(query: str) -> str:
    return f"spark/{query}/{uuid.uuid4().hex[:8]}"


def _chunks(messages: Reports) -> list[StagedChunk]:
    """Return the staged chunks in the order of the partitions."""
    return [chunk for message in messages if isinstance(message, TaskReport) for chunk in message.chunks]
