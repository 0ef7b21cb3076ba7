"""`KEYS.json` of a data directory, read and replaced through a file system.

The codec is `shared/ipc/key_file.py`. Only the supervisor changes the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from shared.ipc.key_file import KEYS_NAME, KeyFileError, StoredKey, decode_keys, encode_keys
from topicsd.disk.atomic_replace import read_all, replace_file
from topicsd.disk.fs import Fs

# A thousand keys with many long prefixes.
KEYS_BYTES_MAX: Final = 64 << 20


def keys_path(data_dir: str) -> str:
    return os.path.join(data_dir, KEYS_NAME)


def read_keys(fs: Fs, data_dir: str) -> list[StoredKey]:
    """Return the named keys of a directory; raise KeyFileError."""
    path = keys_path(data_dir)
    try:
        text = read_all(fs, path, KEYS_BYTES_MAX)
    except FileNotFoundError:
        return []
    return decode_keys(text, path)


def write_keys(fs: Fs, data_dir: str, keys: Iterable[StoredKey]) -> None:
    """Replace the file durably: it is the old or the new one after a crash."""
    replace_file(fs, keys_path(data_dir), encode_keys(keys))


def key_file_problem(fs: Fs, data_dir: str) -> str:
    """Return why a server refuses to start because of the file; empty if it does not."""
    try:
        read_keys(fs, data_dir)
    except KeyFileError as error:
        return (
            f"{error}; without its keys the server would be open to every client: restore the file from a "
            "backup, or remove it to give up its keys"
        )
    return ""
