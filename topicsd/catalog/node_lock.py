"""The locks of a node beside a SQLite catalog: no two servers of one machine run as the same node.

A copy of a data directory, and a restored backup, have the node id of the original. Beside it they would give
out the same seqs, and the catalog would take both for the owner. So the supervisor holds the lock of the node
for its life, and a second server with this node id does not start. Each worker holds the lock of its shard
too: the workers of a supervisor that was killed may still answer requests for a moment.

Catalogs that other machines reach have no such lock.
"""

from __future__ import annotations

from shared.settings.catalog_url import SQLITE, chosen_catalog_url
from topicsd.catalog.open_catalog import catalog_directory, sqlite_path
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import Fs


def node_lock_path(
    catalog_url: str, store_url: str, data_dir: str, node_id: str, shard: int | None = None
) -> str:
    """Return the path of the lock of a node, or of one of its shards; empty when there is none.

    A catalog in the data directory needs none: a copy of the directory has a catalog of its own.

    >>> node_lock_path("sqlite:///srv/catalog", "", "/data", "8f1c"), node_lock_path("", "", "/data", "8f1c")
    ('/srv/catalog.node-8f1c.lock', '')
    >>> node_lock_path("", "file:///srv/objects", "/data", "8f1c", 3)
    '/srv/objects/catalog.sqlite.node-8f1c-03.lock'
    """
    url, directory = chosen_catalog_url(catalog_url, store_url), catalog_directory(store_url, data_dir)
    path = "" if not url or (url == SQLITE and directory == data_dir) else sqlite_path(url, directory)
    of_shard = "" if shard is None else f"-{shard:02d}"
    return f"{path}.node-{node_id}{of_shard}.lock" if path else ""


def lock_node(fs: Fs, path: str) -> DirLock | None:
    """Take the lock of a node if it has one; DirectoryInUse when another server has it."""
    return DirLock(fs, path) if path else None
