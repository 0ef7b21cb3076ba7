"""Open the catalog that a URL names."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from topicsd.catalog.catalog import Catalog, CatalogRefused
from topicsd.catalog.retries import RetryPolicy
from topicsd.catalog.sqlite_catalog import SqliteCatalog

SCHEMES = ("sqlite", "postgresql")
FILE_NAME = "catalog.sqlite"
"""The file in the data directory that `sqlite:` means."""


def refuse_catalog_url(url: str) -> str | None:
    """Return what is wrong with the form of a catalog URL, or None; it never quotes the URL.

    >>> refuse_catalog_url("sqlite:"), refuse_catalog_url("sqlite:///var/lib/topicsd/catalog")
    (None, None)
    >>> refuse_catalog_url("sqlite:catalog")
    'must be sqlite: or name an absolute file, as in sqlite:///var/lib/topicsd/catalog.sqlite'
    >>> refuse_catalog_url("mysql://host")
    'must begin with sqlite: or postgresql:'
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        return f"must begin with {', '.join(f'{scheme}:' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}:"
    if parts.scheme == "sqlite":
        if url != "sqlite:" and (parts.netloc or not parts.path.startswith("/")):
            return "must be sqlite: or name an absolute file, as in sqlite:///var/lib/topicsd/catalog.sqlite"
        return None
    if not url.startswith("postgresql://") or len(parts.path) < 2:
        return "must name a database, as in postgresql://host/database"
    return None


def open_catalog(url: str, data_directory: str, policy: RetryPolicy) -> Catalog:
    """Open a catalog. Raises CatalogRefused or CatalogUnavailable, `CatalogExtraMissing` without a client."""
    problem = refuse_catalog_url(url)
    if problem is not None:
        raise CatalogRefused(f"catalog URL: {problem}")
    if url == "sqlite:":
        return SqliteCatalog(os.path.join(data_directory, FILE_NAME))
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return SqliteCatalog(unquote(parts.path))
    # Imported on demand: a catalog in a file needs no client library.
    from topicsd.catalog.postgresql_catalog import PostgresqlCatalog

    return PostgresqlCatalog(url, policy)
