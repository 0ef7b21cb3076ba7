"""The function that runs each job, from its parsed command line."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spark.chart.stats_chart import stats_chart
from spark.jobs.command_line import api_key, source_options
from spark.jobs.compact import compact
from spark.jobs.cursor_lags import cursor_lags
from spark.jobs.export import OnStep, export
from spark.jobs.export_folder import ExportFolder
from spark.jobs.hadoop_folder import HadoopFolder
from spark.jobs.hour_stats import hours_of, sums_of
from spark.jobs.job_source import JobSource
from spark.jobs.replay import replay
from spark.jobs.replay_book import Target
from spark.jobs.stats_text import stats_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JobRunner = Callable[["SparkSession", Namespace, OnStep], str]


def run_export(session: SparkSession, args: Namespace, on_step: OnStep) -> str:
    source = JobSource(source_options(args))
    export(session, source, _folder(session, args.out), args.begin, args.end, on_step)
    return ""


def run_stats(session: SparkSession, args: Namespace, on_step: OnStep) -> str:
    # The statistics report lost records, so they must not fail the query.
    options = {"failOnDataLoss": "false", **source_options(args)}
    source = JobSource(options)
    ranges = source.ranges(args.begin, args.end)
    is_whole = args.begin.strip().lower() == "earliest"
    starts = {name: 1 if is_whole else one.start for name, one in ranges.items()}
    hours = hours_of(session, source, ranges, starts)
    sums = sums_of(hours, ranges, starts)
    lags = cursor_lags(options, sorted(ranges))
    if args.png:
        Path(args.png).write_bytes(stats_chart(sums, hours, lags))
        on_step(f"wrote the chart to {args.png}")
    return stats_text(sums, hours, lags)


def run_replay(session: SparkSession, args: Namespace, on_step: OnStep) -> str:
    target = Target(args.url, args.into, args.prefix or "")
    replay(session, _folder(session, args.folder), target, api_key(), args.name, on_step)
    return ""


def run_compact(session: SparkSession, args: Namespace, on_step: OnStep) -> str:
    folder = _folder(session, args.out)
    manifest = compact(session, JobSource(source_options(args)), folder, args.begin, args.end, on_step)
    if manifest is not None and (args.into or args.prefix is not None):
        target = Target(args.to_url or args.url, args.into, args.prefix or "")
        replay(session, folder, target, api_key(), args.name, on_step)
    return ""


RUNNERS: dict[str, JobRunner] = {
    "export": run_export,
    "stats": run_stats,
    "replay": run_replay,
    "compact": run_compact,
}


def _folder(session: SparkSession, uri: str) -> ExportFolder:
    return ExportFolder(HadoopFolder(session, uri))
