"""A machine with a real shard: its log, checkpoints, segments and jobs, on a disk in memory.

Promises: everything that the shard does is an event of the simulation: its loop, its disk threads, and their
requests to the store and the catalog. It ends in any call of the disk, in any request, or at any time, and
starts again on what such an end leaves. Segments, log files and blocks of seqs are small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, get_args

import msgspec

from shared.contract.errors import IN_DOUBT, STORAGE_FAILED, Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.disk_thread import Threads
from shared.settings.settings import Settings
from tests.harness.books.ledger_entries import TopicContents
from tests.harness.cluster.answers import (
    Adopt,
    Answer,
    Append,
    Appended,
    Claimed,
    ClaimJobs,
    CursorAt,
    Delete,
    Done,
    DropTopic,
    EndJobs,
    JobsEnded,
    Leased,
    MoveCursor,
    ReadAll,
    ReadCursor,
    Refused,
    Reply,
    Request,
    Seal,
)
from tests.harness.cluster.histories.book import Book
from tests.harness.cluster.histories.plans import Plan
from tests.harness.cluster.histories.state_books import SKEW_MS
from tests.harness.cluster.machine import Cluster, Machine
from tests.harness.cluster.node_threads import NodeClock, NodeLoop, NodeThread
from tests.harness.cluster.virtual_time import Process
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.layout import create_data_dir, shard_paths
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership.catalog_work import Node
from topicsd.engine.ownership.hand_on import HandOn
from topicsd.engine.queue.claim import claim
from topicsd.engine.queue.settle import ack, nack
from topicsd.engine.read.cursors import find_cursor, put_cursor
from topicsd.engine.read.read import read
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import (
    AppendAnswer,
    AppendRequest,
    ClaimAnswer,
    ClaimRequest,
    DeleteRequest,
    NewRecord,
    ProducerSeq,
    ReadAnswer,
    ReadRequest,
    SettleRequest,
)
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import delete_topic, topic_state
from topicsd.engine.write.append import append
from topicsd.log.writer import Identity
from topicsd.store.metered import MeteredStore

DATA_DIR: Final = "/data"
THREAD_MS: Final = {
    "sync": 4.0,
    "copy": 2.0,
    "read": 2.0,
    "cold": 2.0,
    "keep": 2.0,
    "catalog": 1.0,
    "export": 1.0,
}
FAR: Final = 1 << 40
PAGE_RECORDS: Final = 50


class EngineNode(Machine):
    supported = frozenset(get_args(Request))
    has_own_topic = True
    """Whether the node makes a topic at its first start, so that it has a log."""

    def __init__(self, cluster: Cluster, name: str, book: Book, plans: Sequence[Plan]) -> None:
        super().__init__(cluster, name)
        self.book = book
        self.plans = {plan.name: plan.config for plan in plans}
        rng = self.world.rng
        self._instance = name.encode().ljust(16, b"-")
        self.disk = MemoryDisk()
        create_data_dir(self.disk, DATA_DIR, 1, self._instance)
        self.disk = self.disk.after_reboot()
        self.skew_ms = rng.randint(-SKEW_MS, SKEW_MS)
        self.settings = Settings(
            wal_file_bytes=rng.choice((4096, 1 << 16)),
            segment_max_events=rng.choice((4, 20)),
            segment_max_bytes=1200,
            checkpoint_interval_ms=rng.choice((1_000, 20_000)),
            export_interval_ms=rng.choice((1_000, 20_000)),
            hot_retain_segments=rng.choice((0, 1)),
            reader_grace_ms=20_000,
            background_bytes_per_second=16 << 30,
        )
        self.failures: list[OSError] = []
        self.move_errors: Counter[str] = Counter()
        """Unexpected errors of seals and adopts."""

    # -- runs ------------------------------------------------------------------------------------------------

    def boot(self, process: Process) -> None:
        loop = NodeLoop(process)
        threads = Threads(*(NodeThread(process, loop, THREAD_MS[kind]) for kind in Threads._fields))
        self.shard = Shard(
            self.disk,
            NodeClock(process, self.skew_ms),
            loop,
            threads,
            shard_paths(DATA_DIR, 0),
            Identity(self._instance, 0),
            self.settings,
            self.failures.append,
            store=MeteredStore(self.store_client(process)),
            node=Node(self.name, lambda wait: self.catalog_client(process), lambda topic_id: True),
        )
        if self.has_own_topic and self.name not in self.shard.state.topics:
            write = AppendRequest([NewRecord(msgspec.Raw(b"0"))], create=True)
            append(self.shard.state, self.name, write, lambda answer: None)

    def on_kill(self) -> None:
        self.disk = self.disk.after_process_kill()

    def on_power_cut(self) -> None:
        self.disk = self.disk.after_power_cut(self.world.rng)
        self.book.power_cuts.setdefault(self.name, []).append(self.world.now_ns)

    def end_in_write(self, writes: int, is_power_cut: bool) -> None:
        if is_power_cut:
            self.disk.cut_power_after(writes)
        else:
            self.disk.kill_process_after(writes, torn=self.world.rng.random() < 0.5)

    def clear_endings(self) -> None:
        self.disk.kill_process_after(FAR)

    # -- requests --------------------------------------------------------------------------------------------

    def handle(self, topic: str, request: Request, reply: Reply) -> None:
        state, checked = self.shard.state, self.world.checked
        match request:
            case Append():
                self._append(topic, request, reply)
            case Delete(seqs, tag):
                delete = DeleteRequest(tag=tag) if tag else DeleteRequest(seqs=seqs)
                delete_records(state, topic, delete, checked(_answer(reply, lambda answer: Done())))
            case DropTopic():
                delete_topic(state, topic, False, checked(_answer(reply, lambda answer: Done())))
            case ReadAll():
                _Reader(self, topic, reply).start()
            case MoveCursor(cursor, seq):
                put_cursor(state, topic, cursor, seq, None, checked(_answer(reply, lambda answer: Done())))
            case ReadCursor(cursor):
                position = find_cursor(state, topic, cursor)
                reply(CursorAt(None if isinstance(position, Refusal) else position.from_seq))
            case ClaimJobs(worker, count):
                on_claim = partial(self._on_claim, topic, worker, self.world.now_ns)
                claim(state, topic, ClaimRequest(worker, count), checked(_answer(reply, on_claim)))
            case EndJobs(worker, seqs, leases, is_done):
                end = SettleRequest(worker, seqs, leases)
                on_end = checked(_answer(reply, lambda answer: JobsEnded(answer.done)))
                (ack if is_done else nack)(state, topic, end, on_end)
            case Seal():
                self._run_move(self._hand_on.seal(topic), reply)
            case Adopt(accept_loss):
                self._run_move(self._hand_on.adopt(topic, accept_loss), reply)

    @property
    def _hand_on(self) -> HandOn:
        assert self.shard.hand_on is not None
        return self.shard.hand_on

    def _run_move(self, job: BackgroundJob[Any], reply: Reply) -> None:
        def ended(outcome: object) -> None:
            if isinstance(outcome, Exception):
                self.move_errors[f"{type(outcome).__name__}: {outcome}"] += 1
                reply(Refused("internal_error", "unknown"))
            else:
                reply(_refused(outcome) if isinstance(outcome, Refusal) else Done())

        assert self.shard.exporter is not None
        self.shard.exporter.run(job, self.world.checked(ended))

    def _append(self, name: str, request: Append, reply: Reply) -> None:
        state = self.shard.state
        if not request.may_create and name not in state.topics and name not in state.departed:
            reply(Refused("topic_not_found", "nothing done"))
            return

        def on_append(answer: AppendAnswer) -> Appended:
            if not answer.deduped:
                assert self.process is not None
                self.book.given_out(self.name, self.process, name, answer.first_seq, answer.last_seq)
            return Appended(answer.first_seq, answer.last_seq)

        records = [NewRecord(msgspec.Raw(payload), request.tag) for payload in request.payloads]
        producer = None if request.producer is None else ProducerSeq(*request.producer)
        config = None if name in state.topics else TopicConfigPatch(**self.plans[name])
        # Also when it is repeated after an adopt that failed: the topic is then not here.
        create = None if request.may_create else False
        write = AppendRequest(
            records, create=create, idempotency_key=request.key, producer=producer, config=config
        )
        append(state, name, write, self.world.checked(_answer(reply, on_append)))

    def _on_claim(self, topic: str, worker: str, asked_ns: int, answer: ClaimAnswer) -> Claimed:
        lease_ms = self.shard.state.topics[topic].config.lease_ms
        seqs = [job.seq for job in answer.claimed]
        self.book.jobs(topic).claim(seqs, self.name, worker, asked_ns, self.world.now_ns, lease_ms)
        return Claimed([Leased(job.seq, job.lease) for job in answer.claimed])

    def is_exported(self, topic: str) -> bool:
        if self.process is None or topic not in self.shard.state.topics:
            return False
        here = self.shard.state.topics[topic]
        return here.deferred_requests is None and all(map(partial(_is_exported, here), here.runs))


def _is_exported(topic: Topic, run: Run) -> bool:
    """Return whether the store has the live records of a run."""
    is_dead = run.next_live(max(run.first_seq, topic.earliest_seq)) >= run.next_seq
    return is_dead or (isinstance(run, SealedRun) and run.entry.object_stem != "")


def _answer(reply: Reply, convert: Callable[[Any], Answer]) -> Callable[[Any], None]:
    """Return the reply of an operation, which passes on a refusal and converts any other answer."""

    def call(answer: Any) -> None:
        reply(_refused(answer) if isinstance(answer, Refusal) else convert(answer))

    return call


class _Reader:
    """Reads a topic from its start until it is caught up."""

    def __init__(self, node: EngineNode, name: str, done: Reply) -> None:
        self._node = node
        self._name = name
        self._done = done
        self._cursor = 0
        self._contents = TopicContents()

    def start(self) -> None:
        request = ReadRequest(self._cursor, ReaderOptions(limit=PAGE_RECORDS))
        read(self._node.shard.state, self._name, request, self._node.world.checked(self._on_answer))

    def _on_answer(self, answer: ReadAnswer | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._done(_refused(answer))
            return
        self._take(answer)
        if answer.caught_up:
            self._finish()
            return
        assert answer.next_from_seq > self._cursor, f"{self._name}: the read does not advance: {answer}"
        self._cursor = answer.next_from_seq
        self.start()

    def _take(self, answer: ReadAnswer) -> None:
        cursor, contents = self._cursor, self._contents
        gap = answer.tombstone
        if gap is not None:
            assert gap.gap_from == cursor + 1, f"{gap} does not begin after the cursor {cursor}"
            assert gap.gap_to <= answer.next_from_seq
            contents.lost.append((gap.gap_from, gap.gap_to, gap.reason))
            cursor = gap.gap_to
        for record in answer.records:
            assert cursor < record.seq <= answer.next_from_seq
            cursor = record.seq
            contents.records.append((record.seq, record.data, record.tag.decode() or None))

    def _finish(self) -> None:
        state = topic_state(self._node.shard.state, self._name)
        if isinstance(state, Refusal):
            self._done(_refused(state))
            return
        contents = self._contents
        contents.head_seq, contents.earliest_seq = state.head_seq, state.earliest_seq
        contents.evict_floor = state.evict_floor
        contents.lost = [one for one in contents.lost if one[1] >= state.evict_floor]
        self._done(contents)


def _refused(refusal: Refusal) -> Refused:
    is_unknown = refusal.code in (IN_DOUBT, STORAGE_FAILED)
    detail: Any = refusal.detail or {}
    return Refused(refusal.code, "unknown" if is_unknown else "nothing done", str(detail.get("node", "")))
