"""`python -m spark`: the job commands, run on a local Spark or on a cluster.

Promises: progress is written to stderr and results to stdout. An error is one sentence with exit code 1; a
wrong command line exits with 2. Spark is imported only after the command line was parsed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.errors import SourceError
from spark.jobs.command_line import parse
from spark.jobs.plain_error import plain_sentence
from spark.package_zip import write_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED, INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run the command in the given session, or in a new session that ends with it."""
    args = parse(arguments)
    if args.command == "zip":
        write_zip(args.file)
        return 0
    try:
        with missing_package_as_error():
            import pyspark  # noqa: F401  First: its name is the one that users know.

            from spark.jobs.before_start import check

            check(args)
        if session is not None:
            run(session, args)
        else:
            with new_session(args) as created:
                run(created, args)
    except KeyboardInterrupt:
        print(f"{args.command}: interrupted; run the same command again to resume", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.verbose:
            raise
        print(f"{args.command}: {plain_sentence(error)}", file=sys.stderr)
        return FAILED
    return 0


def run(session: SparkSession, args: Namespace) -> None:
    from spark.jobs.job_runs import RUNNERS
    from spark.jobs.task_progress import TaskProgress

    register(session)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    with TaskProgress(session, args.command) as progress:
        result = RUNNERS[args.command](session, args, progress.report)
    if result:
        print(result)


def register(session: SparkSession) -> None:
    """Register the data source: PySpark finds installed packages only, not those from a zip."""
    from pyspark.errors import AnalysisException

    from spark.source.source import TopicsdSource

    try:
        session.dataSource.register(TopicsdSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses to replace a source that it found itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def missing_package_as_error() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise SourceError(
            f"Python package {error.name} is missing; install it with: pip install '.[spark]'"
        ) from None


@contextmanager
def new_session(args: Namespace) -> Iterator[SparkSession]:
    """Open a session; on a cluster, send the package to its machines."""
    settings = dict(args.conf)
    memory = settings.pop("spark.driver.memory", "1g")
    if not args.verbose:
        os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {quiet_java()}"
        # Py4J logs an interrupted call with its trace, some of it to the root logger.
        logging.getLogger().addFilter(lambda _: False)
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with missing_package_as_error(), deferred_interrupt():
        from spark.session import local_session

        session = local_session(f"topicsd {args.command}", args.master, memory, settings)
    try:
        session.sparkContext.setLogLevel("WARN" if args.verbose else "OFF")
        with tempfile.TemporaryDirectory(prefix="topicsd-spark-") as folder:
            if args.master and args.master.partition("[")[0] != "local":
                package = Path(folder, "topicsd.zip")
                write_zip(str(package))
                session.sparkContext.addPyFile(str(package))
            yield session
    finally:
        if not args.verbose:
            silence_java(session)
        session.stop()


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block: a half-started Java would be left running."""
    signals: list[int] = []

    def on_interrupt(number: int, _: object) -> None:
        signals.append(number)
        print("interrupted: stopping as soon as Spark has started", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if signals:
        raise KeyboardInterrupt


def quiet_java() -> str:
    """Return the Java option that silences Spark's log before its level can be set.

    A Spark setting would override one that the user made for a cluster.
    """
    config = Path(__file__).resolve().parent / "java" / "quiet_log4j2.properties"
    return f"-Dlog4j2.configurationFile={config.as_uri()}"


def silence_java(session: SparkSession) -> None:
    """Close Java's stderr, which relays the trace of a PySpark daemon that outlives Java."""
    jvm: Any = session.sparkContext._jvm
    with suppress(Exception):
        jvm.java.lang.System.err.close()


if __name__ == "__main__":
    sys.exit(main())
