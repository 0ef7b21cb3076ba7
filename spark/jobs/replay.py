"""The replay job: an export's Parquet to topics, each record once and in order.

Why exactly once: a round of `replay_book.py` is a numbered write (`txnVersion`), which the sink applies once
however often it runs. The numbers rise, and a round has the same runs of the export each time.

Why in order: all rows of a topic are in one partition, sorted by time and seq. The cost is a shuffle of the
export, and that one task writes one topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import col, concat, lit

from spark.errors import SourceError
from spark.jobs.export import FILE_SCHEMA, OnStep
from spark.jobs.export_folder import ExportFolder, ExportManifest, FolderBusy
from spark.jobs.replay_book import ReplayBook, Round, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS_MAX = 64


def replay(
    session: SparkSession, source: ExportFolder, target: Target, api_key: str, name: str, on_step: OnStep
) -> int:
    """Send what was not sent yet; return the number of records sent."""
    try:
        with source.only_writer():
            source.settle()
    except FolderBusy:
        on_step("an export is writing to this folder; the replay leaves out its run")
    manifests = {one.run: one for one in source.manifests()}
    if not manifests:
        raise SourceError(f"{source.folder.uri}: not an export folder: it has no manifest")
    book = ReplayBook(source.folder, name)
    sent = 0
    for one in book.rounds(list(manifests.values()), target):
        runs = [manifests[run] for run in range(one.first_run, one.last_run + 1)]
        records = sum(run.records for run in runs)
        what = f"runs {one.first_run} to {one.last_run}" if len(runs) > 1 else f"run {one.first_run}"
        on_step(f"{what}: sending {records:,} records to {target}")
        if records:
            send(session, source, runs, one, api_key, f"{manifests[1].export}.{name}")
        book.mark_done(one)
        sent += records
    on_step(f"sent {sent:,} records" if sent else f"all records were sent before to {target}")
    return sent


def send(
    session: SparkSession,
    source: ExportFolder,
    runs: list[ExportManifest],
    one: Round,
    api_key: str,
    writer_id: str,
) -> None:
    topics = {name for run in runs for name in run.topics}
    partitions = 1 if one.target.topic else min(PARTITIONS_MAX, len(topics))
    frame = in_order(rows_of(session, source, runs), one.target, partitions)
    writer = frame.write.format("topicsd").mode("append").option("url", one.target.url)
    if api_key:
        writer = writer.option("apiKey", api_key)
    writer.option("txnAppId", writer_id).option("txnVersion", str(one.number)).save()


def rows_of(session: SparkSession, source: ExportFolder, runs: list[ExportManifest]) -> DataFrame:
    files = [source.folder.uri_of(name) for run in runs for name in run.files]
    reader = session.read.schema(FILE_SCHEMA).option("basePath", source.folder.uri)
    return reader.parquet(*files)


def in_order(rows: DataFrame, target: Target, partitions: int) -> DataFrame:
    """Return the rows with the sink's columns, one partition for each destination, in order."""
    into = lit(target.topic) if target.topic else concat(lit(target.prefix), col("topic"))
    return (
        rows.withColumn("into", into)
        .repartition(partitions, "into")
        # Times never decrease within a topic, even if it was recreated and its seqs began again.
        .sortWithinPartitions("into", "ts", "topic", "seq")
        .select(col("into").alias("topic"), "tag", "node", "meta", "data", "data_bytes")
    )
