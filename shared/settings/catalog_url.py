"""The form of a catalog URL, and the catalog that the settings choose."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

SCHEMES: Final = ("sqlite", "postgresql", "etcd", "oxia")
SQLITE: Final = "sqlite:"


def chosen_catalog_url(catalog_url: str, store_url: str) -> str:
    """Return the URL of the catalog; empty when there is none.

    >>> chosen_catalog_url("", ""), chosen_catalog_url("", "file:///srv/objects")
    ('', 'sqlite:')
    """
    return catalog_url or (SQLITE if store_url else "")


def check_catalog_url(url: str) -> str:
    """Return the URL, or raise ValueError with what is wrong with its form."""
    problem = refuse_catalog_url(url) if url else None
    if problem is not None:
        raise ValueError(problem)
    return url


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
