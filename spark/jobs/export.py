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
from spark.jobs.export_folder import Exported, ExportFolder, Manifest, places_after
from spark.jobs.job_source import JobSource, Stretch
from spark.source.stream_offset import encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ = "seq bigint, ts timestamp, tag string, node string, meta string, data string, topic string"
WRITTEN = f"{READ}, day date"
"""The schema for readers of the folder; Spark would guess number types for some topic names."""

Say = Callable[[str], None]


def export(
    session: SparkSession,
    source: JobSource,
    target: ExportFolder,
    begin: str,
    end: str,
    say: Say,
    clock: Clock | None = None,
) -> Manifest | None:
    """Export new records; return the run's manifest, or None if there was nothing to note."""
    with target.only_writer():
        last = target.settle()
        known = {} if last is None else last.places
        stretches = source.stretches(begin, end, known)
        filled = {name: one for name, one in stretches.items() if one.start < one.end}
        # An empty topic is noted once, so that the next run knows where `latest` was.
        noted = {name: one for name, one in stretches.items() if name not in known and name not in filled}
        if not filled:
            say("there is nothing new")
        if not filled and not noted:
            return None
        exported = {name: Exported(one.epoch, one.start, one.end, 0) for name, one in noted.items()}
        run = 1 if last is None else last.run + 1
        if filled:
            seqs = sum(one.end - one.start for one in filled.values())
            say(f"run {run}: {len(filled)} topics, {seqs:,} seqs")
            exported |= stage(session, source.frame(session, filled, READ), filled, target, run)
            source.check_epochs(filled)
        manifest = commit(target, last, exported, SystemClock() if clock is None else clock)
        if filled:
            files = f"{len(manifest.files)} files of {target.folder.uri}"
            say(f"run {run}: {manifest.records:,} records in {files}")
        return manifest


def stage(
    session: SparkSession, frame: DataFrame, stretches: Mapping[str, Stretch], target: ExportFolder, run: int
) -> dict[str, Exported]:
    """Write the rows to staging; return what was written of each topic, as read back."""
    staging = target.staging(run)
    ordered = frame.withColumn("day", to_date("ts")).sortWithinPartitions("topic", "day", "seq")
    ordered.write.mode("overwrite").partitionBy("topic", "day").parquet(staging)
    read_back = session.read.schema(WRITTEN).parquet(staging)
    counted = {row.topic: row["count"] for row in read_back.groupBy("topic").count().collect()}
    return {
        name: Exported(one.epoch, one.start, one.end, counted.get(name, 0)) for name, one in stretches.items()
    }


def commit(
    target: ExportFolder, last: Manifest | None, exported: dict[str, Exported], clock: Clock
) -> Manifest:
    run = 1 if last is None else last.run + 1
    manifest = Manifest(
        run=run,
        export=uuid.uuid4().hex if last is None else last.export,
        made_ms=clock.now_ms(),
        topics=exported,
        place=encode(places_after(last, exported)),
        files=[place for _, place in target.staged_files(run)],
    )
    target.commit(manifest)
    return manifest
