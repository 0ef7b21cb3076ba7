"""The backups in one object store: their manifests, and the marks of running commands.

A backup may rely on an object that is in the store although no manifest names it yet, and a prune deletes
exactly such objects. So the two exclude each other:

X1  Each announces itself with a mark, an object of its own, and only then looks for marks of the other. The
    store is strongly consistent, so the later of the two sees the earlier one.
X2  A create that sees a prune ends. A prune that sees a create deletes manifests, but no object.
X3  A mark of a killed command counts until it is older than MARK_HOURS, by the times of the store. A command
    that takes longer than that may not finish: a create ends without a manifest.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

from shared.runtime.clock import Clock
from shared.runtime.retries import Retries
from topicsd.backup.manifest import (
    BACKUPS,
    BLOBS,
    BackupManifest,
    ManifestDamaged,
    decode_manifest,
    manifest_key,
)
from topicsd.disk.access import os_error_sentence
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectStore, StoreFull

REQUEST_SECONDS: Final = 120.0
MARK_HOURS: Final = 24
# Below the folder of the objects: a store in a folder takes a missing one for a disk that is not mounted.
CREATING: Final = f"{BLOBS}creating"
PRUNING: Final = f"{BLOBS}pruning"
READ_BYTES: Final = 8 << 20


class BackupError(Exception):
    """A command fails for a reason that its user can fix."""


class ListedBackup(NamedTuple):
    """A backup in the store; `manifest` is None when it is damaged, and `problem` says how."""

    id: str
    manifest: BackupManifest | None
    problem: str


class Repository:
    """The backups of one store; safe to use from several threads."""

    def __init__(
        self, store: ObjectStore, clock: Clock, on_retry: Callable[[str], object] = lambda line: None
    ) -> None:
        """Call `on_retry` with a line for a person when the store does not answer."""
        self.store = store
        self.clock = clock
        self._on_retry = on_retry
        self.stopping = threading.Event()

    def retries(self) -> Retries:
        ends = self.clock.monotonic() + REQUEST_SECONDS

        def on_failure(error: Exception, count: int) -> None:
            # Room is made by its user, and not while a command waits.
            if isinstance(error, StoreFull):
                sentence = f"the store is full: {os_error_sentence(error)}"
                raise BackupError(f"{sentence}; free some space and run the command again") from None
            left = max(0.0, ends - self.clock.monotonic())
            cause = os_error_sentence(error) if isinstance(error, OSError) else str(error)
            self._on_retry(f"store: not answering, attempt {count}, giving up in {left:.0f} s: {cause}")

        return Retries(self.clock.monotonic, self._wait, REQUEST_SECONDS, on_failure=on_failure)

    def _wait(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise BackupError("stopped")

    def new_id(self) -> str:
        """Return an id that sorts by time."""
        now_ms = self.clock.now_ms()
        now = datetime.fromtimestamp(now_ms // 1000, UTC)
        return f"{now:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z-{secrets.token_hex(4)}"

    def ids(self) -> list[str]:
        """Return the ids of all backups, oldest first."""
        keys = repeat_request(lambda: [one.key for one in self.store.list(BACKUPS)], self.retries())
        parts = [key.split("/") for key in keys]
        return sorted(part[1] for part in parts if len(part) == 3 and part[2] == "manifest")

    def read(self, backup_id: str) -> BackupManifest:
        """Read a manifest; FileNotFoundError, or ManifestDamaged."""
        manifest = decode_manifest(self.read_all(manifest_key(backup_id)))
        if manifest.head.id != backup_id:
            raise ManifestDamaged(f"it is the manifest of backup {manifest.head.id}")
        return manifest

    def backups(self) -> Iterator[ListedBackup]:
        """Yield all backups, newest first."""
        for backup_id in reversed(self.ids()):
            try:
                yield ListedBackup(backup_id, self.read(backup_id), "")
            except ManifestDamaged as damage:
                yield ListedBackup(backup_id, None, str(damage))
            except FileNotFoundError:
                continue  # Pruned since it was listed.

    def read_all(self, key: str) -> bytes:
        parts = []
        offset = 0
        while part := self.read_part(key, offset, READ_BYTES):
            parts.append(part)
            offset += len(part)
            if len(part) < READ_BYTES:
                break
        return b"".join(parts)

    def read_part(self, key: str, offset: int, size: int) -> bytes:
        return repeat_request(lambda: self.store.read(key, offset, size), self.retries())

    @contextmanager
    def marked(self, kind: str, name: str) -> Iterator[int]:
        """Announce a command while the block runs (X1); yields the store's time of the mark."""
        key = f"{kind}/{name}"
        create_object(self.store, key, [name.encode()], self.retries())
        try:
            yield repeat_request(lambda: self.store.info(key), self.retries()).modified_ms
        finally:
            with suppress(OSError):
                self.store.delete(key)

    def marks(self, kind: str, now_ms: int) -> list[str]:
        """Return the marks of a kind that count (X3); `now_ms` is by the store."""
        since = now_ms - MARK_HOURS * 3_600_000
        infos = repeat_request(lambda: list(self.store.list(f"{kind}/")), self.retries())
        return [info.key for info in infos if info.modified_ms > since]
