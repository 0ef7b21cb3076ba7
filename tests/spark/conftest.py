"""One Spark and one server for all tests of the data source: each takes seconds to start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.session import local_session
from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.whole_server import WholeServer, name_on
from tests.stack.servers import CREDENTIALS

SHARDS = 2
PLAIN, OTHER = name_on(0, SHARDS, "plain"), name_on(1, SHARDS, "other")
CAPPED, CAPPED_BYTES, AGING = "capped", "capped-bytes", "aging"
TOPICS = (PLAIN, OTHER, CAPPED, CAPPED_BYTES, AGING)
SMALL_FILES = ("--checkpoint-interval-ms=300", "--segment-max-events=500", "--wal-file-bytes=1MiB")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a JVM and its sockets say when they are collected is no matter of ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -Djava.io.tmpdir={folder}",
    }
    # The processes of Spark have the environment of the one that starts the JVM.
    with pytest.MonkeyPatch.context() as environment:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        session = local_session("topicsd tests", memory="768m", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class Store:
    """A data directory in which there is everything that a reader has to leave out or to find."""

    def __init__(self, server: WholeServer, client: TopicClient) -> None:
        self.server = server
        self.client = client
        self.path = str(server.folder / "data")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    (folder / "cold").mkdir()
    flags = (*SMALL_FILES, f"--cold-dir={folder / 'cold'}", "--hot-retain-segments=1")
    with WholeServer(folder, *flags, shards=SHARDS) as server:
        client = TopicClient(server.port)
        fill(client)
        yield Store(server, client)


def fill(client: TopicClient) -> None:
    client.put(CAPPED, cap_records=700)
    client.put(CAPPED_BYTES, cap_bytes=20_000)
    client.put(AGING, ttl_ms=1500)
    client.put("passing", durability="ephemeral")
    client.append("passing", {"data": 1})
    for topic in TOPICS:
        client.fill(topic, 2600)
    tagged = {"data": {"text": "Grüße"}, "tag": "red", "node": "n1", "meta": {"trace": "t-1", "n": 7}}
    client.append(PLAIN, tagged, {"data": "text"}, {"data": None, "tag": "blue"})
    client.call(PLAIN, "delete", before_seq=700)
    client.call(OTHER, "delete", match=["tag", "Eq", "none"])
    time.sleep(2)
    # Records that are only in the log, with deletes that no checkpoint has seen.
    client.append(PLAIN, *[{"data": n, "tag": "green" if n % 3 else "gone"} for n in range(300)])
    client.call(PLAIN, "delete", match=["tag", "Eq", "gone"])
    client.append(PLAIN, tagged)
    client.fill(CAPPED, 50)
    client.fill(AGING, 50)
    client.wait_until_durable(*TOPICS)
