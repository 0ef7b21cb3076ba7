"""Two brokers over every kind of catalog and store: their clients get the same, byte for byte."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.machine.manual_clock import ManualClock
from tests.stack.broker_story import BrokerStory, StoryClock
from tests.stack.engines import POLICY, ServerClock
from tests.stack.servers import CREDENTIALS
from tests.stack.test_shared_catalogs import remove_all
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import SharedCatalog
from topicsd.disk.fs import RealFs
from topicsd.store.metered import MeteredStore
from topicsd.store.open_store import open_store

ACROSS_SECONDS = 1.0
_databases = itertools.count()


class LockedTopics:
    """The model of a catalog, for several threads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._real = MemoryTopics(now_ms)
        self._lock = threading.Lock()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self._lock:
                return getattr(self._real, verb)(*args)

        return call


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the clients get over the model of a catalog."""
    folder = tmp_path_factory.mktemp("model")
    clock = StoryClock()
    model: Any = LockedTopics(clock.now_ms)
    return BrokerStory(clock, lambda: model, lambda: open_store(f"file://{folder}", RealFs())).run()


@pytest.fixture(params=["file", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        (tmp_path / "objects").mkdir()
        return f"file://{tmp_path}/objects"
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url: str = request.getfixturevalue("s3").url(f"brokers-{next(_databases)}")
    return url


@pytest.fixture(params=["sqlite", "postgresql", "etcd", "oxia"])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/catalog.db"
    elif request.param == "postgresql":
        yield request.getfixturevalue("postgresql").new_database(f"brokers_{next(_databases)}")
    else:
        url = request.getfixturevalue(request.param).url
        yield url
        remove_all(url)


def test_brokers_do_the_same_over_every_catalog_and_store(
    catalog_url: str, store_url: str, tmp_path: Path, expected: list[Any]
) -> None:
    with ExitStack() as stack:

        def open_catalog() -> SharedCatalog:
            catalog = open_shared_catalog(catalog_url, str(tmp_path), POLICY, clock.now_ms, store_url)
            return stack.enter_context(closing(catalog))

        def open_objects() -> MeteredStore:
            return stack.enter_context(closing(open_store(store_url, RealFs())))

        follower: ServerClock | None = None
        if catalog_url.startswith("postgresql"):
            # The tables are there before the clock is replaced.
            open_shared_catalog(catalog_url, str(tmp_path), POLICY, ManualClock().now_ms).close()
            follower = stack.enter_context(closing(ServerClock(catalog_url)))
        clock = StoryClock(follower)
        story = BrokerStory(clock, open_catalog, open_objects)
        transcript = story.run()
    assert story.across_seconds < ACROSS_SECONDS
    for got, model in zip(transcript, expected, strict=False):
        assert got == model
    assert len(transcript) == len(expected)
