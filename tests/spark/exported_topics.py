"""Two servers with one object store and one catalog, whose topics have what a reader leaves out or finds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from shared.runtime.retries import Retries
from tests.harness.clients.topic_client import TopicClient, ask_until_ready
from tests.harness.server.processes import wait_until
from tests.harness.server.whole_server import WholeServer
from tests.spark.conftest import CAPPED, CAPPED_BYTES, OTHER, PLAIN, SMALL_FILES, fill
from topicsd.catalog.catalog import Catalog
from topicsd.catalog.open_catalog import catalog_directory, open_catalog

QUEUE, ADOPTED, SEALED, EMPTY = "queue", "adopted", "sealed", "empty"
EXPORTED = (PLAIN, OTHER, CAPPED, CAPPED_BYTES, QUEUE, ADOPTED, SEALED, EMPTY)
SECOND_MS = 1000


class ExportedTopics:
    """What the servers answered once everything was exported."""

    def __init__(self, folder: Path, url: str, catalog_url: str, client: TopicClient) -> None:
        self.folder = folder
        """It has the folders of the servers, `first` and `second`, which is the one that adopted a topic."""
        self.url = url
        self.catalog_url = catalog_url
        self.client = client
        self.rows: dict[str, list[dict[str, Any]]] = {}

    @property
    def options(self) -> dict[str, str]:
        return {"path": self.url, "catalog": self.catalog_url}

    def wait_until_exported(self, *topics: str) -> None:
        """Wait until the catalog has the head of these topics."""
        with closing(catalog_of(self.url, self.catalog_url)) as catalog:
            for topic in topics:
                head = self.client.state(topic)["head_seq"]
                wait_until(lambda: exported_to(catalog, topic) >= head, f"{topic} is exported")  # noqa: B023


def catalog_of(url: str, catalog_url: str) -> Catalog:
    retries = Retries(time.monotonic, threading.Event().wait, 30.0)
    return open_catalog(catalog_url, catalog_directory(url, ""), retries)


def exported_to(catalog: Catalog, topic: str) -> int:
    rows = catalog.list(topic, "", 1)
    return rows[0].exported_to if rows and rows[0].name == topic else -1


@contextmanager
def exported_topics(
    folder: Path, url: str, catalog_url: str, environ: dict[str, str] | None = None
) -> Iterator[ExportedTopics]:
    """Fill a server, move two of its topics, and wait until everything is exported."""
    flags = (
        *SMALL_FILES,
        f"--store-url={url}",
        f"--catalog-url={catalog_url}",
        f"--export-interval-ms={SECOND_MS}",
        "--hot-retain-segments=1",
    )
    for name in ("first", "second"):
        (folder / name).mkdir()
    with (
        WholeServer(folder / "first", *flags, environ=environ) as first,
        WholeServer(folder / "second", *flags, environ=environ) as second,
    ):
        client, other = TopicClient(first.port), TopicClient(second.port)
        topics = ExportedTopics(folder, url, catalog_url, client)
        client.put(EMPTY)
        for topic in (ADOPTED, SEALED):
            client.fill(topic, 1200)
            client.append(topic, {"data": 1, "tag": "gone"}, {"data": 2, "tag": "kept"})
            client.call(topic, "delete", match=["tag", "Eq", "gone"])
            client.call(topic, "delete", before_seq=300)
        client.put(QUEUE, type="queue")
        client.fill(QUEUE, 1000)
        client.call(QUEUE, "ack", node="worker", seqs=client.claim(QUEUE, 40))
        fill(client)
        for topic in (ADOPTED, SEALED):
            if topic == SEALED:
                topics.rows[topic] = client.rows(topic)
            client.call(topic, "seal")
        other.call(ADOPTED, "adopt")
        other.call(ADOPTED, "delete", match=["tag", "Eq", "kept"])
        one_more = {"records": [{"data": "one more"}]}
        wait_until(
            lambda: ask_until_ready(second.port, "POST", f"/v0/topics/{ADOPTED}", one_more).status < 300,
            "the catalog has granted seqs to the adopted topic",
        )
        other.fill(ADOPTED, 700)
        # A state object has the deletes that precede its export.
        for topic in (PLAIN, OTHER, CAPPED, CAPPED_BYTES, QUEUE):
            client.fill(topic, 3)
        topics.wait_until_exported(PLAIN, OTHER, CAPPED, CAPPED_BYTES, QUEUE)
        topics.client = other
        topics.wait_until_exported(ADOPTED)
        topics.client = client
        topics.rows[ADOPTED] = other.rows(ADOPTED)
        for topic in (PLAIN, OTHER, CAPPED, CAPPED_BYTES, QUEUE, EMPTY):
            topics.rows[topic] = client.rows(topic)
        yield topics
