"""The export job: topics to Parquet, each run from the end of the run before.

The rows have the native columns, with everything in a record, and day and topic. Within a file they are
ordered by topic and seq. The order of all writes is in `export_folder.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.functions import to_date

from shared.runtime.clock import Clock, SystemClock
from spark.jobs.export_folder import ExportFolder, ExportManifest, TopicExport, positions_after
from spark.jobs.job_source import JobSource, TopicRange
from spark.source.stream_offset import encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD = "seq bigint, ts timestamp, tag string, node string, meta string, data string, data_bytes binary"
READ_SCHEMA = f"{_RECORD}, topic string"
FILE_SCHEMA = f"{READ_SCHEMA}, day date"
"""The schema for readers of the folder; Spark would guess number types for some topic names."""

OnStep = Callable[[str], None]


def export(
    session: SparkSession,
    source: JobSource,
    target: ExportFolder,
    begin: str,
    end: str,
    on_step: OnStep,
    clock: Clock | None = None,
) -> ExportManifest | None:
    """Export new records; return the run's manifest, or None if there was nothing to record."""
    with target.only_writer():
        last = target.settle()
        positions = {} if last is None else last.positions
        ranges = source.ranges(begin, end, positions)
        new_ranges = {name: one for name, one in ranges.items() if one.start < one.end}
        # An empty topic is recorded once, so that the next run knows where `latest` was.
        empty_ranges = {
            name: one for name, one in ranges.items() if name not in positions and name not in new_ranges
        }
        if not new_ranges:
            on_step("no new records")
        if not new_ranges and not empty_ranges:
            return None
        exports = {name: TopicExport(one.epoch, one.start, one.end, 0) for name, one in empty_ranges.items()}
        run = 1 if last is None else last.run + 1
        if new_ranges:
            seqs = sum(one.end - one.start for one in new_ranges.values())
            on_step(f"run {run}: exporting {seqs:,} seqs of {len(new_ranges)} topics")
            exports |= stage(session, source.frame(session, new_ranges, READ_SCHEMA), new_ranges, target, run)
            source.check_epochs(new_ranges)
        manifest = commit(target, last, exports, SystemClock() if clock is None else clock)
        if new_ranges:
            files = f"{len(manifest.files)} files in {target.folder.uri}"
            on_step(f"run {run}: wrote {manifest.records:,} records to {files}")
        return manifest


def stage(
    session: SparkSession, frame: DataFrame, ranges: Mapping[str, TopicRange], target: ExportFolder, run: int
) -> dict[str, TopicExport]:
    """Write the rows to staging; return what was written of each topic, as read back."""
    staging = target.staging(run)
    ordered = frame.withColumn("day", to_date("ts")).sortWithinPartitions("topic", "day", "seq")
    ordered.write.mode("overwrite").partitionBy("topic", "day").parquet(staging)
    read_back = session.read.schema(FILE_SCHEMA).parquet(staging)
    counts = {row.topic: row["count"] for row in read_back.groupBy("topic").count().collect()}
    return {
        name: TopicExport(one.epoch, one.start, one.end, counts.get(name, 0)) for name, one in ranges.items()
    }


def commit(
    target: ExportFolder, last: ExportManifest | None, exports: dict[str, TopicExport], clock: Clock
) -> ExportManifest:
    run = 1 if last is None else last.run + 1
    manifest = ExportManifest(
        run=run,
        export=uuid.uuid4().hex if last is None else last.export,
        made_ms=clock.now_ms(),
        topics=exports,
        place=encode(positions_after(last, exports)),
        files=[place for _, place in target.staged_files(run)],
    )
    target.commit(manifest)
    return manifest
