"""Open the catalog that a URL names."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from shared.runtime.retries import Retries
from shared.settings.catalog_url import SQLITE, refuse_catalog_url
from topicsd.catalog.catalog import Catalog, CatalogRefused
from topicsd.catalog.engines.key_value import KeyValue
from topicsd.catalog.sqlite_catalog import SqliteCatalog

FILE_NAME = "catalog.sqlite"
"""The file that `sqlite:` means."""


def catalog_directory(store_url: str, data_directory: str) -> str:
    """Return the directory of the file that `sqlite:` means.

    The folder of a `file:` store: like the objects, the catalog then outlasts the data directory.

    >>> catalog_directory("file:///srv/objects", "/data"), catalog_directory("s3://bucket", "/data")
    ('/srv/objects', '/data')
    """
    parts = urlsplit(store_url)
    return unquote(parts.path) if parts.scheme == "file" else data_directory


def sqlite_path(url: str, data_directory: str) -> str:
    """Return the file of a SQLite catalog; empty for other catalogs."""
    if url == SQLITE:
        return os.path.join(data_directory, FILE_NAME)
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "sqlite" else ""


def is_shared_catalog(url: str, store_url: str) -> bool:
    """Return whether a catalog names all nodes of a store: not when it is a file of one node.

    >>> is_shared_catalog("sqlite:", "file:///srv/objects"), is_shared_catalog("sqlite:", "s3://bucket")
    (True, False)
    """
    if url.startswith(SQLITE):
        return urlsplit(store_url).scheme == "file"
    return url != ""


def has_catalog_clock(url: str) -> bool:
    """Return whether a catalog has a clock for shared topics; others have the times of the nodes.

    >>> has_catalog_clock("postgresql://db/topics"), has_catalog_clock("etcd://db:2379")
    (True, False)
    """
    return urlsplit(url).scheme not in ("etcd", "oxia")


def open_catalog(url: str, data_directory: str, retries: Retries) -> Catalog:
    """Open a catalog. Raises CatalogRefused or CatalogUnavailable, `CatalogExtraMissing` without a client."""
    problem = refuse_catalog_url(url)
    if problem is not None:
        raise CatalogRefused(f"catalog URL: {problem}")
    if path := sqlite_path(url, data_directory):
        return SqliteCatalog(path)
    # Imported on demand: each client library is an extra.
    if urlsplit(url).scheme == "postgresql":
        from topicsd.catalog.postgresql_catalog import PostgresqlCatalog

        return PostgresqlCatalog(url, retries)
    from topicsd.catalog.key_value_catalog import KeyValueCatalog

    return KeyValueCatalog(open_keys(url), retries)


def open_keys(url: str) -> KeyValue:
    """Open the key-value store that a URL names."""
    if urlsplit(url).scheme == "etcd":
        from topicsd.catalog.engines.etcd_keys import EtcdKeys

        return EtcdKeys(url)
    from topicsd.catalog.engines.oxia_keys import OxiaKeys

    return OxiaKeys(url)
