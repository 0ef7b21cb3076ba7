"""The committer: makes a closed blob an object, commits its parts, and answers their requests.

W1  The object first, then one commit for all its parts (R3). Nothing is visible, cached or acknowledged
    before the catalog has answered the commit (R1).
W2  A commit without an answer is repeated, with the same object and the same append ids, until its outcome
    is known (R9). No request for a blob is made later than COMMIT_SECONDS after its first group joined: the
    catalog recognises a repetition for REPEATED_MS, and one that it does not recognise would append the
    records twice. That leaves a client with an idempotency key as much time for tries of its own. The time
    is compared on the thread that makes the request, so a process that was stopped makes no late one. If no
    request was made, the parts are refused, else they are in doubt. So are parts that a repetition finds
    fenced, missing, or out of the order of their producer: an earlier request may have come before that, or
    may come after it has passed.
W3  Parts of a condemned blob are put into another object, under another key, and committed again (C6).
W4  A blob is committed when no earlier blob with one of its topics is on its way. So the seqs of one topic
    are in the order of the requests, while blobs without a common topic do not wait for each other.
W5  A blob whose object cannot be put is refused, and was not committed: its parts are definitely not there.
    The object may exist, and is an orphan.
W6  With homes (`topicsd/broker/home`), slices are sent to the homes of their topics first, in one request
    each. What a home has not committed for certain is committed here, with the same append ids. Unless the
    home has refused, its request counts as an earlier one (W2): it may have been done, or may be done until
    its time is over.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from shared.contract.errors import Refusal, store_unavailable, throttled
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from shared.runtime.retries import Pauses, Retries
from topicsd.broker.frames_v1 import FRAMES_V1, Texts
from topicsd.broker.home.homes import Homes
from topicsd.broker.lls1 import FOLDER, EncodedBlob
from topicsd.broker.refusals import (
    commit_in_doubt,
    key_mismatch,
    no_catalog,
    producer_gap,
    store_failed,
    topic_changed,
    topic_fenced,
)
from topicsd.broker.steps import Pool, Resume, Steps, call_reply, run, sleep, together
from topicsd.broker.topic_table import TopicTable
from topicsd.broker.turns import TopicTurns, Turn
from topicsd.broker.write.open_blob import Appended, OpenBlob, OpenSlice, PendingPart
from topicsd.catalog.catalog import CatalogRefused
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, PartResult, SharedCatalog, Slice
from topicsd.store.create_object import create_object
from topicsd.store.object_store import ObjectExists, ObjectStore, StoreRefused

COMMIT_SECONDS: Final = REPEATED_MS / 1000 / 3
"""The other thirds are for the tries of a client, and for a request that reaches the catalog late."""
PAUSES: Final = Pauses(0.1, 5.0)
PASSING: Final = ("fenced", "missing", "sequence_gap", "producers_full")
"""Results that an earlier request of the same commit may not have had, or may not get when it arrives."""


class CommittedRun(NamedTuple):
    """Records of one topic that follow each other, as they were committed now."""

    topic: str
    incarnation: int
    first_seq: int
    last_seq: int
    bodies: list[bytes]
    """The frames, in order."""
    texts: Texts | None = None
    """The records, if all are texts."""
    ts: int = 0
    """Of the records."""


class CommitTooLate(OSError):
    """A request for a commit was not made (W2)."""


class CommitOutcome(NamedTuple):
    """The results of a commit, and whether an earlier request of it may still reach the catalog."""

    results: list[list[PartResult]]
    may_arrive_again: bool


class CommitTotals:
    __slots__ = ("condemned", "in_doubt", "put_failures", "repeats")

    def __init__(self) -> None:
        self.condemned = self.in_doubt = self.put_failures = self.repeats = 0


class Flight(NamedTuple):
    """A blob on its way, in the order of the blobs."""

    blob: OpenBlob
    turn: Turn


class BlobCommitter:
    def __init__(
        self,
        clock: Clock,
        loop: Loop,
        store: ObjectStore,
        catalog: SharedCatalog,
        puts: Pool,
        commits: Pool,
        retries: Callable[[], Retries],
        topics: TopicTable,
        on_commit: Callable[[CommittedRun], object],
    ) -> None:
        """`on_commit` makes committed records visible to the readers of this process."""
        self._clock = clock
        self._loop = loop
        self._store = store
        self._catalog = catalog
        self._puts = puts
        self.commits = commits
        self._retries = retries
        self.topics = topics
        self.on_commit = on_commit
        self._turns = TopicTurns()
        self.homes: Homes | None = None
        """None where commits are made here alone."""
        self.totals = CommitTotals()

    @property
    def in_flight(self) -> int:
        return len(self._turns)

    def start(self, blob: OpenBlob, on_settled: Callable[[OpenBlob], object]) -> None:
        flight = Flight(blob, self._turns.enter([one.topic for one in blob.slices.values()]))

        def end(_: object) -> None:
            self._turns.leave(flight.turn, partial(on_settled, blob))

        run(self.steps(flight), end)

    def steps(self, flight: Flight) -> Steps[None]:
        """Put and commit a blob, as often as it is condemned (W3)."""
        slices = list(flight.blob.slices.values())
        while slices:
            encoded, commits = flight.blob.encode(slices)
            try:
                key = yield from self._put(encoded)
            except OSError as error:
                self.totals.put_failures += 1
                is_refused = isinstance(error, StoreRefused)
                _refuse_all(slices, store_failed(error) if is_refused else store_unavailable(str(error)))
                return
            yield partial(self.wait_for_turn, flight)
            until = flight.blob.opened_at + COMMIT_SECONDS
            if self.homes is None:
                slices = yield from self._commit_and_settle(key, slices, commits, until)
            else:
                slices = yield from self._commit_by_homes(self.homes, key, slices, commits, until)
            self.totals.condemned += bool(slices)

    def _put(self, encoded: EncodedBlob) -> Steps[str]:
        while True:
            key = f"{FOLDER}/{secrets.token_hex(16)}"
            try:
                yield self._puts.call(partial(self.put, key, encoded.parts))
                return key
            except ObjectExists:
                continue

    def put(self, key: str, parts: Sequence[bytes]) -> None:
        """Create the object, on a thread."""
        create_object(self._store, key, parts, self._retries())

    def wait_for_turn(self, flight: Flight, resume: Resume) -> None:
        """Let a blob commit when no earlier one on its way has one of its topics (W4)."""
        self._turns.wait(flight.turn, resume)

    def _commit_by_homes(
        self, homes: Homes, key: str, slices: list[OpenSlice], commits: list[Slice], until: float
    ) -> Steps[list[OpenSlice]]:
        """Commit the slices of each home together, all at the same time (W6)."""
        waits = []
        for name, numbers in homes.find([one.topic for one in slices]).items():
            some, parts = [slices[one] for one in numbers], [commits[one] for one in numbers]
            if name is None:
                steps = self._commit_in_turn(homes.home.turns, key, some, parts, until)
            else:
                steps = self._commit_at_home(homes, name, key, some, parts, until)
            waits.append(partial(run, steps))
        outcomes: list[list[OpenSlice] | OSError] = yield together(waits)
        left: list[OpenSlice] = []
        for outcome in outcomes:
            if isinstance(outcome, OSError):
                raise outcome
            left += outcome
        return left

    def _commit_in_turn(
        self, turns: TopicTurns, key: str, slices: list[OpenSlice], commits: list[Slice], until: float
    ) -> Steps[list[OpenSlice]]:
        """Commit here, in turn with what other brokers have sent for these topics."""
        turn = turns.enter([one.topic for one in slices])
        try:
            yield partial(turns.wait, turn)
            return (yield from self._commit_and_settle(key, slices, commits, until))
        finally:
            turns.leave(turn)

    def _commit_at_home(
        self,
        homes: Homes,
        name: str,
        key: str,
        slices: list[OpenSlice],
        commits: list[Slice],
        until: float,
    ) -> Steps[list[OpenSlice]]:
        reply = yield from homes.commit(name, key, commits, until)
        if reply.results is not None:
            return self._settle(key, slices, CommitOutcome(reply.results, False))
        return (yield from self._commit_and_settle(key, slices, commits, until, reply.may_arrive))

    def _commit_and_settle(
        self, key: str, slices: list[OpenSlice], commits: list[Slice], until: float, is_sent: bool = False
    ) -> Steps[list[OpenSlice]]:
        """Commit here, and answer; return the slices with the parts that were condemned."""
        outcome = yield from self.commit(key, commits, until, is_sent)
        if isinstance(outcome, Refusal):
            _refuse_all(slices, outcome)
            return []
        return self._settle(key, slices, outcome)

    def commit(
        self, key: str, slices: list[Slice], until: float, is_sent: bool = False
    ) -> Steps[CommitOutcome | Refusal]:
        """Commit until the outcome is known (W2); `is_sent` says whether a request was made before."""
        pause = PAUSES.first_seconds
        while True:
            try:
                results: list[list[PartResult]] = yield self.commits.call(
                    partial(self.commit_before, until, key, slices)
                )
                return CommitOutcome(results, is_sent)
            except (CatalogRefused, CommitTooLate) as error:
                # This request was not done; an earlier one may have been.
                self.totals.in_doubt += is_sent
                return commit_in_doubt(error) if is_sent else no_catalog(error)
            except OSError:
                is_sent = True
            self.totals.repeats += 1
            yield sleep(self._loop, pause * self._retries().random())
            pause = min(2 * pause, PAUSES.seconds_max)

    def commit_before(self, until: float, key: str, slices: list[Slice]) -> list[list[PartResult]]:
        """Make one request, on a thread; none after `until`."""
        if self._clock.monotonic() >= until:
            raise CommitTooLate(errno.ETIMEDOUT, "the commit took too long")
        return self._catalog.commit(key, FRAMES_V1, slices)

    # -- results

    def _settle(self, key: str, slices: Sequence[OpenSlice], outcome: CommitOutcome) -> list[OpenSlice]:
        """Publish what is committed, then answer; return the parts that were condemned."""
        left: list[OpenSlice] = []
        replies: list[tuple[PendingPart, Appended | Refusal]] = []
        for one, slice_results in zip(slices, outcome.results, strict=True):
            settled = list(zip(one.parts, slice_results, strict=True))
            self.publish(one, settled)
            condemned = [part for part, result in settled if result.status == "condemned"]
            if condemned:
                left.append(one.with_parts(condemned))
            for part, result in settled:
                if outcome.may_arrive_again and result.status in PASSING:
                    self.totals.in_doubt += 1
                    self.topics.forget(one.topic)
                    replies.append((part, commit_in_doubt(OSError(f"a repetition was {result.status}"))))
                elif result.status != "condemned":
                    replies.append((part, self._answer(key, one.topic, part, result)))
        for part, answer in replies:
            call_reply(part.reply, answer)
        return left

    def publish(self, one: OpenSlice, settled: list[tuple[PendingPart, PartResult]]) -> None:
        """Report runs of parts that were committed now; the bytes of a repetition are in another blob."""
        parts: list[PendingPart] = []
        first_seq = last_seq = 0
        for part, result in [*settled, (None, PartResult("repeated"))]:
            is_committed = result.status == "committed"
            if parts and not (is_committed and result.first_seq == last_seq + 1):
                self.on_commit(_run_of(one, first_seq, last_seq, parts))
                parts = []
            if part is not None and is_committed:
                first_seq = first_seq if parts else result.first_seq
                last_seq = result.last_seq
                parts.append(part)

    def _answer(self, key: str, topic: str, part: PendingPart, result: PartResult) -> Appended | Refusal:
        match result.status:
            case "committed" | "repeated":
                return Appended(result.first_seq, result.last_seq, key, result.status == "repeated")
            case "fenced":
                return topic_fenced(topic)
            case "sequence_gap":
                producer = part.part.producer
                return producer_gap(topic, "" if producer is None else producer.name, result.next_number)
            case "mismatch":
                return key_mismatch()
            case "producers_full":
                return throttled(f'topic "{topic}" has as many producers as a topic may have')
            case _:
                # The topic was deleted, and perhaps made again: the next request looks it up.
                self.topics.forget(topic)
                return topic_changed(topic)


def _run_of(one: OpenSlice, first_seq: int, last_seq: int, parts: Sequence[PendingPart]) -> CommittedRun:
    bodies = [part.body for part in parts]
    lists = [part.texts for part in parts if part.texts is not None]
    texts = Texts(chain.from_iterable(lists)) if len(lists) == len(parts) else None
    return CommittedRun(one.topic, one.incarnation, first_seq, last_seq, bodies, texts, one.ts)


def _refuse_all(slices: Sequence[OpenSlice], refusal: Refusal) -> None:
    for one in slices:
        for part in one.parts:
            call_reply(part.reply, refusal)
