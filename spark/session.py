"""A Spark session of this process, for the commands, the tests and the benchmark.

Promises: it runs on a Java that `java_home.py` found and has no web page. A local one listens on 127.0.0.1
only and has its workers on the Python that runs this. The format `topicsd` is found by PySpark itself.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from spark.java_home import java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# A sixth of what reading costs is what TCP adds between Java and Python.
QUICK = {"spark.python.unix.domain.socket.enabled": "true"}


def local_session(
    app: str, master: str = "local[2]", memory: str = "1g", settings: dict[str, str] | None = None
) -> SparkSession:
    """Also of a cluster, when `master` names one; empty is what `spark-submit` has said."""
    is_local = master.startswith("local")
    if master:
        os.environ.update(java_environment(dict(os.environ)))
    if is_local:
        # On other machines Python is somewhere else.
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
