"""Open the store that a URL names."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from topicsd.disk.fs import Fs
from topicsd.store.file_objects import FileObjects
from topicsd.store.metered import MeteredStore
from topicsd.store.object_store import StoreRefused

SCHEMES = ("file", "s3", "gs", "az")
PARAMETERS = ("endpoint", "region", "skip_signature", "virtual_hosted_style_request")
"""Query parameters of a URL of a remote store."""


def refuse_store_url(url: str) -> str | None:
    """Return what is wrong with the form of a store URL, or None.

    >>> refuse_store_url("s3://bucket/prefix"), refuse_store_url("file:///mnt/big")
    (None, None)
    >>> refuse_store_url("s3://key:secret@bucket")
    'must not contain credentials: give them by the environment'
    >>> refuse_store_url("file:big")
    'must name an absolute folder, as in file:///mnt/big'
    >>> refuse_store_url("ftp://host")
    'must begin with file:, s3:, gs: or az:'
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        return f"must begin with {', '.join(f'{scheme}:' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}:"
    if parts.username is not None or parts.password is not None:
        return "must not contain credentials: give them by the environment"
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            return "must name an absolute folder, as in file:///mnt/big"
        return None
    unknown = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if name not in PARAMETERS]
    if unknown:
        return f"{unknown[0]}: must be one of {', '.join(PARAMETERS)}"
    if not parts.netloc:
        return f"must name a bucket, as in {parts.scheme}://bucket/prefix"
    return None


def open_store(url: str, fs: Fs) -> MeteredStore:
    """Open a store. Raises StoreRefused for a bad URL, `ExtraMissing` without the client library."""
    problem = refuse_store_url(url)
    if problem is not None:
        raise StoreRefused(f"store URL: {problem}")
    if urlsplit(url).scheme == "file":
        return MeteredStore(FileObjects(fs, unquote(urlsplit(url).path)))
    from topicsd.store.remote_objects import RemoteObjects

    return MeteredStore(RemoteObjects(url))
