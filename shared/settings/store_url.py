"""The form of the URL of an object store, and the store that the settings name."""

from __future__ import annotations

import os
from typing import Final, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SCHEMES: Final = ("file", "s3", "gs", "az")
PARAMETERS: Final = ("endpoint", "region", "skip_signature", "virtual_hosted_style_request")
"""Query parameters of a URL of a remote store."""


class StoreSettings(Protocol):
    """The settings that name an object store."""

    @property
    def cold_dir(self) -> str: ...

    @property
    def store_url(self) -> str: ...


def refuse_store_url(url: str) -> str | None:
    """Return what is wrong with the form of a store URL, or None.

    >>> refuse_store_url("s3://bucket/prefix"), refuse_store_url("file:///mnt/big")
    (None, None)
    >>> refuse_store_url("s3://key:secret@bucket")
    'must not contain credentials: give them by the environment'
    >>> refuse_store_url("s3://bucket?endpoint=https://key:secret@host")
    'must not contain credentials: give them by the environment'
    >>> refuse_store_url("file:big")
    'must name an absolute folder, as in file:///mnt/big'
    >>> refuse_store_url("file:///mnt/big?region=eu")
    'a folder has no parameters: remove "?region=eu"; a "?" or "#" in its name is written %3F or %23'
    >>> refuse_store_url("ftp://host")
    'must begin with file:, s3:, gs: or az:'
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        return f"must begin with {', '.join(f'{scheme}:' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}:"
    query = parse_qsl(parts.query, keep_blank_values=True)
    # A secret may have a slash in it, which ends the part of a URL for credentials; no bucket has a colon.
    if ":" in parts.netloc or any("@" in text for text in (parts.netloc, *(value for _, value in query))):
        return "must not contain credentials: give them by the environment"
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            return "must name an absolute folder, as in file:///mnt/big"
        rest = url[url.index(parts.path) + len(parts.path) :]
        if rest:
            return (
                f'a folder has no parameters: remove "{rest}"; a "?" or "#" in its name is written %3F or %23'
            )
        return None
    unknown = [name for name, _ in query if name not in PARAMETERS]
    if unknown:
        return f"{unknown[0]}: must be one of {', '.join(PARAMETERS)}"
    if not parts.netloc:
        return f"must name a bucket, as in {parts.scheme}://bucket/prefix"
    return None


def check_store_url(url: str) -> str:
    """Return the URL of a store; raise ValueError with a sentence when its form is wrong.

    The sentence does not contain the URL, which may have a password in it. Empty means no store.
    """
    problem = refuse_store_url(url) if url else None
    if problem is not None:
        raise ValueError(problem)
    return url


def folder_url(path: str) -> str:
    """Return the URL of the store in a folder, or an empty text without one.

    >>> folder_url("/mnt/big disk"), folder_url("")
    ('file:///mnt/big%20disk', '')
    """
    return f"file://{quote(os.path.abspath(path))}" if path else ""


def store_folder(url: str) -> str:
    """Return the folder of a `file:` store, or an empty text for other stores.

    >>> store_folder("file:///mnt/big%20disk"), store_folder("s3://bucket"), store_folder("")
    ('/mnt/big disk', '', '')
    """
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else ""


def store_url_of(settings: StoreSettings) -> str:
    """Return the URL of the object store of these settings, or an empty text without one."""
    return settings.store_url or folder_url(settings.cold_dir)
