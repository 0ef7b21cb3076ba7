"""Files by key below a folder: their paths, durable directories, and listings.

A key is a relative path with "/" between its parts.
"""

from __future__ import annotations

import os
from typing import Final

from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX
from topicsd.disk.fs import Fs
from topicsd.disk.layout import make_dirs

KNOWN_DIRECTORIES_MAX: Final = 1024


class KeyTree:
    """The files of one folder; safe to use from several threads."""

    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self.root = os.path.abspath(root)
        self._known_directories: set[str] = set()

    def path_of(self, key: str) -> str:
        return os.path.join(self.root, key)

    def make_directory(self, directory: str) -> None:
        """Make a key's directory and its parents durably, once for all files in it.

        Existing directories are synced too: a killed process may have made one without syncing it.
        """
        if directory in self._known_directories:
            return
        if directory != self.root:
            self.make_directory(os.path.dirname(directory))
        make_dirs(self._fs, directory)
        if len(self._known_directories) >= KNOWN_DIRECTORIES_MAX:
            self._known_directories.clear()
        self._known_directories.add(directory)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, sorted, without temporary files."""
        return [key for key in self._keys(prefix) if not key.endswith(TEMPORARY_SUFFIX)]

    def temporary_keys(self, prefix: str) -> list[str]:
        """Return the keys of the temporary files that begin with `prefix`, sorted."""
        return [key for key in self._keys(prefix) if key.endswith(TEMPORARY_SUFFIX)]

    def _keys(self, prefix: str) -> list[str]:
        folder, _, start = prefix.rpartition("/")
        keys: list[str] = []
        self._collect(folder, start, keys)
        return sorted(keys)

    def _collect(self, folder: str, start: str, keys: list[str]) -> None:
        try:
            names = self._fs.list_dir(self.path_of(folder))
        except FileNotFoundError:
            return
        for name in names:
            if not name.startswith(start):
                continue
            key = f"{folder}/{name}" if folder else name
            try:
                self._collect(key, "", keys)
            except NotADirectoryError:
                keys.append(key)
