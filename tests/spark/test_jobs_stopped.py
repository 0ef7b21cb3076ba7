"""Ctrl-C, as a terminal sends it to all processes of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark.__main__ import deferred_interrupt
from tests.harness.output.command_run import PROJECT
from tests.spark.conftest import PLAIN, Store


def test_a_job_that_is_stopped_says_so_and_leaves_no_process(store: Store, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    command = ["export", "--path", store.path, "--topics", PLAIN, "--out", out, "--master", "local[1]"]
    job = subprocess.Popen(
        [sys.executable, "-m", "spark", *command],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    try:
        first = job.stdout.readline()
        os.killpg(job.pid, signal.SIGINT)
        # All who may write there have ended then, Java as well.
        output, _ = job.communicate()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert first.startswith("export: run 1: exporting "), "and no word of Spark's in front of it"
    assert output == "export: interrupted; run the same command again to resume\n"
    assert job.returncode == 130
    assert not list(Path(out).glob("_manifest/*.json"))


def test_what_must_not_be_interrupted_ends_first(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    ended = []

    def stopped() -> None:
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert ended
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "interrupted: stopping as soon as Spark has started\n"
