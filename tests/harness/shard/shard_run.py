"""One run of a shard's process, driven step by step, with all its answers in a book.

Promises: nothing happens until the script asks: `turn` runs the loop until it is idle, `sync` runs one job of
the disk thread, `copy` one job of the thread for checkpoints and segment lookups, and `advance` lets time
pass. Every request is answered at most once, is judged at once, and `end_answered` checks that each was
answered. What readers see is checked against what was acknowledged (`audit`), so nothing may be visible
before its durability class is satisfied. A checkpoint may fail only because of the disk.

The manner says when the two threads run their jobs, as "sync/copy" or one word for both: `prompt` at the end
of every turn; `late` one job every third turn (one a turn for copying, which has many), so that batches
gather and rotations, syncs and checkpoints overlap; `by hand` only when the script asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from shared.contract.errors import (
    IDEMPOTENCY_MISMATCH,
    SHUTTING_DOWN,
    STORAGE_FAILED,
    STORAGE_FULL,
    THROTTLED,
    TOPIC_EXISTS_INCOMPATIBLE,
    TOPIC_FULL,
    TOPIC_NOT_FOUND,
    Refusal,
)
from shared.contract.topic_config import TopicConfigPatch
from shared.settings.settings import Settings
from tests.harness.books.ledger_entries import Deletion, Request, TopicContents
from tests.harness.books.session_book import KnownSession
from tests.harness.books.shard_book import Incarnation, ShardBook
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import ShardDriver
from tests.harness.shard.shard_reader import contents_of
from topicsd.disk.fs import Fs
from topicsd.engine.records.durable_seq import durable_seq
from topicsd.engine.requests import (
    AppendAnswer,
    AppendRequest,
    DeleteAnswer,
    DeleteRequest,
    NewRecord,
    TopicDeleted,
    TopicPut,
    TopicState,
)
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.session_log import log_session, log_session_end
from topicsd.engine.topic_admin import delete_topic, put_topic, topic_state
from topicsd.engine.write.append import append
from topicsd.log.control_frame import SessionFrame

# Files small enough that a script fills several of them.
SMALL_FILES = Settings(
    wal_file_bytes=4096,
    segment_max_events=4,
    segment_max_bytes=1200,
    cold_dir="/cold",
    hot_retain_segments=1,
    background_bytes_per_second=16 << 30,
)

Timing = Literal["prompt", "late", "by hand"]
TIMINGS: tuple[Timing, ...] = ("prompt", "late", "by hand")
Manner = str
MANNERS: tuple[Manner, ...] = ("prompt/late", "late/prompt", "by hand")
EVERY_MANNER: tuple[Manner, ...] = tuple(f"{sync}/{copy}" for sync in TIMINGS for copy in TIMINGS)

# Refusals that mean nothing was written; any other refusal leaves it open.
NOTHING_WRITTEN = frozenset({STORAGE_FULL, THROTTLED, TOPIC_FULL})
# Refusals that also mean it, if an earlier request of the script was refused.
_CONSEQUENCES = frozenset({TOPIC_NOT_FOUND, TOPIC_EXISTS_INCOMPATIBLE, IDEMPOTENCY_MISMATCH})
_LATE_TURNS = 3


class Call:
    """One request and its answer."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.answer: Any = None

    def __repr__(self) -> str:
        return self.what


class ShardRun(ShardDriver):
    def __init__(
        self,
        disk: MemoryDisk,
        book: ShardBook,
        clock: ManualClock,
        *,
        manner: Manner = "prompt",
        settings: Settings = SMALL_FILES,
        fs: Fs | None = None,
        audited: bool = False,
    ) -> None:
        self.disk = disk
        self.book = book
        self.calls: list[Call] = []
        self.steps: list[str] = []
        """The steps of the script, shown with a failure."""
        self._pace, _, self._copy_pace = manner.partition("/")
        self._copy_pace = self._copy_pace or self._pace
        assert {self._pace, self._copy_pace} <= set(TIMINGS)
        self._audited = audited
        self._turns = 0
        self._requests: list[Request] = []
        book.sessions.begin_run()
        super().__init__(clock, settings)
        self._note_time()
        self.start(fs or disk)

    # -- progress ----------------------------------------------------------------------------------------

    def turn(self) -> None:
        self.loop.run_until_idle()
        self._turns += 1
        self._run_threads()
        if self._pace == "late" and not self._turns % _LATE_TURNS:
            self.sync()
        if self._copy_pace == "late":
            self.copy()
        self.look()

    def _run_threads(self, *, late_ones: bool = False) -> None:
        """Run the threads that do not wait for the script."""
        paces = ("prompt", "late") if late_ones else ("prompt",)
        threads = [
            thread
            for thread, pace in ((self.thread, self._pace), (self.copy_thread, self._copy_pace))
            if pace in paces
        ]
        self.run_threads(*threads)

    def sync(self) -> None:
        """Run jobs of the disk thread up to a sync, and deliver their outcomes."""
        self.steps.append("sync")
        before = self.shard.log.counters.syncs
        while self.thread.run_one():
            self.loop.run_until_idle()
            if self.shard.log.counters.syncs > before:
                break
        self.look()

    def copy(self, jobs: int = 1) -> None:
        """Run jobs of the copying thread, and deliver the outcome of each."""
        self.steps.append(f"copy {jobs}")
        for _ in range(jobs):
            self.copy_thread.run_one()
            self.loop.run_until_idle()
            self.look()

    def checkpoint(self) -> None:
        """Begin a checkpoint if none is running."""
        self.steps.append("checkpoint")
        self.shard.start_checkpoint()

    def advance(self, ms: float) -> None:
        """Advance time and do the background work that becomes due, except on manual threads."""
        self.steps.append(f"advance {ms:g}")
        end_ns = self.clock.monotonic_ns() + round(ms * 1e6)
        while True:
            self._run_threads(late_ones=True)
            due_ns = self.loop.next_timer_ns()
            if due_ns is None or due_ns > end_ns:
                break
            self.loop.advance((due_ns - self.clock.monotonic_ns()) / 1e6)
        self.clock.advance_ns(end_ns - self.clock.monotonic_ns())
        self._note_time()
        self.look()

    def settle(self) -> None:
        super().settle()
        self.look()

    def close(self, checkpoint: bool = True) -> None:
        self.steps.append("close")
        super().close(checkpoint)

    @property
    def checkpoint_failure(self) -> Exception | None:
        """Return the failure of the last checkpoint that ended."""
        return self.shard.checkpoints.failure

    @property
    def has_failed(self) -> bool:
        return self.shard.log.failed is not None

    # -- requests ----------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        *sizes: int,
        tags: tuple[str | None, ...] = (),
        key: str | None = None,
        **patch: Any,
    ) -> Request:
        """Append a record of each size in one request; a missing topic is created by it."""
        topic = self.book.target(name, TopicConfigPatch(**patch))
        payloads = [self.book.payload(size) for size in sizes]
        for payload in payloads:
            self.book.sent_ms[payload] = self.clock.now_ms()
        request = self.book.ledger.sent(
            topic.page, payloads, tags=tags, key=key, durability=topic.config.durability
        )
        self._send(name, request, TopicConfigPatch(**patch) if patch else None)
        return request

    def retry(self, request: Request) -> None:
        """Send the same request again under its idempotency key."""
        self.book.ledger.retried(request)
        self._send(request.topic.split("#")[0], request, None)

    def _send(self, name: str, request: Request, patch: TopicConfigPatch | None) -> None:
        records = [
            NewRecord(msgspec.Raw(payload), tag)
            for payload, tag in zip(request.payloads, request.tags, strict=True)
        ]
        self._requests.append(request)
        on_reply = self._call(
            f"append {name} {len(records)} {request.key or ''}", self._appended, name, request
        )
        write = AppendRequest(records, idempotency_key=request.key, config=patch)
        append(self.shard.state, name, write, on_reply)

    def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        is_prefix: bool = False,
        after_seq: int | None = None,
    ) -> None:
        topic = self.book.of_name(name)
        assert topic is not None
        matched = [
            seq
            for seq, its_tag in self.book.ledger.live(topic.page, with_leaving=True)
            if (before_seq is None or seq < before_seq)
            and (after_seq is None or seq > after_seq)
            and _matches(its_tag, tag, is_prefix)
        ]
        deletion = self.book.ledger.deleting(topic.page, matched)
        on_reply = self._call(f"delete {name} {before_seq} {tag} {after_seq}", self._deleted, topic, deletion)
        delete_records(
            self.shard.state, name, DeleteRequest(before_seq, tag, is_prefix, after_seq=after_seq), on_reply
        )

    def put(self, name: str, **patch: Any) -> None:
        """Create a topic, or change its configuration."""
        changes = TopicConfigPatch(**patch)
        is_there = any(topic.name == name and not topic.leaving for topic in self.book.topics)
        topic = self.book.target(name, changes)
        if is_there:
            self.book.ask_config(topic, changes)
        on_reply = self._call(f"put {name} {patch}", self._changed, topic, topic.next_config)
        put_topic(self.shard.state, name, changes, on_reply)

    def drop(self, name: str) -> None:
        """Delete the topic."""
        topic = self.book.target(name)
        topic.leaving = True
        delete_topic(self.shard.state, name, False, self._call(f"drop {name}", self._dropped, topic))

    def watch(self, *names: str) -> KnownSession:
        """Create a watch session of these topics."""
        known = self.book.sessions.new(names)
        on_reply = self._call(f"watch {names}", self._watched, known)
        log_session(self.shard.state, known.expected, on_reply)
        known.end_position = self.shard.log.batch.next_position
        return known

    def unwatch(self, known: KnownSession) -> None:
        """End a session if it exists."""
        session = known.expected.session
        if session in self.shard.state.watch_sessions and not known.has_ended:
            self.steps.append(f"unwatch {session.hex()}")
            known.has_ended = True
            log_session_end(self.shard.state, session)

    # -- answers -----------------------------------------------------------------------------------------

    def _call(self, what: str, act: Callable[..., None], *args: Any) -> Callable[[Any], None]:
        self.steps.append(what)
        call = Call(what)
        self.calls.append(call)

        def on_reply(answer: Any) -> None:
            assert call.answer is None, f"{what}: answered twice, {call.answer} and {answer}"
            assert answer is not None
            call.answer = answer
            act(*args, answer)

        return on_reply

    def _appended(self, name: str, request: Request, answer: AppendAnswer | Refusal) -> None:
        ledger = self.book.ledger
        if isinstance(answer, Refusal):
            if self._is_nothing_written(answer):
                ledger.refused(request)
            else:
                assert answer.code == STORAGE_FAILED, answer
                ledger.errored(request)
            return
        assert answer.deduped or not self.has_failed, f"acked by a log that has failed: {request}"
        assert answer.last_seq - answer.first_seq + 1 == len(request.payloads)
        assert answer.head_seq >= answer.last_seq
        if answer.created:
            topic = next(topic for topic in self.book.topics if topic.page == request.topic)
            made = self.shard.state.topics[name]
            self.book.born(topic, made.epoch)
            self.book.has_config(topic, made.config)
        if answer.deduped and request.first_seq is None and self._was_evicted(request, answer):
            return
        if not answer.deduped:
            request.durability = answer.durability  # type: ignore[assignment]
        ledger.acked(request, answer.first_seq)

    def _was_evicted(self, request: Request, answer: AppendAnswer) -> bool:
        """Return whether the repeated write was accepted and evicted before it was shown."""
        last = self.book.ledger.page(request.topic).last
        if answer.first_seq > last.head_seq:
            return False
        assert answer.last_seq < last.evict_floor
        request.fate = "gone"
        return True

    def _deleted(self, topic: Incarnation, deletion: Deletion, answer: DeleteAnswer | Refusal) -> None:
        if isinstance(answer, DeleteAnswer):
            assert answer.deleted <= len(deletion.seqs), f"{answer}, but only {deletion.seqs} match"
            deletion.durability = topic.config.durability
            self.book.ledger.delete_acked(deletion)
        elif self._is_nothing_written(answer):
            self.book.ledger.withdraw(deletion)
        else:
            assert answer.code == STORAGE_FAILED, answer

    def _changed(self, topic: Incarnation, config: Any, answer: TopicPut | Refusal) -> None:
        if isinstance(answer, TopicPut):
            if answer.created:
                self.book.born(topic, self.shard.state.topics[topic.name].epoch)
            elif topic.is_born:
                assert answer.config == config or answer.config in topic.either
            else:
                # The topic before it still exists: its deletion was refused.
                topic = self.book.of_name(topic.name) or topic
            self.book.has_config(topic, answer.config)
        elif self._is_nothing_written(answer):
            if config in topic.coming:
                topic.coming.remove(config)
        else:
            assert answer.code == STORAGE_FAILED, answer

    def _dropped(self, topic: Incarnation, answer: TopicDeleted | Refusal) -> None:
        if isinstance(answer, TopicDeleted):
            self.book.gone(topic)
        elif self._is_nothing_written(answer):
            self.book.stays(topic, self._requests)
        else:
            assert answer.code == STORAGE_FAILED, answer

    def _watched(self, known: KnownSession, answer: SessionFrame | Refusal) -> None:
        if isinstance(answer, SessionFrame):
            assert answer == known.expected
            known.is_acked = True
        elif self._is_nothing_written(answer):
            self.book.sessions.refused(known)
        else:
            assert answer.code == STORAGE_FAILED, answer

    def _is_nothing_written(self, answer: Refusal) -> bool:
        if answer.code in _CONSEQUENCES:
            before = [call.answer for call in self.calls]
            assert any(isinstance(one, Refusal) and one is not answer for one in before), answer
            return True
        if answer.code == SHUTTING_DOWN:
            # A request that waited for a topic's deletion was refused by the shutdown.
            assert self.steps[-1] == "close"
            return True
        return answer.code in NOTHING_WRITTEN

    def end_answered(self) -> None:
        """Check that every request was answered."""
        waiting = [call for call in self.calls if call.answer is None]
        assert not waiting, f"never answered: {waiting}"

    # -- observations ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Note the data promised to be on disk; check that only acknowledged data is visible."""
        failure = self.checkpoint_failure
        assert failure is None or isinstance(failure, OSError), failure
        shard = self.shard.state
        for topic in self.book.topics:
            topic_state = shard.topics.get(topic.name)
            if topic_state is None or not topic_state.visible or topic.epoch != topic_state.epoch:
                continue
            topic.floor = max(topic.floor, topic_state.evict_floor)
            if not self.has_failed:
                self.book.ledger.on_media(topic.page, durable_seq(shard, topic_state))
        if not self.has_failed:
            self.book.sessions.synced(self.shard.log.synced_position)
        if self._audited:
            self.audit()

    def audit(self) -> None:
        ledger = self.book.ledger
        self.book.sessions.shows(self.shard.state.watch_sessions)
        for name in self.shard.topic_names():
            topic = self.book.of_name(name)
            assert topic is not None, f"{name} is shown, but was never created"
            assert topic.is_born, f"{name} is shown, but its creation is not acked"
            for seq, payload, _ in self.contents(name).records:
                request = ledger.request_of(payload)
                assert request.fate == "acked", f"seq {seq} of {name} is shown: {request}"
                assert request.topic == topic.page
                for deletion in ledger.page(topic.page).deletions:
                    assert not deletion.acked or seq not in deletion.seqs, f"seq {seq} of {name} is shown"

    def contents(self, name: str) -> TopicContents:
        return contents_of(self.shard, name)

    def all_contents(self) -> dict[str, TopicContents]:
        return {name: self.contents(name) for name in self.shard.topic_names()}

    def states(self) -> dict[str, TopicState]:
        """Return the states of all topics, without their durable seqs."""
        states = {}
        for name in self.shard.topic_names():
            state = topic_state(self.shard.state, name)
            assert isinstance(state, TopicState), state
            states[name] = msgspec.structs.replace(state, durable_seq=0)
        return states

    def sessions(self) -> dict[bytes, SessionFrame]:
        return dict(self.shard.state.watch_sessions)

    def check(self, *, exact: bool, clean: bool = False) -> None:
        """Let the book judge what this run shows; call it right after the start."""
        self.book.check(self.all_contents(), self.states(), exact=exact, clean=clean)
        self.book.sessions.check(self.shard.state.watch_sessions, exact=exact or clean)

    def _note_time(self) -> None:
        self.book.latest_ms = max(self.book.latest_ms, self.clock.now_ms())


def _matches(its_tag: str | None, tag: str | None, is_prefix: bool) -> bool:
    if tag is None:
        return True
    return its_tag is not None and (its_tag.startswith(tag) if is_prefix else its_tag == tag)
