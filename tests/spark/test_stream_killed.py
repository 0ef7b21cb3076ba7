"""A query whose driver is killed with all its processes, three times, while a server is written to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import PROJECT
from tests.harness.server.whole_server import WholeServer, name_on
from tests.spark.conftest import SHARDS, SMALL_FILES
from tests.spark.test_stream_reads import Sink, expected_offsets, write_until

SECONDS = float(os.environ.get("TOPICS_TEST_STREAM_SECONDS", "120"))
DRIVER = """
import sys
from pathlib import Path
from spark.session import local_session
from tests.spark.test_stream_reads import Sink

session = local_session("killed", memory="768m")
sink = Sink(session, Path(sys.argv[1]), sys.argv[2], sys.argv[3], maxOffsetsPerTrigger="5000")
sink.start(processingTime="0 seconds").awaitTermination()
"""


@pytest.mark.deep
def test_a_stream_that_is_killed_has_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    topics = tuple(name_on(shard, SHARDS, "load") for shard in range(SHARDS))
    data, sink = tmp_path / "data", tmp_path / "sink"
    sink.mkdir()
    (tmp_path / "cold").mkdir()
    flags = (*SMALL_FILES, f"--cold-dir={tmp_path / 'cold'}", "--hot-retain-segments=1")
    with WholeServer(tmp_path, *flags, shards=SHARDS) as server:
        client = TopicClient(server.port)
        for topic in topics:
            client.fill(topic, 10)
        client.wait_until_durable(*topics)
        ends = threading.Event()
        writer = threading.Thread(target=write_until, args=(server.port, topics, ends))
        writer.start()
        try:
            for round_number in range(3):
                arguments = [str(sink), str(data), ",".join(topics)]
                run_and_kill(DRIVER, arguments, sink / "checkpoint", tmp_path / f"driver-{round_number}.log")
        finally:
            ends.set()
            writer.join()
        client.wait_until_durable(*topics)
        drained = Sink(spark, sink, str(data), ",".join(topics), maxOffsetsPerTrigger="50000")
        drained.drain()
        assert drained.rows() == expected_offsets(client, *topics)


def run_and_kill(program: str, arguments: list[str], checkpoint: Path, log: Path) -> None:
    """As soon as the driver has worked for its share of the time; it has to have come to some batch."""
    before = len(list((checkpoint / "commits").glob("[0-9]*")))
    with log.open("wb") as log_file:
        driver = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=PROJECT,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 180
        while len(list((checkpoint / "commits").glob("[0-9]*"))) <= before:
            assert driver.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        time.sleep(SECONDS / 3)
    finally:
        # The group is of this driver alone.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
