"""Open the catalog for shared topics that a URL names: the same one that has the local topics."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from shared.runtime.retries import Retries
from shared.settings.catalog_url import SQLITE, refuse_catalog_url
from topicsd.catalog.catalog import CatalogRefused
from topicsd.catalog.open_catalog import FILE_NAME, open_keys
from topicsd.catalog.shared.shared_catalog import PRODUCERS_MAX, SharedCatalog
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog


def open_shared_catalog(
    url: str,
    data_directory: str,
    retries: Retries,
    now_ms: Callable[[], int],
    store_url: str = "",
    producers_max: int = PRODUCERS_MAX,
) -> SharedCatalog:
    """Open a catalog; `store_url` is that of the objects, whose full URIs a key-value catalog stores.

    Raises CatalogRefused or CatalogUnavailable, `CatalogExtraMissing` without a client.
    """
    problem = refuse_catalog_url(url)
    if problem is not None:
        raise CatalogRefused(f"catalog URL: {problem}")
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = os.path.join(data_directory, FILE_NAME) if url == SQLITE else unquote(parts.path)
        return SqliteSharedCatalog(path, now_ms, producers_max=producers_max)
    # Imported on demand: each client library is an extra.
    if parts.scheme == "postgresql":
        from topicsd.catalog.shared.postgresql_shared import PostgresqlSharedCatalog

        return PostgresqlSharedCatalog(url, retries, producers_max)
    from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog

    objects_url = f"{store_url.rstrip('/')}/" if store_url else ""
    return KeyValueSharedCatalog(open_keys(url), retries, now_ms, objects_url, producers_max)
