"""The progress of a replay, kept beside the export so that the replay can resume.

::

    _replays/NAME/0000001.json    a round: these runs of the export, to this target; written before it begins
    _replays/NAME/0000001.done    the round has ended

A round that has begun is sent again as planned, whatever was exported since: the sink recognizes it by its
number and does the rest. Both files are therefore written once and never changed, and losing the second one
costs only time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from spark.errors import SourceError
from spark.jobs.export_folder import ExportManifest
from spark.jobs.hadoop_folder import Folder

REPLAYS = "_replays"
RECORDS_PER_ROUND = 2_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


class Target(msgspec.Struct, frozen=True):
    """The destination of a replay."""

    url: str
    topic: str
    """The topic for all records; empty if each record keeps the name of its topic."""
    prefix: str
    """The text before that name."""

    def __str__(self) -> str:
        names = (
            f"topics of the same names with prefix {self.prefix!r}"
            if self.prefix
            else "topics of the same names"
        )
        return f"{f'topic {self.topic}' if self.topic else names} at {self.url}"


class Round(msgspec.Struct, frozen=True):
    number: int
    first_run: int
    last_run: int
    target: Target


class ReplayBook:
    def __init__(self, folder: Folder, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise SourceError(f"--name: must match {_NAME.pattern}, got {name!r}")
        self._folder = folder
        self._name = name

    def rounds(self, manifests: list[ExportManifest], target: Target) -> Iterator[Round]:
        """Yield the rounds to do: first unfinished ones, then new ones."""
        known = self._stored_rounds(target)
        done = set(self._folder.names(f"{REPLAYS}/{self._name}"))
        for one in known:
            if f"{one.number:07d}.done" not in done:
                yield one
        number = known[-1].number if known else 0
        rest = [one for one in manifests if not known or one.run > known[-1].last_run]
        while rest:
            number += 1
            first, rest = first_round(rest)
            added = Round(number, first[0].run, first[-1].run, target)
            self._folder.write_new(self._path(number, "json"), msgspec.json.encode(added))
            yield added

    def mark_done(self, one: Round) -> None:
        self._folder.write_new(self._path(one.number, "done"), b"")

    def _stored_rounds(self, target: Target) -> list[Round]:
        rounds = []
        for name in self._folder.names(f"{REPLAYS}/{self._name}"):
            if name.endswith(".json"):
                data = self._folder.read(f"{REPLAYS}/{self._name}/{name}")
                rounds.append(msgspec.json.decode(data, type=Round))
        for one in rounds:
            if one.target != target:
                raise SourceError(
                    f'--name: replay "{self._name}" of this export writes to {one.target}, not to {target}; '
                    "use another name"
                )
        return rounds

    def _path(self, number: int, suffix: str) -> str:
        return f"{REPLAYS}/{self._name}/{number:07d}.{suffix}"


def first_round(manifests: list[ExportManifest]) -> tuple[list[ExportManifest], list[ExportManifest]]:
    """Split off the runs of the next round, at least one; return them and the rest."""
    records = 0
    for at, one in enumerate(manifests):
        records += one.records
        if records > RECORDS_PER_ROUND and at:
            return manifests[:at], manifests[at:]
    return manifests, []
