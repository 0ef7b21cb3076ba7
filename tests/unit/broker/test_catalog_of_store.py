"""A store has one catalog: no other one starts a broker, merges or vacuums there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from shared.runtime.clock import SystemClock
from shared.settings.settings import Settings
from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.brokers.one_broker import OneBroker
from tests.harness.brokers.written_topics import old_topics_in
from tests.unit.broker.test_upkeep import run
from topicsd.broker.catalog_of_store import CATALOG_KEY, adopt_store, check_catalog
from topicsd.broker.repeats import Repeats
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum
from topicsd.catalog.catalog import CatalogRefused
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog
from topicsd.cli.store.shared_vacuum import vacuum_shared
from topicsd.disk.fs import RealFs
from topicsd.offline.command_error import CommandError
from topicsd.store.file_objects import FileObjects
from topicsd.worker.broker_start import BrokerRefused, open_broker
from topicsd.worker.spec import Spec


class OtherTopics(MemoryTopics):
    def catalog_id(self) -> str:
        return "other"


def blobs(one: OneBroker) -> list[str]:
    return [info.key for info in one.store.list("llog/wal-shared/")]


def broker_with_a_blob() -> OneBroker:
    one = OneBroker()
    adopt_store(one.store, one.topics, one.retries)
    one.create("a")
    one.appended("a", b"1")
    one.clock.advance(2 * 3_600_000)
    return one


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_vacuum_with_another_catalog_deletes_nothing(is_dry: bool) -> None:
    one = broker_with_a_blob()
    other = OtherTopics(one.clock.now_ms)
    with pytest.raises(CatalogRefused, match=r"belongs to catalog memory.*delete the object llog/catalog"):
        run(BlobVacuum(one.store, other, one.retries, 0).run(is_dry))
    assert len(blobs(one)) == 1


def test_a_vacuum_of_a_store_that_names_no_catalog_deletes_nothing() -> None:
    one = broker_with_a_blob()
    one.store.delete(CATALOG_KEY)
    with pytest.raises(CatalogRefused, match="start a broker"):
        run(BlobVacuum(one.store, one.topics, one.retries, 0).run())
    assert len(blobs(one)) == 1
    # Which then is the catalog of the store again.
    adopt_store(one.store, one.topics, one.retries)
    run(BlobVacuum(one.store, one.topics, one.retries, 0).run())
    assert len(blobs(one)) == 1


def test_a_broker_refuses_the_store_of_another_catalog_until_the_object_is_deleted() -> None:
    one = broker_with_a_blob()
    moved = OtherTopics(one.clock.now_ms)
    with pytest.raises(CatalogRefused, match="belongs to catalog memory"):
        adopt_store(one.store, moved, one.retries)
    one.store.delete(CATALOG_KEY)
    with pytest.raises(CatalogRefused, match="has no topic"):
        adopt_store(one.store, moved, one.retries)
    moved.create("a", 7, b"{}")
    adopt_store(one.store, moved, one.retries)
    check_catalog(one.store, moved, one.retries)
    with pytest.raises(CatalogRefused, match="belongs to catalog other"):
        adopt_store(one.store, one.topics, one.retries)


def test_a_store_without_objects_needs_no_catalog() -> None:
    one = OneBroker()
    check_catalog(one.store, one.topics, one.retries)
    assert run(BlobVacuum(one.store, one.topics, one.retries, 0).run()).objects == 0


def test_each_catalog_has_an_id_of_its_own_that_stays(tmp_path: Path) -> None:
    first = SqliteSharedCatalog(str(tmp_path / "a"), lambda: 0)
    other = SqliteSharedCatalog(str(tmp_path / "b"), lambda: 0)
    again = SqliteSharedCatalog(str(tmp_path / "a"), lambda: 0)
    assert len(first.catalog_id()) == 32
    assert first.catalog_id() == again.catalog_id() != other.catalog_id()
    for catalog in (first, other, again):
        catalog.close()


def test_the_command_refuses_another_file_and_never_creates_one(tmp_path: Path) -> None:
    """The file of the store's folder is not the catalog of its brokers."""
    clock = SystemClock()
    topics = old_topics_in(tmp_path / "brokers", clock.now_ms())
    folder = tmp_path / "objects"
    folder.mkdir()
    store = FileObjects(RealFs(), str(folder))
    topics.store = store
    adopt_store(store, topics.catalog, Repeats(clock))
    topics.write(2)
    for info in store.list("llog/"):
        os.utime(folder / info.key, (1, 1))
    url = f"file://{quote(str(folder))}"
    with pytest.raises(CommandError, match="there is no file"):
        vacuum_shared(url, "sqlite:", clock, 0, True)
    assert not (folder / "catalog.sqlite").exists()
    SqliteSharedCatalog(str(folder / "catalog.sqlite"), clock.now_ms).close()
    with pytest.raises(CommandError, match="belongs to catalog"):
        vacuum_shared(url, "sqlite:", clock, 0, True)
    topics.check()
    topics.catalog.close()


async def start_broker(folder: Path, catalog_url: str) -> None:
    settings = Settings(store_url=f"file://{quote(str(folder))}", catalog_url=catalog_url)
    spec = Spec(0, 1, str(folder), "1" * 16, "test", -1, -1, settings, broker=0)
    slot = SimpleNamespace(reason="")
    opened = await open_broker(spec, SystemClock(), slot, lambda: bool(slot.reason))  # type: ignore[arg-type]
    assert opened is not None, slot.reason
    opened.close()


def test_a_broker_process_adopts_a_new_store_and_refuses_one_of_another_catalog(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    asyncio.run(start_broker(store, ""))
    asyncio.run(start_broker(store, "sqlite:"))
    with pytest.raises(BrokerRefused, match="delete the object llog/catalog"):
        asyncio.run(start_broker(store, f"sqlite://{tmp_path}/other.sqlite"))
    (store / "llog" / "catalog").unlink()
    asyncio.run(start_broker(store, f"sqlite://{tmp_path}/other.sqlite"))
    with pytest.raises(BrokerRefused, match="belongs to catalog"):
        asyncio.run(start_broker(store, "sqlite:"))
