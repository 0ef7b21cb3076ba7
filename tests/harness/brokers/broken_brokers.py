"""Rules that a broker breaks, one each: what the judgement of a history has to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest
from msgspec.structs import replace

from shared.contract.errors import Refusal
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from tests.harness.brokers.broker_machine import TopicsListener
from topicsd.broker import broker
from topicsd.broker.frames_v1 import Rebase
from topicsd.broker.read import reader
from topicsd.broker.read.heads import Heads
from topicsd.broker.read.tail_cache import TailCache, TailChunk
from topicsd.broker.refusals import no_catalog
from topicsd.broker.segment_v1 import SegmentBuilder
from topicsd.broker.steps import Resume, Steps, run
from topicsd.broker.topic_table import TopicTable
from topicsd.broker.upkeep import compactor
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum
from topicsd.broker.write.batcher import Batcher, BatchLimits
from topicsd.broker.write.committer import BlobCommitter, CommitOutcome, CommittedRun, Flight
from topicsd.catalog.shared.shared_catalog import HeadNotice, PartResult, Slice

Patch = Callable[[pytest.MonkeyPatch], None]
Results = list[list[PartResult]]

PUT: Final = BlobCommitter.put
COMMIT: Final = BlobCommitter.commit
COMMIT_BEFORE: Final = BlobCommitter.commit_before
REPORT: Final = TopicsListener.report
ADD, FIND, INIT = TailCache.add, TailCache.find, Batcher.__init__


def acknowledges_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seqs are guessed, and the commit is made after the answer."""

    def commit(
        self: BlobCommitter, key: str, slices: list[Slice], until: float, is_sent: bool = False
    ) -> Steps[CommitOutcome | Refusal]:
        run(COMMIT(self, key, slices, until), lambda outcome: None)
        yield lambda resume: resume(None)
        return CommitOutcome(_guess(self, slices), False)

    monkeypatch.setattr(BlobCommitter, "commit", commit)


def shows_records_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are in the tail cache, at the seqs that they will probably get."""

    def commit(
        self: BlobCommitter, key: str, slices: list[Slice], until: float, is_sent: bool = False
    ) -> Steps[CommitOutcome | Refusal]:
        for one, results in zip(slices, _guess(self, slices), strict=True):
            first, last = results[0].first_seq, results[-1].last_seq
            self.on_commit(CommittedRun(one.topic, one.incarnation, first, last, []))
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
        self: BlobCommitter, key: str, slices: list[Slice], until: float, is_sent: bool = False
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


def reports_heads_before_their_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(self: TopicsListener, notice: HeadNotice) -> None:
        REPORT(self, notice if notice.head is None else notice._replace(head=notice.head + 1))

    monkeypatch.setattr(TopicsListener, "report", report)


def commits_before_the_object_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(self: BlobCommitter, key: str, parts: Sequence[bytes]) -> None:
        try:
            PUT(self, key, parts)
        except OSError:
            return

    monkeypatch.setattr(BlobCommitter, "put", put)


def gives_the_parts_of_a_slice_the_same_seqs(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_before(self: BlobCommitter, until: float, key: str, slices: list[Slice]) -> Results:
        results = COMMIT_BEFORE(self, until, key, slices)
        for one, parts in zip(slices, results, strict=True):
            first = parts[0].first_seq
            if all(result.status == "committed" for result in parts):
                parts[:] = [
                    replace(result, first_seq=first, last_seq=first + part.count - 1)
                    for part, result in zip(one.parts, parts, strict=True)
                ]
        return results

    monkeypatch.setattr(BlobCommitter, "commit_before", commit_before)


class ForgetfulBuilder(SegmentBuilder):
    """Keeps the first slice only."""

    def __init__(self, incarnation: int, first_seq: int) -> None:
        super().__init__(incarnation, first_seq)
        self.has_slice = False

    def add(self, body: bytes, rebase: Rebase) -> bool:
        is_whole = self.has_slice or super().add(body, rebase)
        self.has_slice = True
        return is_whole


def drops_slices_in_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "SegmentBuilder", ForgetfulBuilder)


def serves_the_cached_records_of_a_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail cache knows topics by their names alone, and keeps a topic that is gone."""
    known: dict[tuple[int, str], int] = {}

    def add(self: TailCache, chunk: TailChunk) -> None:
        known.setdefault((id(self), chunk.name), chunk.rebase.incarnation)
        if known[id(self), chunk.name] == chunk.rebase.incarnation:
            ADD(self, chunk)

    def find(self: TailCache, name: str, incarnation: int, seq: int) -> TailChunk | None:
        return FIND(self, name, known.get((id(self), name), incarnation), seq)

    monkeypatch.setattr(TailCache, "add", add)
    monkeypatch.setattr(TailCache, "find", find)
    monkeypatch.setattr(TailCache, "drop", lambda self, name: None)


def answers_reads_that_have_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "is_complete", lambda *rule: True)


def has_no_back_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(
        self: Batcher, clock: Clock, loop: Loop, topics: TopicTable, to: BlobCommitter, limits: BatchLimits
    ) -> None:
        INIT(self, clock, loop, topics, to, limits._replace(pending_bytes=1 << 60, pending_seconds=1e9))

    monkeypatch.setattr(Batcher, "__init__", init)


def caches_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "TailCache", lambda bytes_max: TailCache(1 << 60))


BROKEN_RULES: Final[tuple[Patch, ...]] = (
    acknowledges_before_commit,
    shows_records_before_commit,
    takes_a_lost_answer_for_a_failure,
    repeats_with_new_append_ids,
    reorders_blobs,
    gives_the_parts_of_a_slice_the_same_seqs,
    deletes_orphans_without_a_mark,
    merges_without_numbering,
    drops_slices_in_a_compaction,
    serves_what_was_removed,
    serves_the_cached_records_of_a_deleted_topic,
    takes_an_old_head_for_the_present_one,
    reports_heads_before_their_commits,
    commits_before_the_object_is_there,
    answers_reads_that_have_too_little,
    has_no_back_pressure,
    caches_all_records,
)
