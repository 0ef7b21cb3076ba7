"""The compact job: the latest record of each tag to Parquet, as an export folder with one run.

Records without a tag are in no group and are left out. A compaction into a topic is a compaction into a
folder followed by a replay of it. Each step may be interrupted and repeated; the second uses the result of
the first, whatever was written to the topics meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import col, max_by, struct

from shared.runtime.clock import Clock, SystemClock
from spark.jobs.export import READ, Say, commit, stage
from spark.jobs.export_folder import ExportFolder, Manifest
from spark.jobs.job_source import JobSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact(
    session: SparkSession,
    source: JobSource,
    target: ExportFolder,
    begin: str,
    end: str,
    say: Say,
    clock: Clock | None = None,
) -> Manifest | None:
    """Write the compaction; return its manifest, or the one already in the folder."""
    with target.only_writer():
        last = target.settle()
        if last is not None:
            say(f"{target.folder.uri} has {last.records:,} records already; compact anew into another folder")
            return last
        stretches = source.stretches(begin, end)
        stretches = {name: one for name, one in stretches.items() if one.start < one.end}
        if not stretches:
            say("there are no records")
            return None
        seqs = sum(one.end - one.start for one in stretches.values())
        say(f"the latest record of each tag in {seqs:,} seqs of {len(stretches)} topics")
        frame = latest(source.frame(session, stretches, READ))
        exported = stage(session, frame, stretches, target, 1)
        source.check_epochs(stretches)
        manifest = commit(target, None, exported, SystemClock() if clock is None else clock)
        say(f"{manifest.records:,} records in {len(manifest.files)} files of {target.folder.uri}")
        return manifest


def latest(rows: DataFrame) -> DataFrame:
    others = [name for name in rows.columns if name not in ("topic", "tag")]
    return (
        rows.where(col("tag").isNotNull())
        .groupBy("topic", "tag")
        .agg(max_by(struct(*others), col("seq")).alias("last"))
        .select("topic", "tag", "last.*")
    )
