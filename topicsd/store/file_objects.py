"""Objects as files in a folder, durable before `create` returns: the store `file:///folder`.

The folder is on a disk of this machine, or on a file system that several machines mount.

F1  A file is written under a temporary name of its own and synced, then linked to its key, and the directory
    is synced, also by a writer that finds its key taken. So an object is whole or absent after a power cut
    at any moment, and one that `create` reported survives it.
F2  A link fails if the name is taken, so exactly one of two writers succeeds. A network file system may
    repeat a link whose answer was lost and report that the name is taken; the temporary file then has the
    same inode as the object, which is ours.
F3  A folder that is missing, or lacks the first part of a key, is not mounted: its objects are unavailable,
    not lost, and none is created there. An object that is missing elsewhere is missing.
F4  Temporary files of killed writers are left in place. `list` does not show them, and vacuum removes them.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.key_tree import KeyTree
from topicsd.store.object_store import (
    ObjectExists,
    ObjectInfo,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    check_key,
)

_REFUSALS = (PermissionError, NotADirectoryError, IsADirectoryError)
WRITE_BYTES_MIN: Final = 32 << 10
"""Parts that are smaller on average are joined: a copy takes less time than a call of the system."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FileObjects:
    """An object store in a folder, accessed through `Fs`."""

    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self._tree = KeyTree(fs, root)

    @property
    def url(self) -> str:
        return f"file://{self._tree.root}"

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        check_key(key)
        path = self._tree.path_of(key)
        directory = os.path.dirname(path)
        temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        try:
            self._fs.stat(self._tree.root)
        except OSError as error:
            raise StoreUnavailable(error.errno, "no such folder: is it mounted?", self._tree.root) from None
        try:
            self._tree.make_directory(directory)
            self._write(temporary, parts)
            try:
                is_ours = self._link(temporary, path)
                # Also for the object of another writer: what exists for one caller exists after a power cut.
                self._fs.sync_dir(directory)
            finally:
                self._fs.unlink(temporary)
        except OSError as error:
            with suppress(OSError):
                self._fs.unlink(temporary)
            if error.errno in _FULL:
                raise self._full(error, sum(map(len, parts))) from error
            raise _store_error(error, path) from error
        if not is_ours:
            raise ObjectExists(f"{self.url}/{key} exists")

    def _full(self, error: OSError, size: int) -> StoreFull:
        reason = f"{error.strerror}: {size:,} bytes needed for an object"
        if error.errno == errno.ENOSPC:
            with suppress(OSError):
                reason += f", {self._fs.free_bytes(self._tree.root):,} bytes free"
        return StoreFull(error.errno, reason, self._tree.root)

    def _link(self, temporary: str, path: str) -> bool:
        """Give the object its name; return False when another object has it."""
        try:
            self._fs.link(temporary, path)
        except FileExistsError:
            ours, theirs = self._fs.stat(temporary), self._fs.stat(path)
            return (ours.device, ours.inode) == (theirs.device, theirs.inode)
        return True

    def _write(self, path: str, parts: Sequence[bytes]) -> None:
        if sum(map(len, parts)) < len(parts) * WRITE_BYTES_MIN:
            parts = [b"".join(parts)]
        fd = self._fs.create(path)
        try:
            offset = 0
            for part in parts:
                write_all(self._fs, fd, part, offset)
                offset += len(part)
            self._fs.sync_data(fd)
        finally:
            self._fs.close(fd)

    def read(self, key: str, offset: int, size: int) -> bytes:
        with _StoreErrors():
            try:
                fd = self._fs.open_read(self._tree.path_of(key))
            except FileNotFoundError:
                self._refuse_unmounted(key)
                raise
            try:
                return self._fs.pread(fd, size, offset)
            finally:
                self._fs.close(fd)

    def info(self, key: str) -> ObjectInfo:
        with _StoreErrors():
            try:
                stat = self._fs.stat(self._tree.path_of(key))
            except FileNotFoundError:
                self._refuse_unmounted(key)
                raise
        return ObjectInfo(key, stat.size, stat.modified_ms, None)

    def delete(self, key: str) -> None:
        with _StoreErrors():
            try:
                self._fs.unlink(self._tree.path_of(key))
            except FileNotFoundError:
                self._refuse_unmounted(key)

    def _refuse_unmounted(self, key: str) -> None:
        """Raise StoreUnavailable unless the folder has, or had, objects whose keys begin like this one."""
        folder = self._tree.path_of(key.partition("/")[0]) if "/" in key else self._tree.root
        try:
            self._fs.stat(folder)
        except FileNotFoundError:
            raise StoreUnavailable(errno.ENOENT, "no such folder: is it mounted?", folder) from None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        with _StoreErrors():
            keys = self._tree.keys(prefix)
        return self._infos([key for key in keys if key > after])

    def temporary_files(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the temporary files whose keys begin with `prefix` (F4); `delete` removes them."""
        with _StoreErrors():
            keys = self._tree.temporary_keys(prefix)
        return self._infos(keys)

    def _infos(self, keys: Sequence[str]) -> Iterator[ObjectInfo]:
        for key in keys:
            try:
                yield self.info(key)
            except FileNotFoundError:
                continue  # Deleted since the folder was read.

    def close(self) -> None:
        pass


def _store_error(error: OSError, path: str = "") -> OSError:
    """Return the error of a store; `path` is for errors of open files, which name none."""
    if isinstance(error, FileNotFoundError | StoreRefused | StoreUnavailable):
        return error
    is_refusal = isinstance(error, _REFUSALS) or error.errno == errno.EROFS
    kind = StoreRefused if is_refusal else StoreUnavailable
    return kind(error.errno, error.strerror, error.filename or path or None)


class _StoreErrors:
    """A context that turns the errors of the file system into those of a store."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and (mapped := _store_error(error)) is not error:
            raise mapped from error
