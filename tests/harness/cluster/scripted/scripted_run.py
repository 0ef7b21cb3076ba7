"""One run of a script on two nodes with a store and a catalog, during which one program ends once.

The steps of a script are requests that are repeated until they are done, as a client or an operator repeats
them: a script runs to its end wherever the program ended. Then everything settles, and `final_check.py`
judges. A run without an ending lists the points at which a program can end: before each of its requests to
the store or the catalog, and before each answer. Time is virtual, and each run of a script is the same up to
its ending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tests.harness.books.ledger_entries import TopicContents
from tests.harness.cluster.answers import (
    Adopt,
    Answer,
    Append,
    Appended,
    Claimed,
    ClaimJobs,
    Delete,
    Done,
    DropTopic,
    EndJobs,
    JobsEnded,
    MoveCursor,
    ReadAll,
    Refused,
    Request,
    Seal,
)
from tests.harness.cluster.engine_node import EngineNode
from tests.harness.cluster.histories.book import Book
from tests.harness.cluster.histories.directory import Attempt
from tests.harness.cluster.histories.episode import Episode
from tests.harness.cluster.histories.plans import LEASE_MS, Plan
from tests.harness.cluster.machine import Cluster
from tests.harness.cluster.network import LATE_MS
from tests.harness.cluster.scripted.vacuum_process import VacuumProcess
from tests.harness.machine.faults import MachineGoneError
from topicsd.catalog.catalog import TopicRow

PAUSE_MS: Final = 1_500.0
WRITE_MS: Final = 900.0
STEP_MS: Final = 400_000.0
"""A step that is repeated for longer does not end."""
EXPORT_MS: Final = 2_000
READER_GRACE_MS: Final = 10_000
NODES: Final = ("n0", "n1")
"""The topics begin on the first one."""
SKEW_MS: Final = 60_000
"""How far the clock of the store is from the true time."""

_KEPT: Final = {"idempotency_window_ms": 86_400_000, "durability": "fsync"}
PLANS: Final = (
    Plan("log", _KEPT),
    Plan("capped", {**_KEPT, "cap_records": 6}),
    Plan("jobs", {**_KEPT, "type": "queue", "lease_ms": LEASE_MS, "leases_durable": True}),
)


class Ending(NamedTuple):
    """Where a program ends: at the n-th of its points, before its request or its answer, or after sending."""

    program: str
    point: int
    error: type[MachineGoneError]
    is_sent: bool = False


class ScriptNode(EngineNode):
    """A node with small segments, which have no local copy once they are exported."""

    def __init__(self, cluster: Cluster, name: str, book: Book, plans: Sequence[Plan]) -> None:
        super().__init__(cluster, name, book, plans)
        self.settings = msgspec.structs.replace(
            self.settings,
            wal_file_bytes=4096,
            segment_max_events=4,
            checkpoint_interval_ms=3_000,
            export_interval_ms=EXPORT_MS,
            hot_retain_segments=0,
            reader_grace_ms=READER_GRACE_MS,
            default_durability="fsync",
        )


class Keyed(NamedTuple):
    """An acknowledged write whose repeat must get the same seqs."""

    topic: str
    append: Append
    first_seq: int
    acked_ns: int


class ScriptedRun(Episode):
    def __init__(self, script: str, ending: Ending | None) -> None:
        super().__init__(f"script {script}", ScriptNode, nodes=len(NODES), plans=PLANS)
        self.cluster.store.skew_ms = SKEW_MS
        self.by_name = {node.name: node for node in self.nodes if isinstance(node, ScriptNode)}
        self.steps: list[str] = []
        self.keyed: list[Keyed] = []
        self.dropped: set[tuple[int, int]] = set()
        """The ids and the epochs of deleted topics."""
        self.owner = dict.fromkeys((plan.name for plan in PLANS), NODES[0])
        self._number = 0
        self._is_writing = False
        self._ending = ending
        self.vacuums: list[VacuumProcess] = []
        if ending is not None:
            network = self.cluster.network
            arm = network.end_after_sending if ending.is_sent else network.end_before
            arm(ending.program, ending.point, ending.error)

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended at its point."""
        return bool(self.cluster.network.crashes)

    def play(self, script: Callable[[ScriptedRun], None], judge: Callable[[ScriptedRun], None]) -> None:
        with self.world:
            try:
                for node in self.nodes:
                    node.start()
                script(self)
                self.steps.append("settle")
                self._is_writing = False
                if self._ending is not None and self._ending.is_sent:
                    self.world.run_for(2 * LATE_MS)
                self.settle()
                judge(self)
            finally:
                for process in [one.process for one in self.nodes] + [one.process for one in self.vacuums]:
                    if process is not None:
                        process.end()

    # -- steps -----------------------------------------------------------------------------------------------

    def append(self, topic: str, count: int, tag: str | None = None, has_key: bool = True) -> None:
        """Append one write; without a key it is sent once, and its outcome may stay unknown."""
        node = self._begin("append", topic, count)
        payloads = [b'"%s-%d"' % (topic.encode(), self._number + index) for index in range(count)]
        self._number += count
        book = self.book.topic(topic)
        book.send(payloads, tag)
        sent_ns = self.world.now_ns
        may_create = self.cluster.catalog.row(topic) is None
        append = Append(payloads, tag, f"key {self._number}" if has_key else None, None, may_create)
        if has_key:
            answer = self.repeat(node, topic, append, Appended)
        else:
            answer = self.ask_once(node, topic, append)
            if not isinstance(answer, Appended):
                return
        book.ack(payloads, sent_ns, self.world.now_ns, answer.first_seq)
        if has_key:
            again = append._replace(may_create=False)
            self.keyed.append(Keyed(topic, again, answer.first_seq, self.world.now_ns))

    def write_meanwhile(self, topic: str) -> None:
        """Append a record about once a second until the script has ended, to either node, each only once."""
        self._begin("write meanwhile", topic)
        self._is_writing = True
        self._write(topic, turn=1)

    def _write(self, topic: str, turn: int) -> None:
        if not self._is_writing:
            return
        payload = b'"meanwhile-%d"' % turn
        book, sent_ns = self.book.topic(topic), self.world.now_ns
        book.send([payload])

        def answered(answer: Answer) -> None:
            if isinstance(answer, Appended):
                book.ack([payload], sent_ns, self.world.now_ns, answer.first_seq)
            elif isinstance(answer, Refused) and answer.outcome == "nothing done":
                book.refuse([payload])
            self.world.after(WRITE_MS, self._write, topic, turn + 1)

        # Mostly to the owner, and sometimes to the node that is not.
        node = self.by_name[self.owner[topic] if turn % 4 else NODES[turn // 4 % 2]]
        Attempt(self.world, lambda reply: node.request(topic, Append([payload]), reply)).run(answered)

    def delete(self, topic: str, *seqs: int) -> None:
        node = self._begin("delete", topic, seqs)
        self.book.topic(topic).maybe_deleted.update(seqs)
        self.repeat(node, topic, Delete(list(seqs)), Done)
        self.book.delete_acked(topic, list(seqs), node, self.world.now_ns)

    def move_cursor(self, topic: str, seq: int) -> None:
        node = self._begin("move cursor", topic, seq)
        self.book.cursors.send(topic, "reader", seq)
        self.repeat(node, topic, MoveCursor("reader", seq), Done)
        self.book.cursors.ack(topic, "reader", seq, node, self.world.now_ns)

    def work(self, topic: str, count: int, done: int) -> None:
        """Claim jobs and acknowledge the first of them."""
        node = self._begin("work", topic, count, done)
        claimed = self.repeat(node, topic, ClaimJobs("w", count), Claimed)
        jobs = claimed.jobs[:done]
        if not jobs:
            return
        seqs = [job.seq for job in jobs]
        book = self.book.jobs(topic)
        book.send_end(seqs, is_done=True)
        ended = self.repeat(node, topic, EndJobs("w", seqs, [job.lease for job in jobs], True), JobsEnded)
        book.ack(ended.seqs, node, self.world.now_ns)

    def read(self, topic: str) -> None:
        node = self._begin("read", topic)
        self.book.see(topic, self.repeat(node, topic, ReadAll(), TopicContents))

    def drop(self, topic: str) -> None:
        """Delete a topic, and wait until the catalog has forgotten it."""
        node = self._begin("drop", topic)
        row = self.cluster.catalog.row(topic)
        assert row is not None
        self.dropped.add((row.topic_id, row.incarnation))
        self.repeat(node, topic, DropTopic(), Done, is_done="topic_not_found")
        del self.book.topics[topic]
        self.keyed = [one for one in self.keyed if one.topic != topic]
        self.wait(lambda: self.cluster.catalog.row(topic) is None, f"{topic} is forgotten")

    def export(self, topic: str) -> None:
        """Wait until all records of a topic are in the store, and the local files are dropped."""
        node = self._begin("export", topic)
        self.wait(lambda: self.by_name[node].is_exported(topic), f"{topic} is exported")

    def seal(self, topic: str) -> None:
        node = self._begin("seal", topic)
        self.repeat(node, topic, Seal(), Done, is_done="topic_sealed")

    def adopt(self, topic: str, node: str, accept_loss: bool = False) -> None:
        self._begin("adopt", topic, node, accept_loss)
        self.repeat(node, topic, Adopt(accept_loss), Done)
        self.owner[topic] = node

    def stop(self, node: str) -> None:
        self._begin("stop", node)
        self.by_name[node].stop()

    def resume(self, node: str) -> None:
        self._begin("resume", node)
        self.by_name[node].resume()

    def lose(self, node: str) -> None:
        self._begin("lose", node)
        self.by_name[node].lose()

    def pass_time(self, seconds: float) -> None:
        self._begin("pass", seconds, "s")
        self.world.run_for(seconds * 1000)

    def leave_object(self, topic: str) -> None:
        """Leave an object of a topic that nothing names, as a crash in an export does."""
        row = self.cluster.catalog.row(topic)
        assert row is not None
        key = f"segments/{row.topic_id:016x}-{row.incarnation}/1-seg-{1:016d}-00c0ffee.data"
        self.cluster.store.create(key, [b"left"], "left")

    def vacuum(self, node: str, grace_ms: int) -> None:
        """Delete what nothing names, by a program of its own that is started again when it was ended."""
        self._begin("vacuum", node, grace_ms)
        machine = self.by_name[node]
        for _ in range(3):
            process = VacuumProcess(machine, grace_ms)
            self.vacuums.append(process)
            process.start()
            self.wait(process.has_ended, "the vacuum ends")
            if process.is_done:
                return
        raise AssertionError(f"the vacuum does not succeed: {process.outcome}")

    # -- requests --------------------------------------------------------------------------------------------

    def _begin(self, *step: object) -> str:
        """Note a step; return the owner of its topic."""
        self.steps.append(" ".join(map(str, step)))
        self.world.note(f"-- {self.steps[-1]}")
        return self.owner.get(str(step[1]), "")

    def ask_once(self, node: str, topic: str, request: Request) -> Answer:
        answers: list[Answer] = []
        machine = self.by_name[node]
        Attempt(self.world, lambda reply: machine.request(topic, request, reply)).run(answers.append)
        self.wait(lambda: bool(answers), f"an answer to {request}")
        return answers[0]

    def repeat(self, node: str, topic: str, request: Request, kind: type[Any], is_done: str = "") -> Any:
        """Repeat a request until it is done: answered with this type, or refused with this code."""
        until_ns = self.world.now_ns + round(STEP_MS * 1e6)
        while True:
            answer = self.ask_once(node, topic, request)
            if isinstance(answer, kind) or (isinstance(answer, Refused) and answer.code == is_done):
                return answer
            assert self.world.now_ns < until_ns, f"{node}: {topic}: {request} is not done: {answer}"
            self.world.run_for(PAUSE_MS)

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        assert self.world.run_until(is_so, STEP_MS), f"not within {STEP_MS / 1000:.0f} s: {what}"

    # -- the end ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        self.wait(self._is_settled, "all topics are served and exported")

    def _is_gone(self, row: TopicRow) -> bool:
        # The topic of a lost node itself is left to an operator.
        return super()._is_gone(row) or (row.name == row.owner and self.is_lost(row))

    def is_lost(self, row: TopicRow) -> bool:
        return self.by_name[row.owner].is_lost

    def judge_topics(self) -> None:
        """Judge contents, cursors and jobs of all topics, as in random histories."""
        for plan in self.plans:
            if plan.name in self.book.topics:
                self._judge(plan)
