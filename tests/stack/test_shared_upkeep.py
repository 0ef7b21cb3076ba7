"""`topicsd compactor` and vacuum over PostgreSQL and S3: two at once, nothing lost, nothing twice."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from shared.runtime.retries import Retries
from tests.harness.brokers.written_topics import WrittenTopics
from tests.harness.output.command_run import PROJECT, command_line, environment, run_here
from tests.stack.engines import ServerClock
from tests.stack.servers import CREDENTIALS, PostgresServer, S3Server, s3_server
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import REPEATED_MS
from topicsd.cli.compactor.once import run_steps
from topicsd.disk.fs import RealFs
from topicsd.store.open_store import open_store

pytestmark = pytest.mark.slow

TOPICS = 8
_numbers = itertools.count()


class Places(NamedTuple):
    topics: WrittenTopics
    clock: ServerClock
    arguments: tuple[str, ...]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def places(postgresql: PostgresServer, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    number = next(_numbers)
    catalog_url = postgresql.new_database(f"upkeep_{number}")
    retries = Retries(time.monotonic, time.sleep, 10.0)
    store_url = s3.url(f"upkeep-{number}")
    catalog = open_shared_catalog(catalog_url, "", retries, lambda: 0, store_url)
    clock = ServerClock(catalog_url)
    store = open_store(store_url, RealFs())
    topics = WrittenTopics(store, catalog, {f"t{number}": number + 1 for number in range(TOPICS)})
    yield Places(topics, clock, ("--store-url", store_url, "--catalog-url", catalog_url))
    catalog.close()
    clock.close()


def test_two_compactors_at_once_merge_each_slice_once(places: Places) -> None:
    topics, clock, arguments = places
    topics.write(blobs=12)
    clock.advance(REPEATED_MS)
    both = [
        subprocess.Popen(
            command_line("compactor", "--once", "--json", *arguments),
            env=environment(),
            stdout=subprocess.PIPE,
            cwd=PROJECT,
        )
        for _ in range(2)
    ]
    reports = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(one["extents"] for report in reports for one in report) == 12 * TOPICS
    assert all(len(topics.extents(name)) == 1 for name in topics.topics)
    topics.check()
    # The blobs are orphans now; what is named stays.
    retries = Retries(time.monotonic, time.sleep, 10.0)
    vacuum = BlobVacuum(topics.store, topics.catalog, lambda: retries, grace_ms=-10_000)
    assert run_steps(vacuum.run(is_dry=True)).orphans == 12
    report = run_steps(vacuum.run_pass(7))
    assert report is not None
    assert report.orphans == 12
    assert run_steps(vacuum.run_pass(7)) is None
    assert not list(topics.store.list("llog/wal-shared/"))
    topics.check()


def test_vacuum_by_command_needs_no_data_directory(places: Places) -> None:
    topics, clock, arguments = places
    topics.write(blobs=3)
    clock.advance(REPEATED_MS)
    assert run_here("compactor", "--once", *arguments).code == 0
    report = run_here("store", "vacuum", "--apply", "--grace-hours", 1, "--json", *arguments)
    assert report.code == 0, report.err
    # All objects are younger than the shortest grace.
    assert report.json["shared"]["orphans"] == 0
    assert report.json["shared"]["young"] == report.json["shared"]["objects"] >= 3 + TOPICS
    topics.check()
