"""The package goes along to a cluster: drivers and workers are processes whose Python does not know it.

A cluster of this machine has an executor in a process and a folder of its own; that takes a while.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark
import pytest

from spark.__main__ import main
from spark.java_home import java_environment
from tests.harness.output.command_run import PROJECT
from tests.spark.conftest import Store

SETTINGS = ("spark.ui.enabled=false", "spark.executor.memory=512m", "spark.sql.shuffle.partitions=1")


def foreign_environment() -> dict[str, str]:
    """Where packages are installed is on the path as a plain folder, so that the project, which is installed
    there by a reference, is not."""
    home = Path(pyspark.__file__).parent
    return {
        **os.environ,
        **java_environment(dict(os.environ)),
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PYSPARK_PYTHON": getattr(sys, "_base_executable", sys.executable),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.parametrize(
    "master", ["local[1]", pytest.param("local-cluster[1,1,512]", marks=pytest.mark.deep)]
)
def test_a_job_runs_where_the_package_comes_as_a_zip(store: Store, tmp_path: Path, master: str) -> None:
    topic = f"to-{master.partition('[')[0]}"
    store.client.fill(topic, 40)
    store.client.wait_until_durable(topic)
    package, program, out = tmp_path / "topicsd.zip", tmp_path / "job.py", tmp_path / "out"
    assert main(["zip", str(package)]) == 0
    program.write_bytes((PROJECT / "spark" / "__main__.py").read_bytes())
    environ = foreign_environment()
    known = subprocess.run(
        [environ["PYSPARK_PYTHON"], "-c", "import pyspark, spark"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
    )
    assert b"No module named 'spark'" in known.stderr
    submit = Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"
    flags = [flag for setting in SETTINGS for flag in ("--conf", setting)]
    where = ["--master", master, *flags, "--py-files", str(package)]
    job = ["export", "--path", store.path, "--topics", topic, "--out", str(out)]
    ran = subprocess.run(
        [submit, *where, program, *job], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    # There stderr of the program is stdout.
    assert "export: run 1: wrote 40 records to 1 files" in ran.stdout
    (manifest,) = (out / "_manifest").glob("*.json")
    (name,) = json.loads(manifest.read_text())["files"]
    assert (out / name).exists()
