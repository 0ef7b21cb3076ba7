"""The upload of files as objects that are named by their content, a few at a time and with bounded memory.

U1  A file that the previous backup holds, with the same identity, is not read.
U2  An object that the previous backup names is in the store. Any other is looked up before it is sent, so an
    interrupted backup continues where it ended, without a note of its own.
U3  Large files are sent in parts, small ones together: files that do not change apart from those that do, so
    that the objects of the first kind serve later backups as they are.
U4  At most `THREADS` parts of PART_BYTES are in memory, and as many packs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import xxhash

from topicsd.backup.manifest import BackupManifest, StoredFile, StoredObject
from topicsd.backup.repository import BackupError, Repository
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectExists

PART_BYTES: Final = 8 << 20
SMALL_BYTES: Final = 1 << 20
THREADS: Final = 4


class SourceFile(NamedTuple):
    """A file to store, open for reading."""

    path: str
    read: Callable[[int, int], bytes]
    """Returns the bytes at an offset, of a size; threads call it at once."""
    close: Callable[[], object]
    size: int
    stored_bytes: int
    identity: tuple[int, int, int]
    is_stable: bool
    """Whether it never changes again."""


class _StoredPart(NamedTuple):
    """The place of a file in an upload whose object is not known yet."""

    path: str
    size: int
    stored_bytes: int
    uploads: list[Future[StoredObject]]
    offset: int
    digest: bytes
    identity: tuple[int, int, int]


class UploadRate:
    """A limit on the bytes sent in a second; 0 is none."""

    def __init__(self, bytes_per_second: int, repository: Repository) -> None:
        self._rate = bytes_per_second
        self._repository = repository
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size: int) -> None:
        if not self._rate:
            return
        with self._lock:
            now = self._repository.clock.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self._rate
        if self._repository.stopping.wait(begin - now):
            raise BackupError("stopped")


class _Pack:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.upload: Future[StoredObject] = Future()


class Uploader:
    """The upload of one backup. Close it after use."""

    def __init__(
        self,
        repository: Repository,
        previous: BackupManifest | None,
        rate: int,
        on_bytes: Callable[[int], object],
    ) -> None:
        self._repository = repository
        self._rate = UploadRate(rate, repository)
        self._on_bytes = on_bytes
        self._pool = ThreadPoolExecutor(THREADS)
        self._running: deque[Future[StoredObject]] = deque()
        self._known: set[tuple[bytes, int]] = set()
        self._previous: dict[
            tuple[str, int, tuple[int, int, int]], tuple[StoredFile, list[StoredObject]]
        ] = {}
        if previous is not None:
            self._known = {(one.digest, one.size) for one in previous.objects}
            for shard in previous.shards:
                for file in shard.files:
                    key = (file.path, file.stored_bytes, file.identity)
                    self._previous[key] = (file, [previous.objects[index] for index in file.objects])
        self._packs = {True: _Pack(), False: _Pack()}
        self._parts: dict[str, _StoredPart] = {}
        self.uploaded_bytes = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def find(self, path: str, stored_bytes: int, identity: tuple[int, int, int]) -> bool:
        """Take a file from this or the previous backup, if it has it unchanged (U1)."""
        part = self._parts.get(path)
        if part is not None and (part.stored_bytes, part.identity) == (stored_bytes, identity):
            return True
        entry = self._previous.get((path, stored_bytes, identity))
        if entry is None:
            return False
        file, objects = entry
        uploads = [_finished(one) for one in objects]
        self._parts[path] = _StoredPart(
            path, file.size, stored_bytes, uploads, file.offset, file.digest, identity
        )
        return True

    def add(self, file: SourceFile) -> None:
        """Store a file; it is read before this returns, or soon after, and is then closed."""
        if file.stored_bytes > SMALL_BYTES:
            self._add_parts(file)
            return
        try:
            data = self._read(file, 0, file.stored_bytes)
        finally:
            file.close()
        pack = self._packs[file.is_stable]
        self._parts[file.path] = _StoredPart(
            file.path,
            file.size,
            file.stored_bytes,
            [pack.upload] if data else [],
            pack.size,
            xxhash.xxh3_128_digest(data),
            file.identity,
        )
        pack.parts.append(data)
        pack.size += len(data)
        if pack.size >= PART_BYTES:
            self._send_pack(file.is_stable)

    def finish(self, paths: list[str], objects: dict[StoredObject, int]) -> list[StoredFile]:
        """Wait for the uploads; return the files of these paths, and add their objects to `objects`."""
        for is_stable in self._packs:
            self._send_pack(is_stable)
        while self._running:
            self._running.popleft().result()
        files = []
        for path in paths:
            part = self._parts[path]
            indexes = [objects.setdefault(one.result(), len(objects)) for one in part.uploads]
            files.append(
                StoredFile(
                    path, part.size, part.stored_bytes, indexes, part.offset, part.digest, part.identity
                )
            )
        return files

    def _add_parts(self, file: SourceFile) -> None:
        uploads = []
        offsets = range(0, file.stored_bytes, PART_BYTES)
        try:
            for offset in offsets:
                uploads.append(self._submit(partial(self._send_part, file, offset)))
            for upload in uploads:
                upload.result()
        finally:
            # Also after an interruption: a part that is still being read must not read another file.
            for upload in uploads:
                upload.cancel()
            for upload in uploads:
                if not upload.cancelled():
                    upload.exception()
            file.close()
        self._parts[file.path] = _StoredPart(
            file.path, file.size, file.stored_bytes, uploads, 0, b"", file.identity
        )

    def _send_part(self, file: SourceFile, offset: int) -> StoredObject:
        return self._send(self._read(file, offset, min(PART_BYTES, file.stored_bytes - offset)))

    def _read(self, file: SourceFile, offset: int, size: int) -> bytes:
        data = file.read(offset, size)
        if len(data) < size:
            raise BackupError(f"{file.path} ends at {offset + len(data)} of {file.stored_bytes} bytes")
        return data

    def _send_pack(self, is_stable: bool) -> None:
        pack = self._packs[is_stable]
        if pack.size:
            self._packs[is_stable] = _Pack()
            data = b"".join(pack.parts)
            upload = self._submit(partial(self._send, data))
            upload.add_done_callback(partial(_pass_on, pack.upload))

    def _submit(self, send: Callable[[], StoredObject]) -> Future[StoredObject]:
        while len(self._running) >= 2 * THREADS:
            self._running.popleft().result()
        upload = self._pool.submit(send)
        self._running.append(upload)
        return upload

    def _send(self, data: bytes) -> StoredObject:
        stored = StoredObject(xxhash.xxh3_128_digest(data), len(data))
        if (stored.digest, stored.size) not in self._known and not self._exists(stored):
            self._rate.take(len(data))
            # Another upload of the same bytes may be faster.
            with suppress(ObjectExists):
                create_object(self._repository.store, stored.key, [data], self._repository.retries())
            with self._lock:
                self.uploaded_bytes += len(data)
        self._on_bytes(len(data))
        return stored

    def _exists(self, stored: StoredObject) -> bool:
        store = self._repository.store
        try:
            info = repeat_request(lambda: store.info(stored.key), self._repository.retries())
        except FileNotFoundError:
            return False
        if info.size != stored.size:
            raise BackupError(f"{store.url}/{stored.key}: has {info.size} bytes: delete this damaged object")
        return True


def _finished(stored: StoredObject) -> Future[StoredObject]:
    upload: Future[StoredObject] = Future()
    upload.set_result(stored)
    return upload


def _pass_on(target: Future[StoredObject], source: Future[StoredObject]) -> None:
    """Give one upload the outcome of another."""
    if source.cancelled():
        target.cancel()
    elif (error := source.exception()) is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())
