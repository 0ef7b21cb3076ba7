"""What of an export was sent to where, beside the export, so that a replay that was cut off goes on.

::

    _replays/NAME/0000001.json    a round: these runs of the export, to this place; written before it begins
    _replays/NAME/0000001.done    it has ended

A round that has begun is sent again as it was planned, whatever came to the export since: the sink knows it
by its number and does the rest of it. So both files are written once and never changed, and losing the second
one costs time and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from spark.errors import SourceError
from spark.jobs.export_folder import Manifest
from spark.jobs.hadoop_folder import Folder

REPLAYS = "_replays"
RECORDS_PER_ROUND = 2_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


class Target(msgspec.Struct, frozen=True):
    """Where the records go."""

    url: str
    topic: str
    """All of them into this one, when it is not empty; else each into one of its own name."""
    prefix: str
    """In front of that name."""

    def __str__(self) -> str:
        of_prefix = (
            f"topics of the same names behind {self.prefix!r}" if self.prefix else "topics of the same names"
        )
        return f"{f'topic {self.topic}' if self.topic else of_prefix} of {self.url}"


class Round(msgspec.Struct, frozen=True):
    number: int
    first_run: int
    last_run: int
    target: Target


class ReplayBook:
    def __init__(self, folder: Folder, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise SourceError(f"{name!r} is no name of a replay, which must match {_NAME.pattern}")
        self._folder = folder
        self._name = name

    def rounds(self, manifests: list[Manifest], target: Target) -> Iterator[Round]:
        """Those that are to be done: first one that was begun, then what came since."""
        known = self._planned(target)
        done = set(self._folder.names(f"{REPLAYS}/{self._name}"))
        for one in known:
            if f"{one.number:07d}.done" not in done:
                yield one
        number = known[-1].number if known else 0
        rest = [one for one in manifests if not known or one.run > known[-1].last_run]
        while rest:
            number += 1
            taken, rest = first_round(rest)
            planned = Round(number, taken[0].run, taken[-1].run, target)
            self._folder.write_new(self._path(number, "json"), msgspec.json.encode(planned))
            yield planned

    def done(self, one: Round) -> None:
        self._folder.write_new(self._path(one.number, "done"), b"")

    def _planned(self, target: Target) -> list[Round]:
        found = []
        for name in self._folder.names(f"{REPLAYS}/{self._name}"):
            if name.endswith(".json"):
                data = self._folder.read(f"{REPLAYS}/{self._name}/{name}")
                found.append(msgspec.json.decode(data, type=Round))
        for one in found:
            if one.target != target:
                raise SourceError(
                    f'the replay "{self._name}" of this export goes to {one.target}, not to {target}; '
                    "give this one another --name"
                )
        return found

    def _path(self, number: int, suffix: str) -> str:
        return f"{REPLAYS}/{self._name}/{number:07d}.{suffix}"


def first_round(manifests: list[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """So many runs that there is something to do, at least one; and the rest."""
    records = 0
    for at, one in enumerate(manifests):
        records += one.records
        if records > RECORDS_PER_ROUND and at:
            return manifests[:at], manifests[at:]
    return manifests, []
