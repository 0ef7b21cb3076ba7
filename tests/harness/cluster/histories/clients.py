"""Clients of a cluster: they write, delete, read and work, retry as clients do, and note all in the book.

A client sends a request to the node that it believes to own the topic. It asks another node when an answer
names one, or when there is none. A write with an idempotency key or of a producer is repeated until its
outcome is known, and sometimes once more after that; any other write is never repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.harness.books.ledger_entries import TopicContents
from tests.harness.cluster.answers import (
    Answer,
    Append,
    Appended,
    Claimed,
    ClaimJobs,
    ClusterNode,
    Delete,
    Done,
    EndJobs,
    JobsEnded,
    MoveCursor,
    ReadAll,
    Refused,
    Request,
)
from tests.harness.cluster.histories.book import Book
from tests.harness.cluster.histories.directory import Attempt, Directory
from tests.harness.cluster.histories.plans import TAGS, Plan
from tests.harness.cluster.virtual_time import World

PAUSE_MS: Final = 800
REPEAT_MS: Final = 40_000
"""How long after its answer a write is repeated: well within the window of idempotency keys."""


class Write(NamedTuple):
    """A write and what is known of it."""

    topic: str
    append: Append
    sent_ns: int
    is_maybe_done: bool = False


class Client:
    def __init__(
        self, world: World, name: str, directory: Directory, book: Book, plans: Sequence[Plan]
    ) -> None:
        self._world = world
        self.name = name
        self._directory = directory
        self._book = book
        self._plans = list(plans)
        self._number = 0
        self._producers: dict[str, int] = {}
        """By topic: the number of its next write."""
        self._producer_count = 0
        self._acked: list[tuple[int, int, Write]] = []
        """Repeatable writes: when they were answered, at which seq, and the write."""
        self.is_ending = False
        self.is_busy = False
        self.outcomes: Counter[str] = Counter()

    def start(self) -> None:
        self._world.after(self._world.rng.random() * PAUSE_MS, self._next)

    def _next(self) -> None:
        rng = self._world.rng
        self.is_busy = not self.is_ending
        if self.is_ending:
            return
        plan = rng.choice(self._plans)
        acts: list[tuple[float, type[Request], Callable[[Plan], None]]] = [
            (12, Append, self._append),
            (1, Append, self._repeat),
            (3 if not plan.is_queue else 0, Delete, self._delete),
            (1, ReadAll, self._read),
            (1 if not plan.is_queue else 0, MoveCursor, self._move_cursor),
            (12 if plan.is_queue else 0, ClaimJobs, self._work),
        ]
        supported = self._directory.supported
        acts = [act for act in acts if act[1] in supported]
        (act,) = rng.choices(acts, [weight for weight, _, _ in acts])
        act[2](plan)

    def _end(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self._world.after(self._world.rng.random() * PAUSE_MS, self._next)

    def _ask(self, topic: str, request: Request, done: Callable[[Answer], object]) -> None:
        self._ask_node(self._directory.node_of(topic), topic, request, done)

    def _ask_node(
        self, node: ClusterNode, topic: str, request: Request, done: Callable[[Answer], object]
    ) -> None:
        Attempt(self._world, lambda reply: node.request(topic, request, reply)).run(done)

    # -- writes ----------------------------------------------------------------------------------------------

    def _append(self, plan: Plan) -> None:
        rng = self._world.rng
        payloads = []
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            self._number += 1
            payloads.append(b'"%s-%d"' % (self.name.encode(), self._number))
        manner = rng.random()
        key = f"{self.name}-{self._number}" if manner < 0.4 else None
        producer = None
        if manner > 0.7 and self._directory.has_producers:
            producer = (self._producer(), self._producers.get(plan.name, 0))
            self._producers[plan.name] = producer[1] + 1
        topic = self._book.topic(plan.name)
        tag = rng.choice(TAGS)
        topic.send(payloads, tag)
        append = Append(payloads, tag, key, producer)
        self._try(Write(plan.name, append, self._world.now_ns))

    def _producer(self) -> str:
        return f"{self.name}/{self._producer_count}"

    def _try(self, write: Write) -> None:
        node = self._directory.node_of(write.topic)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Appended):
                self._directory.owners.setdefault(write.topic, node.name)
                self._on_appended(write, answer)
            else:
                assert isinstance(answer, Refused)
                self._on_refused(write, answer)

        self._ask_node(node, write.topic, write.append._replace(may_create=True), answered)

    def _on_appended(self, write: Write, answer: Appended) -> None:
        append = write.append
        if answer.first_seq == 0:
            # A repeat of an older write of the producer: it is done, and its seqs are not known any more.
            self._end("repeated too late")
            return
        assert answer.last_seq - answer.first_seq + 1 == len(append.payloads), (answer, append)
        now_ns = self._world.now_ns
        self._book.topic(write.topic).ack(append.payloads, write.sent_ns, now_ns, answer.first_seq)
        if append.key is not None or append.producer is not None:
            self._acked.append((now_ns, answer.first_seq, write))
            del self._acked[:-20]
        self._end("appended")

    def _on_refused(self, write: Write, refused: Refused) -> None:
        append = write.append
        self._directory.follow(write.topic, refused)
        write = write._replace(is_maybe_done=write.is_maybe_done or refused.outcome == "unknown")
        is_gap = refused.code == "producer_gap"
        if (append.key is not None or append.producer is not None) and not self.is_ending and not is_gap:
            self._world.after(self._world.rng.random() * 2 * PAUSE_MS, self._try, write)
            return
        if not write.is_maybe_done:
            self._book.topic(write.topic).refuse(append.payloads)
        if append.producer is not None:
            # The next writes need a producer without a past.
            if is_gap:
                self._book.check_producer_gap(write.topic)
            self._producer_count += 1
            self._producers.clear()
        self._end("write in doubt" if write.is_maybe_done else f"write refused: {refused.code}")

    def _repeat(self, plan: Plan) -> None:
        """Send an acknowledged write once more: it must get the first answer."""
        due_ns = self._world.now_ns - REPEAT_MS * 10**6
        newest = {write.topic: number for number, (_, _, write) in enumerate(self._acked)}
        known = [
            one
            for number, one in enumerate(self._acked)
            if one[0] >= due_ns and (one[2].append.producer is None or newest[one[2].topic] == number)
        ]
        if not known:
            self._end("nothing to repeat")
            return
        acked_ns, first_seq, write = self._world.rng.choice(known)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Appended):
                if not self._book.may_be_lost(write.topic, acked_ns):
                    assert answer.first_seq == first_seq, (
                        f"{write.topic}: {write.append} got seq {first_seq}, and its repeat {answer} (J1)"
                    )
                self._end("repeated")
            else:
                assert isinstance(answer, Refused)
                self._directory.follow(write.topic, answer)
                self._end("repeat failed")

        self._ask(write.topic, write.append, answered)

    # -- deletes, reads, cursors -----------------------------------------------------------------------------

    def _delete(self, plan: Plan) -> None:
        rng = self._world.rng
        book = self._book.topic(plan.name)
        live = book.live_seqs()
        if not live:
            self._end("nothing to delete")
            return
        tag = rng.choice(TAGS) if rng.random() < 0.3 and self._directory.has_producers else None
        if tag is not None:
            seqs = [seq for seq in live if book.tags[book.values[seq]] == tag]
            by_tag = book.delete_tag(tag)
        else:
            by_tag = None
            seqs = live[: rng.randint(1, 12)] if rng.random() < 0.7 else [rng.choice(live)]
        book.maybe_deleted.update(seqs)
        node = self._directory.node_of(plan.name)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Done):
                if by_tag is not None:
                    by_tag.done_ns = self._world.now_ns
                self._book.delete_acked(plan.name, seqs, node.name, self._world.now_ns)
                self._end("deleted")
                return
            assert isinstance(answer, Refused)
            self._directory.follow(plan.name, answer)
            self._end("delete failed")

        self._ask_node(node, plan.name, Delete(seqs, tag), answered)

    def _read(self, plan: Plan) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, TopicContents):
                self._book.see(plan.name, answer)
            else:
                assert isinstance(answer, Refused)
                self._directory.follow(plan.name, answer)
            self._end("read")

        self._ask(plan.name, ReadAll(), answered)

    def _move_cursor(self, plan: Plan) -> None:
        live = self._book.topic(plan.name).live_seqs()
        if not live:
            self._end("no place for a cursor")
            return
        seq = self._world.rng.choice(live)
        cursors = self._book.cursors
        node = self._directory.node_of(plan.name)
        cursors.send(plan.name, self.name, seq)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Done):
                cursors.ack(plan.name, self.name, seq, node.name, self._world.now_ns)
            else:
                assert isinstance(answer, Refused)
                self._directory.follow(plan.name, answer)
                if answer.outcome == "nothing done":
                    cursors.refuse(plan.name, self.name, seq)
            self._end("cursor moved" if isinstance(answer, Done) else "cursor not moved")

        self._ask_node(node, plan.name, MoveCursor(self.name, seq), answered)

    # -- jobs ------------------------------------------------------------------------------------------------

    def _work(self, plan: Plan) -> None:
        """Claim some jobs, and end them soon, late, or never."""

        def claimed(answer: Answer) -> None:
            if isinstance(answer, Refused):
                self._directory.follow(plan.name, answer)
                self._end("claim failed")
                return
            assert isinstance(answer, Claimed)
            if not answer.jobs:
                self._end("no job to claim")
                return
            self._end("claimed")
            if self._world.rng.random() < 0.85:
                pause_ms = self._world.rng.random() * plan.lease_ms * 1.3
                seqs, leases = [job.seq for job in answer.jobs], [job.lease for job in answer.jobs]
                is_done = self._world.rng.random() < 0.8
                end = EndJobs(self.name, seqs, leases, is_done)
                self._world.after(pause_ms, self._end_jobs, plan, end)

        count = self._world.rng.choice((1, 1, 3))
        self._ask(plan.name, ClaimJobs(self.name, count), claimed)

    def _end_jobs(self, plan: Plan, end: EndJobs) -> None:
        jobs = self._book.jobs(plan.name)
        jobs.send_end(end.seqs, end.is_done)
        node = self._directory.node_of(plan.name)

        def answered(answer: Answer) -> None:
            if isinstance(answer, JobsEnded) and end.is_done:
                jobs.ack(answer.seqs, node.name, self._world.now_ns)
            if isinstance(answer, Refused):
                self._directory.follow(plan.name, answer)
            self.outcomes["jobs ended" if isinstance(answer, JobsEnded) else "jobs not ended"] += 1

        self._ask_node(node, plan.name, end, answered)
