"""Open the store that a URL names."""

from __future__ import annotations

from shared.settings.store_url import refuse_store_url, store_folder
from topicsd.disk.fs import Fs
from topicsd.store.file_objects import FileObjects
from topicsd.store.metered import MeteredStore
from topicsd.store.object_store import StoreRefused


def open_store(url: str, fs: Fs) -> MeteredStore:
    """Open a store. Raises StoreRefused for a bad URL, `ExtraMissing` without the client library."""
    problem = refuse_store_url(url)
    if problem is not None:
        raise StoreRefused(f"store URL: {problem}")
    folder = store_folder(url)
    if folder:
        return MeteredStore(FileObjects(fs, folder))
    from topicsd.store.remote_objects import RemoteObjects

    return MeteredStore(RemoteObjects(url))
