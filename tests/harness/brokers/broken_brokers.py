"""Rules that a broker breaks, one each: what the judgement of a history has to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest
from msgspec.structs import replace

from shared.contract.errors import Refusal
from topicsd.broker.frames_v1 import Rebase
from topicsd.broker.read import reader
from topicsd.broker.read.heads import Heads
from topicsd.broker.refusals import no_catalog
from topicsd.broker.segment_v1 import SegmentBuilder
from topicsd.broker.steps import Resume, Steps, run
from topicsd.broker.upkeep import compactor
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum
from topicsd.broker.write.committer import BlobCommitter, CommitOutcome, CommittedRun, Flight
from topicsd.catalog.shared.shared_catalog import PartResult, Slice

Patch = Callable[[pytest.MonkeyPatch], None]
Results = list[list[PartResult]]

PUT: Final = BlobCommitter.put
COMMIT: Final = BlobCommitter.commit
COMMIT_BEFORE: Final = BlobCommitter.commit_before


def acknowledges_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seqs are guessed, and the commit is made after the answer."""

    def commit(
        self: BlobCommitter, key: str, slices: list[Slice], until: float
    ) -> Steps[CommitOutcome | Refusal]:
        run(COMMIT(self, key, slices, until), lambda outcome: None)
        yield lambda resume: resume(None)
        return CommitOutcome(_guess(self, slices), False)

    monkeypatch.setattr(BlobCommitter, "commit", commit)


def shows_records_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are in the tail cache, at the seqs that they will probably get."""

    def commit(
        self: BlobCommitter, key: str, slices: list[Slice], until: float
    ) -> Steps[CommitOutcome | Refusal]:
        for one, results in zip(slices, _guess(self, slices), strict=True):
            first, last = results[0].first_seq, results[-1].last_seq
            self.on_commit(CommittedRun(one.topic, one.incarnation, first, last, b""))
        return (yield from COMMIT(self, key, slices, until))

    monkeypatch.setattr(BlobCommitter, "commit", commit)


def _guess(self: BlobCommitter, slices: Sequence[Slice]) -> Results:
    guesses: Results = []
    for one in slices:
        known = self.topics.known(one.topic)
        head = 0 if known is None else known.head
        guesses.append([])
        for part in one.parts:
            guesses[-1].append(PartResult("committed", head + 1, head + part.count))
            head += part.count
    return guesses


def takes_a_lost_answer_for_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(
        self: BlobCommitter, key: str, slices: list[Slice], until: float
    ) -> Steps[CommitOutcome | Refusal]:
        def call(resume: Resume) -> None:
            def end(outcome: Any) -> None:
                resume([outcome])

            self.commits.call(partial(self.commit_before, until, key, slices))(end)

        (outcome,) = yield call
        return no_catalog(outcome) if isinstance(outcome, OSError) else CommitOutcome(outcome, False)

    monkeypatch.setattr(BlobCommitter, "commit", commit)


def repeats_with_new_append_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [0]

    def commit_before(self: BlobCommitter, until: float, key: str, slices: list[Slice]) -> Results:
        tries[0] += 1
        renamed: list[Slice] = []
        for one in slices:
            parts = [replace(part, append_id=f"{part.append_id}/{tries[0]}") for part in one.parts]
            renamed.append(replace(one, parts=tuple(parts)))
        return COMMIT_BEFORE(self, until, key, renamed)

    monkeypatch.setattr(BlobCommitter, "commit_before", commit_before)


def reorders_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for_turn(self: BlobCommitter, flight: Flight, resume: Resume) -> None:
        resume(None)

    monkeypatch.setattr(BlobCommitter, "wait_for_turn", wait_for_turn)


def deletes_orphans_without_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no extent names is deleted at once, although it may be committed later."""

    def condemn(self: BlobVacuum, keys: list[str]) -> set[str]:
        return set(keys) - self.named()

    monkeypatch.setattr(BlobVacuum, "condemn", condemn)


class UnnumberedBuilder(SegmentBuilder):
    """Leaves the numbers in the frames that they have in their slices."""

    def __init__(self, incarnation: int, first_seq: int) -> None:
        super().__init__(incarnation, first_seq)
        self.bodies: list[bytes] = []

    def add(self, body: bytes, rebase: Rebase) -> bool:
        is_whole = super().add(body, rebase)
        self.bodies += [body] * is_whole
        return is_whole

    def parts(self) -> list[bytes]:
        header, *_, entries, footer = super().parts()
        return [header, *self.bodies, entries, footer]


def merges_without_numbering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "SegmentBuilder", UnnumberedBuilder)


def serves_what_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ROW_SECONDS", 1e9)


def takes_an_old_head_for_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heads, "is_current", lambda self, name, incarnation: True)


def commits_before_the_object_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(self: BlobCommitter, key: str, data: bytes) -> None:
        try:
            PUT(self, key, data)
        except OSError:
            return

    monkeypatch.setattr(BlobCommitter, "put", put)


BROKEN_RULES: Final[tuple[Patch, ...]] = (
    acknowledges_before_commit,
    shows_records_before_commit,
    takes_a_lost_answer_for_a_failure,
    repeats_with_new_append_ids,
    reorders_blobs,
    deletes_orphans_without_a_mark,
    merges_without_numbering,
    serves_what_was_removed,
    takes_an_old_head_for_the_present_one,
    commits_before_the_object_is_there,
)
