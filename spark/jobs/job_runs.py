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
from spark.jobs.export import Say, export
from spark.jobs.export_folder import ExportFolder
from spark.jobs.hadoop_folder import HadoopFolder
from spark.jobs.hour_stats import hours_of, sums_of
from spark.jobs.job_source import JobSource
from spark.jobs.replay import replay
from spark.jobs.replay_book import Target
from spark.jobs.stats_text import stats_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[["SparkSession", Namespace, Say], str]


def run_export(session: SparkSession, given: Namespace, say: Say) -> str:
    source = JobSource(source_options(given))
    export(session, source, _folder(session, given.out), given.begin, given.end, say)
    return ""


def run_stats(session: SparkSession, given: Namespace, say: Say) -> str:
    # The statistics report lost records, so they must not fail the query.
    options = {"failOnDataLoss": "false", **source_options(given)}
    source = JobSource(options)
    stretches = source.stretches(given.begin, given.end)
    is_whole = given.begin.strip().lower() == "earliest"
    starts = {name: 1 if is_whole else one.start for name, one in stretches.items()}
    hours = hours_of(session, source, stretches, starts)
    sums = sums_of(hours, stretches, starts)
    lags = cursor_lags(options, sorted(stretches))
    if given.png:
        Path(given.png).write_bytes(stats_chart(sums, hours, lags))
        say(f"the picture is in {given.png}")
    return stats_text(sums, hours, lags)


def run_replay(session: SparkSession, given: Namespace, say: Say) -> str:
    target = Target(given.url, given.into, given.prefix or "")
    replay(session, _folder(session, given.folder), target, api_key(), given.name, say)
    return ""


def run_compact(session: SparkSession, given: Namespace, say: Say) -> str:
    folder = _folder(session, given.out)
    found = compact(session, JobSource(source_options(given)), folder, given.begin, given.end, say)
    if found is not None and (given.into or given.prefix is not None):
        target = Target(given.to_url or given.url, given.into, given.prefix or "")
        replay(session, folder, target, api_key(), given.name, say)
    return ""


RUNS: dict[str, Run] = {
    "export": run_export,
    "stats": run_stats,
    "replay": run_replay,
    "compact": run_compact,
}


def _folder(session: SparkSession, uri: str) -> ExportFolder:
    return ExportFolder(HadoopFolder(session, uri))
