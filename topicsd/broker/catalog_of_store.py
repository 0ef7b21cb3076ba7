"""The one catalog of a store of shared topics: the object that has its id.

A vacuum with another catalog finds no extent that names the objects of a store, and would delete them all.
So the first broker of a store writes the id of its catalog there, create-only. A broker with another catalog
does not start, and nothing is merged or vacuumed with one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from shared.runtime.retries import Retries
from topicsd.broker.lls1 import FOLDER
from topicsd.broker.upkeep.compactor import COMPACTED
from topicsd.catalog.catalog import CatalogRefused
from topicsd.catalog.shared.shared_catalog import SharedCatalog
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectExists, ObjectStore

CATALOG_KEY: Final = "llog/catalog"
FOLDERS: Final = (f"{FOLDER}/", f"{COMPACTED}/")
"""The folders of the objects that a catalog names."""
_ID_BYTES: Final = 64


def adopt_store(store: ObjectStore, catalog: SharedCatalog, retries: Callable[[], Retries]) -> None:
    """Make this the catalog of a store that has none; raises CatalogRefused when it has another one."""
    if _catalog_of(store, retries) is None:
        if has_objects(store) and not catalog.list("", "", 1):
            raise CatalogRefused(
                f"{catalog.url}: has no topic, but the store {store.url} has objects of shared topics; "
                f"give the catalog that names them, or delete {' and '.join(FOLDERS)} in the store"
            )
        with suppress(ObjectExists):
            create_object(store, CATALOG_KEY, [catalog.catalog_id().encode()], retries())
    check_catalog(store, catalog, retries)


def check_catalog(store: ObjectStore, catalog: SharedCatalog, retries: Callable[[], Retries]) -> None:
    """Raise CatalogRefused unless this is the catalog of the store; a store without objects needs none."""
    present, catalog_id = _catalog_of(store, retries), catalog.catalog_id()
    if present == catalog_id:
        return
    if present is not None:
        raise CatalogRefused(
            f"{catalog.url}: is catalog {catalog_id}, but the store {store.url} belongs to catalog "
            f"{present}, whose objects this one does not name; give the URL of that catalog, or delete "
            f"the object {CATALOG_KEY} after all topics of that one were moved to this one"
        )
    if has_objects(store):
        raise CatalogRefused(
            f"{catalog.url}: the store {store.url} does not say that this is its catalog; "
            f"start a broker with both, which creates the object {CATALOG_KEY}"
        )


def has_objects(store: ObjectStore) -> bool:
    """Return whether a store has objects of shared topics."""
    return any(next(iter(store.list(folder)), None) is not None for folder in FOLDERS)


def _catalog_of(store: ObjectStore, retries: Callable[[], Retries]) -> str | None:
    # By a listing: a folder refuses to read from a directory that no object has made yet.
    listed = repeat_request(lambda: [info.key for info in store.list(CATALOG_KEY)], retries())
    if CATALOG_KEY not in listed:
        return None
    return repeat_request(partial(store.read, CATALOG_KEY, 0, _ID_BYTES), retries()).decode()
