"""Rules of the engine, each switched off by a patch: what the judgement of a history has to find."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from topicsd.catalog.catalog import ExtentObject, Fenced
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership import hand_on, rounds, topic_export
from topicsd.engine.ownership.owner_calls import OwnerCalls
from topicsd.engine.ownership.release import Release
from topicsd.engine.ownership.rounds import CatalogRounds
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.topic import Topic
from topicsd.engine.upkeep import merging, tiering
from topicsd.engine.upkeep.tiering import Exported, ExportedObject
from topicsd.engine.upkeep.upkeep import Upkeep
from topicsd.store.create_object import create_object

Patch = Callable[[pytest.MonkeyPatch], None]


def ignore_fences(patch: pytest.MonkeyPatch) -> None:
    """A fenced node still serves, and raises the ceiling in its memory alone."""

    def on_fenced(self: CatalogRounds, topic: Topic, fenced: Fenced) -> None:
        owned = topic.ownership
        if owned is not None:
            owned.ceiling = max(owned.ceiling, topic.head + 1000)

    patch.setattr(CatalogRounds, "on_fenced", on_fenced)
    patch.setattr(rounds, "set_aside", lambda *_: None)


def publish_before_put(patch: pytest.MonkeyPatch) -> None:
    """The catalog names a state object before it is in the store."""

    def put_object(self: OwnerCalls, key: str, data: bytes) -> BackgroundJob[ExtentObject]:
        loop: Any = self._shard.loop
        loop.call_later(
            1.0, partial(self._shard.threads.export.submit, partial(_put, self, key, data), _ignore)
        )
        yield None
        return ExtentObject(key, len(data), "")

    patch.setattr(OwnerCalls, "put_object", put_object)


def _put(calls: OwnerCalls, key: str, data: bytes) -> None:
    create_object(calls._store, key, [data], calls._retries)


def _ignore(outcome: object) -> None:
    pass


def publish_without_put(patch: pytest.MonkeyPatch) -> None:
    """A lost request to the store is taken for a done one: the catalog names what is not there."""
    real = tiering.export_segment

    def export_segment(store: Any, local: Any, name: Any, entry: Any, epoch: int, *rest: Any) -> Exported:
        try:
            return real(store, local, name, entry, epoch, *rest)
        except OSError:
            stem = name.object_stem(epoch, "00000000")
            return Exported(stem, [ExportedObject(".data", entry.data_bytes, "")])

    patch.setattr(topic_export, "export_segment", export_segment)


def delete_without_cover(patch: pytest.MonkeyPatch) -> None:
    """Objects are deleted although the catalog still names them."""
    real = Release.waiting

    def waiting(self: Release) -> dict[Topic, list[str]]:
        for stems in real(self).values():
            assert self._shard.released_stems is not None
            self._shard.released_stems.update(stems)
        return {}

    patch.setattr(Release, "waiting", waiting)


def adopt_at_the_exported_head(patch: pytest.MonkeyPatch) -> None:
    """A node that takes a topic over resumes after the last exported seq, not above the ceiling."""
    patch.setattr(hand_on, "end_at", lambda entry, head, reason: entry)


def delete_merged_at_once(patch: pytest.MonkeyPatch) -> None:
    """The objects of merged segments are deleted before the catalog names others."""
    real = Upkeep._rewrite
    patch.setattr(merging, "GROWTH", 2)

    def rewrite(self: Upkeep, topic: Topic, runs: list[SealedRun]) -> BackgroundJob[bool]:
        stems = [run.entry.object_stem for run in runs]
        is_done = yield from real(self, topic, runs)
        released = self._shard.released_stems
        if is_done and len(runs) > 1 and released is not None:
            self._shard.objects_to_delete.update(dict.fromkeys(stems, 0))
            released.update(stems)
        return is_done

    patch.setattr(Upkeep, "_rewrite", rewrite)


def merge_without_marks(patch: pytest.MonkeyPatch) -> None:
    """A merge forgets which records were deleted."""
    real = Upkeep._rewrite
    patch.setattr(merging, "GROWTH", 2)

    def rewrite(self: Upkeep, topic: Topic, runs: list[SealedRun]) -> BackgroundJob[bool]:
        is_done = yield from real(self, topic, runs)
        if is_done and len(runs) > 1:
            run = topic.run_of(runs[0].first_seq)
            assert isinstance(run, SealedRun)
            run.dead, run.dead_count = None, 0
        return is_done

    patch.setattr(Upkeep, "_rewrite", rewrite)


BROKEN_RULES: Final[list[Patch]] = [
    delete_merged_at_once,
    merge_without_marks,
    ignore_fences,
    publish_before_put,
    publish_without_put,
    delete_without_cover,
    adopt_at_the_exported_head,
]
