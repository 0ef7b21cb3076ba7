"""`python -m spark`: the jobs that people start, on Spark here or on a cluster.

Promises: progress goes to stderr and results to stdout; what went wrong is one sentence, with the exit code
1, and a wrong command line has 2. Nothing of Spark is imported before the command line is understood.

Must not know: what the jobs do.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark.jobs.command_line import parse
from spark.jobs.plain_error import plain_sentence
from spark.package_zip import write_zip
from spark.source_error import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED, INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """In the session that is given, or in one of its own, which ends with it."""
    given = parse(arguments)
    if given.command == "zip":
        write_zip(given.file)
        return 0
    try:
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
    """PySpark finds by itself what is installed, and not what came along in a zip."""
    from pyspark.errors import AnalysisException

    from spark.source import TopicsdSource

    try:
        session.dataSource.register(TopicsdSource)
    except AnalysisException as error:
        # PySpark 4.0 takes none in the place of one that it has found.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def opened(given: Namespace) -> Iterator[SparkSession]:
    """The package goes along to the machines of a cluster."""
    try:
        from spark.session import local_session

        settings = dict(given.conf)
        memory = settings.pop("spark.driver.memory", "1g")
        session = local_session(f"topicsd {given.command}", given.master, memory, settings)
    except ModuleNotFoundError as error:
        raise SourceError(
            f"there is no {error.name}; install the project with it: pip install '.[spark]'"
        ) from None
    try:
        session.sparkContext.setLogLevel("WARN" if given.verbose else "OFF")
        with tempfile.TemporaryDirectory(prefix="topicsd-spark-") as folder:
            if given.master and given.master.partition("[")[0] != "local":
                package = Path(folder, "topicsd.zip")
                write_zip(str(package))
                session.sparkContext.addPyFile(str(package))
            yield session
    finally:
        session.stop()


if __name__ == "__main__":
    sys.exit(main())
