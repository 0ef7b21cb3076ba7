"""The object store and the catalog of shared topics, as a command opens them without a server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from shared.runtime.clock import Clock
from shared.settings.catalog_url import SQLITE, refuse_catalog_url
from shared.settings.store_url import refuse_store_url, store_folder
from topicsd.broker.catalog_of_store import check_catalog
from topicsd.broker.repeats import Repeats
from topicsd.catalog.catalog import CatalogExtraMissing, CatalogRefused, CatalogUnavailable
from topicsd.catalog.open_catalog import catalog_directory, sqlite_path
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import SharedCatalog
from topicsd.disk.fs import RealFs
from topicsd.offline.command_error import CommandError
from topicsd.store.metered import MeteredStore
from topicsd.store.object_store import StoreRefused, StoreUnavailable
from topicsd.store.open_store import open_store
from topicsd.store.remote_objects import ExtraMissing

STORE_VARIABLE: Final = "TOPICS_STORE_URL"
CATALOG_VARIABLE: Final = "TOPICS_CATALOG_URL"


class SharedPlaces(NamedTuple):
    store: MeteredStore
    catalog: SharedCatalog


def add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store-url", metavar="URL", default="", help=f"default: {STORE_VARIABLE}")
    parser.add_argument(
        "--catalog-url",
        metavar="URL",
        default="",
        help=f"default: {CATALOG_VARIABLE}, else the SQLite file in the folder of a file: store",
    )


def urls_of(args: argparse.Namespace) -> tuple[str, str]:
    """Return the URLs of store and catalog from the flags, else from the environment."""
    store_url: str = args.store_url or os.environ.get(STORE_VARIABLE, "")
    catalog_url: str = args.catalog_url or os.environ.get(CATALOG_VARIABLE, "") or SQLITE
    if not store_url:
        raise CommandError(f"--store-url: must be given, or {STORE_VARIABLE} set")
    if (problem := refuse_store_url(store_url)) is not None:
        raise CommandError(f"--store-url: {problem}")
    if (problem := refuse_catalog_url(catalog_url)) is not None:
        raise CommandError(f"--catalog-url: {problem}")
    if catalog_url == SQLITE and not store_folder(store_url):
        raise CommandError("--catalog-url: must be given: only a file: store has the catalog in its folder")
    return store_url, catalog_url


def check_catalog_file(catalog_url: str, directory: str) -> None:
    """Refuse a catalog in a file that is not there: opening would create it, and it would name nothing."""
    path = sqlite_path(catalog_url, directory)
    if path and not os.path.exists(path):
        raise CommandError(f"catalog: there is no file {path}; a broker creates it")


@contextmanager
def shared_places(store_url: str, catalog_url: str, clock: Clock, repeats: Repeats) -> Iterator[SharedPlaces]:
    """Open both; errors of store and catalog become CommandError."""
    folder = store_folder(store_url)
    if folder and not os.path.isdir(folder):
        raise CommandError(f"--store-url: there is no directory {folder}")
    try:
        store = open_store(store_url, RealFs())
        try:
            directory = catalog_directory(store_url, "")
            check_catalog_file(catalog_url, directory)
            catalog = open_shared_catalog(catalog_url, directory, repeats(), clock.now_ms, store_url)
            try:
                check_catalog(store, catalog, repeats)
                yield SharedPlaces(store, catalog)
            finally:
                catalog.close()
        finally:
            store.close()
    except (StoreRefused, StoreUnavailable, ExtraMissing) as error:
        raise CommandError(f"object store: {error}") from None
    except (CatalogRefused, CatalogUnavailable, CatalogExtraMissing) as error:
        raise CommandError(f"catalog: {error}") from None
