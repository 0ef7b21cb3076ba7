"""Open the catalog that a URL names."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from shared.runtime.retries import Retries
from topicsd.catalog.catalog import Catalog, CatalogRefused
from topicsd.catalog.key_value import KeyValue
from topicsd.catalog.sqlite_catalog import SqliteCatalog

SCHEMES = ("sqlite", "postgresql", "etcd", "oxia")
FILE_NAME = "catalog.sqlite"
"""The file in the data directory that `sqlite:` means."""


def refuse_catalog_url(url: str) -> str | None:
    """Return what is wrong with the form of a catalog URL, or None; it never quotes the URL.

    >>> refuse_catalog_url("sqlite:"), refuse_catalog_url("sqlite:///var/lib/topicsd/catalog")
    (None, None)
    >>> refuse_catalog_url("sqlite:catalog")
    'must be sqlite: or name an absolute file, as in sqlite:///var/lib/topicsd/catalog.sqlite'
    >>> refuse_catalog_url("mysql://host")
    'must begin with sqlite:, postgresql:, etcd: or oxia:'
    >>> refuse_catalog_url("etcd://user:secret@host")
    'must not contain credentials'
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        return f"must begin with {', '.join(f'{scheme}:' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}:"
    if parts.scheme == "sqlite":
        if url != "sqlite:" and (parts.netloc or not parts.path.startswith("/")):
            return "must be sqlite: or name an absolute file, as in sqlite:///var/lib/topicsd/catalog.sqlite"
        return None
    if parts.scheme == "postgresql":
        if not url.startswith("postgresql://") or len(parts.path) < 2:
            return "must name a database, as in postgresql://host/database"
        return None
    if parts.username is not None or parts.password is not None:
        return "must not contain credentials"
    return None if _has_address(url) else f"must name a server, as in {parts.scheme}://host:port"


def _has_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def open_catalog(url: str, data_directory: str, retries: Retries) -> Catalog:
    """Open a catalog. Raises CatalogRefused or CatalogUnavailable, `CatalogExtraMissing` without a client."""
    problem = refuse_catalog_url(url)
    if problem is not None:
        raise CatalogRefused(f"catalog URL: {problem}")
    if url == "sqlite:":
        return SqliteCatalog(os.path.join(data_directory, FILE_NAME))
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return SqliteCatalog(unquote(parts.path))
    # Imported on demand: each client library is an extra.
    if parts.scheme == "postgresql":
        from topicsd.catalog.postgresql_catalog import PostgresqlCatalog

        return PostgresqlCatalog(url, retries)
    from topicsd.catalog.key_value_catalog import KeyValueCatalog

    return KeyValueCatalog(_open_keys(url), retries)


def _open_keys(url: str) -> KeyValue:
    if urlsplit(url).scheme == "etcd":
        from topicsd.catalog.etcd_keys import EtcdKeys

        return EtcdKeys(url)
    from topicsd.catalog.oxia_keys import OxiaKeys

    return OxiaKeys(url)
