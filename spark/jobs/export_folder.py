"""The folder of an export: its contents, and the order in which they are written.

::

    _manifest/0000007.json            what run 7 added, and the end of all runs so far
    _staging/0000007/topic=a/day=…/   where run 7 writes; deleted when its files are in place
    topic=a/day=2026-11-18/0000007-part-00000-….parquet

Every reader of Parquet ignores names that begin with `_`, so the folder is a table partitioned by topic and
day for any of them.

A run writes in this order, and may be interrupted anywhere:

W1  Spark writes all files of the run below `_staging`.
W2  The manifest of the run is written under a temporary name and renamed: from here on the run counts.
W3  Each file is renamed into its place.
W4  `_staging` of the run is deleted.

The next run first completes the run before (`settle`). Staging without a manifest is deleted: the last
manifest has the positions of the run before, from which the records are read again. Staging with a manifest
is moved into place, since W3 can be repeated. Therefore a manifest names every file that is in place, and a
record that a manifest counts is in exactly one file after W3; before that it may be missing, and is never
there twice.

How to change a manifest: raise VERSION and read the versions before it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from spark.errors import SourceError
from spark.jobs.hadoop_folder import Folder
from spark.source.stream_offset import TopicOffset, TopicOffsets, decode

VERSION = 1
MANIFESTS, STAGING = "_manifest", "_staging"
LOCK = "lock"
_NAME = re.compile(r"(\d{7})\.json")
_PARQUET = ".parquet"


class FolderBusy(SourceError):
    """Another job is writing to the folder."""


class TopicExport(msgspec.Struct, frozen=True):
    """A run's part of a topic: the live seqs from `start` up to `end`, exclusive."""

    epoch: int
    start: int
    end: int
    records: int


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    run: int
    export: str
    """The id of the folder, the same in all of its runs."""
    made_ms: int
    topics: dict[str, TopicExport]
    """What this run added."""
    place: dict[str, Any]
    """The end of all runs so far, encoded as in a stream's checkpoint (`stream_offset.py`)."""
    files: list[str]
    """The final names of this run's files."""

    @property
    def positions(self) -> TopicOffsets:
        return decode(self.place)

    @property
    def records(self) -> int:
        return sum(one.records for one in self.topics.values())


class ExportFolder:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Lock a local folder, or raise FolderBusy; the lock ends with the process."""
        path = self.folder.local_path
        if path is None:
            yield
            return
        try:
            os.makedirs(os.path.join(path, MANIFESTS), exist_ok=True)
            handle = os.open(os.path.join(path, MANIFESTS, LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SourceError(f"cannot write to {self.folder.uri}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FolderBusy(f"{self.folder.uri}: another job is writing to this folder") from None
            yield
        finally:
            os.close(handle)

    def manifests(self) -> list[ExportManifest]:
        """Return the manifests, in order, of the runs whose files are all in place."""
        staged_runs = self.folder.names(STAGING)
        return [self._manifest(run) for run in self._runs() if f"{run:07d}" not in staged_runs]

    def last(self) -> ExportManifest | None:
        runs = self._runs()
        return self._manifest(runs[-1]) if runs else None

    def _runs(self) -> list[int]:
        matches = map(_NAME.fullmatch, self.folder.names(MANIFESTS))
        return sorted(int(one[1]) for one in matches if one)

    def _manifest(self, run: int) -> ExportManifest:
        name = f"{MANIFESTS}/{run:07d}.json"
        try:
            manifest = msgspec.json.decode(self.folder.read(name), type=ExportManifest)
        except msgspec.DecodeError as error:
            raise SourceError(f"{self.folder.uri_of(name)}: invalid manifest: {error}") from None
        if manifest.version != VERSION:
            raise SourceError(
                f"{self.folder.uri_of(name)}: version must be {VERSION}, got {manifest.version}"
            )
        return manifest

    def settle(self) -> ExportManifest | None:
        """Complete or discard an interrupted run; return the last manifest that counts."""
        last = self.last()
        for name in self.folder.names(STAGING):
            if last is not None and name == f"{last.run:07d}":
                self._move(last.run)
            else:
                self.folder.remove(f"{STAGING}/{name}")
        return last

    def staging(self, run: int) -> str:
        """Return the URI that Spark writes a run to."""
        return self.folder.uri_of(f"{STAGING}/{run:07d}")

    def staged_files(self, run: int) -> list[tuple[str, str]]:
        """Return the names of a run's files, in staging and in place."""
        files = []
        # A run that only notes the ends of topics has no files.
        staged = f"{STAGING}/{run:07d}"
        for name, _ in self.folder.files(staged) if self.folder.exists(staged) else ():
            if name.endswith(_PARQUET):
                parts = name.split("/")
                files.append((name, "/".join([*parts[:-1], f"{run:07d}-{parts[-1]}"])))
        return files

    def commit(self, manifest: ExportManifest) -> None:
        """Publish a run whose files are in staging."""
        name = f"{MANIFESTS}/{manifest.run:07d}.json"
        if self.folder.exists(name):
            raise SourceError(
                f"{self.folder.uri_of(name)}: another export wrote this run; run one export at a time"
            )
        self.folder.write_new(name, msgspec.json.format(msgspec.json.encode(manifest)))
        self._move(manifest.run)

    def _move(self, run: int) -> None:
        for staged, place in self.staged_files(run):
            self.folder.rename(f"{STAGING}/{run:07d}/{staged}", place)
        self.folder.remove(f"{STAGING}/{run:07d}")


def positions_after(last: ExportManifest | None, topics: dict[str, TopicExport]) -> TopicOffsets:
    positions = {} if last is None else last.positions
    return {**positions, **{name: TopicOffset(one.epoch, one.end) for name, one in topics.items()}}
