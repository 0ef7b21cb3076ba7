"""Spark sessions for the commands, the tests and the benchmark.

A session runs on a Java that `java_home.py` finds and serves no web page. A local session listens on
127.0.0.1 only and runs its workers on the Python of this process. PySpark finds the format `topicsd` by
itself.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from spark.java_home import java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# TCP between Java and Python takes a sixth of the time of a read; Unix sockets avoid it.
QUICK = {"spark.python.unix.domain.socket.enabled": "true"}


def local_session(
    app: str, master: str = "local[2]", memory: str = "1g", settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a session on `master`: local, a cluster, or when empty the one `spark-submit` names."""
    is_local = master.startswith("local")
    if master:
        os.environ.update(java_environment(dict(os.environ)))
    if is_local:
        # Other machines have Python at other paths.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).config("spark.driver.memory", memory)
    if master:
        builder = builder.master(master)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(LOCAL if is_local else {}),
        **QUICK,
        "spark.sql.session.timeZone": "UTC",
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
