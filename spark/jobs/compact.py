"""The compact job: the latest record of each tag to Parquet, as an export folder with one run.

Records without a tag are in no group and are left out. A compaction into a topic is a compaction into a
folder followed by a replay of it. Each step may be interrupted and repeated; the second uses the result of
the first, whatever was written to the topics meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import col, max_by, struct

from shared.runtime.clock import Clock, SystemClock
from spark.jobs.export import READ_SCHEMA, OnStep, commit, stage
from spark.jobs.export_folder import ExportFolder, ExportManifest
from spark.jobs.job_source import JobSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact(
    session: SparkSession,
    source: JobSource,
    target: ExportFolder,
    begin: str,
    end: str,
    on_step: OnStep,
    clock: Clock | None = None,
) -> ExportManifest | None:
    """Write the compaction; return its manifest, or the one already in the folder."""
    with target.only_writer():
        last = target.settle()
        if last is not None:
            on_step(f"{target.folder.uri} has {last.records:,} records; use another folder to compact again")
            return last
        ranges = source.ranges(begin, end)
        ranges = {name: one for name, one in ranges.items() if one.start < one.end}
        if not ranges:
            on_step("no records to compact")
            return None
        seqs = sum(one.end - one.start for one in ranges.values())
        on_step(f"selecting the latest record of each tag in {seqs:,} seqs of {len(ranges)} topics")
        frame = latest(source.frame(session, ranges, READ_SCHEMA))
        exports = stage(session, frame, ranges, target, 1)
        source.check_epochs(ranges)
        manifest = commit(target, None, exports, SystemClock() if clock is None else clock)
        on_step(f"wrote {manifest.records:,} records to {len(manifest.files)} files in {target.folder.uri}")
        return manifest


def latest(rows: DataFrame) -> DataFrame:
    others = [name for name in rows.columns if name not in ("topic", "tag")]
    return (
        rows.where(col("tag").isNotNull())
        .groupBy("topic", "tag")
        .agg(max_by(struct(*others), col("seq")).alias("last"))
        .select("topic", "tag", "last.*")
    )
