"""Jobs whose processes are killed at moments that chance chooses, until nothing is left to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import PROJECT
from tests.harness.server.whole_server import WholeServer
from tests.spark.conftest import SMALL_FILES

TOPICS = ("killed-a", "killed-b")
KILLS = 3


def run_and_kill(seconds: float, log: Path, *job: str) -> None:
    """Or it has ended by then."""
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "spark", *job, "--master", "local[2]"],
            cwd=PROJECT,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        # The group is of this job alone.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.deep
def test_an_export_and_its_replay_have_each_record_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("TOPICS_TEST_SEED", "7"))
    rng, log = Random(seed), tmp_path / "jobs.log"
    with WholeServer(tmp_path, *SMALL_FILES) as server:
        client = TopicClient(server.port)
        for topic in TOPICS:
            client.fill(topic, 20_000)
        client.wait_until_durable(*TOPICS)
        where = ["--path", str(tmp_path / "data"), "--topics", ",".join(TOPICS)]
        export = ["export", *where, "--out", str(tmp_path / "out")]
        replay = ["replay", "--in", str(tmp_path / "out"), "--prefix", "copy-"]
        for job in (export, [*replay, "--url", f"http://127.0.0.1:{server.port}"]):
            for _ in range(KILLS):
                run_and_kill(rng.uniform(5, 25), log, *job)
            run_and_kill(600, log, *job)
        for topic in TOPICS:
            copied = [row["data"]["n"] for row in client.rows(f"copy-{topic}")]
            assert copied == list(range(20_000)), f"seed {seed}: {log.read_text()[-2000:]}"
