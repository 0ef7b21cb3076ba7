"""Checks of what is outside the data directory: the port file, and the object store.

The checks run before anything is started or created. Otherwise a typing error would appear a minute later, or
as a cold directory that fills the wrong disk.

A missing folder of a store is not created: it is usually a disk of its own, and a missing directory means a
missing mount. An earlier version put files into it with the names that they have in the data directory, so
neither directory may be inside the shards of the other. A remote store needs a client library, whose absence
each worker would meet again; whether the store answers is found out by the workers.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

from shared.settings.sources import Resolved
from shared.settings.store_url import store_folder
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.offline.command_error import CommandError
from topicsd.store.remote_objects import EXTRA

SHARDS = "shards"


def refuse_outside_paths(fs: Fs, resolved: Resolved) -> None:
    """Raise CommandError when the path of the port file, or the object store, is unusable."""
    settings = resolved.settings
    for name, problem in (
        ("port_file", port_file_problem(fs, settings.port_file)),
        ("cold_dir", cold_dir_problem(fs, settings.cold_dir, settings.data_dir)),
        ("store_url", store_problem(fs, settings.store_url, settings.data_dir)),
    ):
        if problem:
            raise CommandError(f"{resolved.sources[name]}={getattr(settings, name)!r}: {problem}")


def port_file_problem(fs: Fs, path: str) -> str:
    if not path:
        return ""
    directory = os.path.dirname(os.path.abspath(path))
    if not exists(fs, directory):
        return f"there is no directory {directory}"
    if not os.path.isdir(directory):
        return f"{directory} is not a directory"
    if os.path.isdir(path):
        return "is a directory, not a file"
    return "" if os.access(directory, os.W_OK | os.X_OK) else f"{directory} is not writable"


def cold_dir_problem(fs: Fs, path: str, data_dir: str) -> str:
    if not path:
        return ""
    if not exists(fs, path):
        return "no such directory; create it, or mount its disk"
    if not os.path.isdir(path):
        return "is not a directory"
    cold, hot = os.path.realpath(path), os.path.realpath(data_dir)
    if cold == hot:
        return "must not be the data directory"
    if is_within(cold, os.path.join(hot, SHARDS)):
        return f"must not be inside the shards of the data directory {hot}"
    if is_within(hot, os.path.join(cold, SHARDS)):
        return f"the data directory {hot} must not be inside its shards"
    return ""


def store_problem(fs: Fs, url: str, data_dir: str) -> str:
    if url and not store_folder(url) and find_spec("obstore") is None:
        return f"{urlsplit(url).scheme}: needs a client library; install {EXTRA}"
    return cold_dir_problem(fs, store_folder(url), data_dir)


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or a path below it; both are absolute.

    >>> is_within("/a/b", "/a"), is_within("/a", "/a"), is_within("/ab", "/a")
    (True, True, False)
    """
    return os.path.commonpath([path, directory]) == directory
