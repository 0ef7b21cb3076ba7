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
    given = parse(arguments)
    if given.command == "zip":
        write_zip(given.file)
        return 0
    try:
        with complete_installation():
            import pyspark  # noqa: F401  First: its name is the one that users know.

            from spark.jobs.before_start import check

            check(given)
        if session is not None:
            run(session, given)
        else:
            with opened(given) as own:
                run(own, given)
    except KeyboardInterrupt:
        print(f"{given.command}: stopped; the same command goes on where this one was", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if given.verbose:
            raise
        print(f"{given.command}: {plain_sentence(error)}", file=sys.stderr)
        return FAILED
    return 0


def run(session: SparkSession, given: Namespace) -> None:
    from spark.jobs.job_runs import RUNS
    from spark.jobs.task_progress import TaskProgress

    register(session)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    with TaskProgress(session, given.command) as progress:
        told = RUNS[given.command](session, given, progress.say)
    if told:
        print(told)


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
def complete_installation() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise SourceError(
            f"there is no {error.name}; install the project with it: pip install '.[spark]'"
        ) from None


@contextmanager
def opened(given: Namespace) -> Iterator[SparkSession]:
    """Open a session; on a cluster, send the package to its machines."""
    settings = dict(given.conf)
    memory = settings.pop("spark.driver.memory", "1g")
    if not given.verbose:
        os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {quiet_java()}"
        # Py4J logs an interrupted call with its trace, some of it to the root logger.
        logging.getLogger().addFilter(lambda _: False)
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with complete_installation(), uninterrupted():
        from spark.session import local_session

        session = local_session(f"topicsd {given.command}", given.master, memory, settings)
    try:
        session.sparkContext.setLogLevel("WARN" if given.verbose else "OFF")
        with tempfile.TemporaryDirectory(prefix="topicsd-spark-") as folder:
            if given.master and given.master.partition("[")[0] != "local":
                package = Path(folder, "topicsd.zip")
                write_zip(str(package))
                session.sparkContext.addPyFile(str(package))
            yield session
    finally:
        if not given.verbose:
            silence_java(session)
        session.stop()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block: a half-started Java would be left running."""
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        print("this stops as soon as Spark has started", file=sys.stderr)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def quiet_java() -> str:
    """Return the Java option that silences Spark's log before its level can be set.

    A Spark setting would override one that the user made for a cluster.
    """
    place = Path(__file__).resolve().parent / "java" / "quiet_log4j2.properties"
    return f"-Dlog4j2.configurationFile={place.as_uri()}"


def silence_java(session: SparkSession) -> None:
    """Close Java's stderr, which relays the trace of a PySpark daemon that outlives Java."""
    jvm: Any = session.sparkContext._jvm
    with suppress(Exception):
        jvm.java.lang.System.err.close()


if __name__ == "__main__":
    sys.exit(main())
