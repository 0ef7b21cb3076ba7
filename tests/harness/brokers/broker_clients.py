"""Clients of shared topics: writers, readers that follow the tail, and an administrator.

Promises: a client knows the outcome of a request only from its answer. No answer within TIMEOUT_MS is an
unknown outcome. A writer with keys or a producer repeats such an append at any broker, with the same id or
numbers, for as long as the catalog recognises an id; others leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from shared.contract.errors import IN_DOUBT, Refusal
from tests.harness.brokers.broker_book import AppendRecord, BrokerBook, Removal, values_of
from tests.harness.brokers.broker_machine import BrokerCluster, BrokerMachine, TopicKey
from tests.harness.cluster.virtual_time import World
from topicsd.broker.broker import Broker
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, Producer, SharedTopic, TrimReason

TIMEOUT_MS: Final = 60_000
READ_TIMEOUT_MS: Final = 30_000
RETRIED: Final = ("throttled", "catalog_unavailable", "store_unavailable", "shutting_down", "not_ready")
GROUP_BYTES: Final = 1_000
"""More than any append of a writer has."""
FENCE_MS: Final = 3_000
KEY_MS: Final = REPEATED_MS // 2
"""How long a writer repeats an append; the last try must arrive before REPEATED_MS have passed."""


class BrokerClient:
    """What all clients share: the machines, and the way to them."""

    def __init__(
        self,
        cluster: BrokerCluster,
        machines: Sequence[BrokerMachine],
        book: BrokerBook,
        name: str,
        pause_ms: float,
    ) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.machines = machines
        self.book = book
        self.name = name
        self.pause_ms = pause_ms
        self.is_ending = False

    def start(self) -> None:
        self.world.after(self.world.rng.random() * self.pause_ms, self._next)

    def _next(self) -> None:
        if not self.is_ending:
            self.start()
            self.act()

    def act(self) -> None:
        raise NotImplementedError

    def machine(self) -> BrokerMachine:
        return self.world.rng.choice(self.machines)

    def topic(self) -> SharedTopic | None:
        topics = self.cluster.topics.all()
        return self.world.rng.choice(topics) if topics else None


class Writer(BrokerClient):
    """Appends; some of its connections send several appends without waiting for an answer.

    One with keys repeats an append under its id, one with a producer under its numbers: of each topic, it
    sends the next append when the outcome of the last one is known.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        machines: Sequence[BrokerMachine],
        book: BrokerBook,
        name: str,
        pause_ms: float,
    ) -> None:
        super().__init__(cluster, machines, book, name, pause_ms)
        self._numbers = 0
        self._repeats_by = self.world.rng.choice(("nothing", "nothing", "key", "producer"))
        self._producers: dict[TopicKey, _ProducerState] = {}
        self.open = 0

    def act(self) -> None:
        rng = self.world.rng
        machine = self.machine()
        topic = self.topic()
        if topic is None:
            return
        self._numbers += 1
        # Appends of one connection to one broker keep their order; a try at another broker has no order.
        connection = f"{self.name}.{machine.name}.{machine.runs}.{self._numbers}"
        key = topic.name, topic.incarnation
        producer = None
        if self._repeats_by == "producer":
            producer = self._producers.setdefault(key, _ProducerState(f"{self.name}.{self._numbers}"))
            if producer.is_busy:
                return
        attempts: list[_Attempt] = []
        for number in range(rng.choice((1, 1, 3, 8)) if self._repeats_by == "nothing" else 1):
            values = values_of(connection, number, rng.choice((1, 1, 2, 5)))
            append = self.book.send(key, connection, number, values, self.world.now_ns)
            append_id = f"key {connection} {number}" if self._repeats_by == "key" else None
            attempts.append(_Attempt(self, append, append_id, producer))
        calls = [attempt.begin() for attempt in attempts]
        # One connection: they arrive in their order.
        machine.send(lambda broker: [call(broker) for call in calls])

    def on_end(self, append: AppendRecord, producer: _ProducerState | None) -> None:
        self.open -= 1
        if producer is not None:
            producer.is_busy = False
            if append.outcome == "acknowledged":
                producer.next_number += len(append.values)
            else:
                # Its numbers may be used: another producer continues.
                del self._producers[append.topic]


class _ProducerState:
    def __init__(self, name: str) -> None:
        self.name = name
        self.next_number = 1
        self.is_busy = False

    def begin(self, count: int) -> Producer:
        self.is_busy = True
        return Producer(self.name, self.next_number, self.next_number + count - 1)


class _Attempt:
    """One append, with its tries."""

    def __init__(
        self,
        writer: Writer,
        append: AppendRecord,
        append_id: str | None,
        producer_state: _ProducerState | None,
    ) -> None:
        self._writer = writer
        self._world = writer.world
        self._append = append
        self._append_id = append_id
        self._producer_state = producer_state
        self._producer = None if producer_state is None else producer_state.begin(len(append.values))
        self._tries = 0
        self._open_tries: set[int] = set()
        self._has_unknown = self._is_refused = False
        writer.open += 1

    def begin(self) -> Callable[[Broker], None]:
        """Begin a try; return the call of the broker."""
        self._tries += 1
        number = self._tries
        self._open_tries.add(number)
        name, incarnation = self._append.topic
        records = [NewFrame(value) for value in self._append.values]
        is_urgent = self._world.rng.random() < 0.3
        group = Group(
            name, records, self._append_id, self._producer, incarnation=incarnation, is_urgent=is_urgent
        )

        def call(broker: Broker) -> None:
            if number not in self._open_tries:
                return  # The broker was stopped, and the client has closed its connection.
            broker.append(group, self._world.checked(partial(self._on_reply, number)))

        self._world.after(TIMEOUT_MS, self._on_timeout, number)
        return call

    def _on_reply(self, number: int, answer: Appended | Refusal) -> None:
        self._world.after(self._world.rng.random() * 5, self._on_answer, number, answer)

    def _on_answer(self, number: int, answer: Appended | Refusal) -> None:
        self._writer.book.counts[f"answer: {getattr(answer, 'code', 'appended')}"] += 1
        if isinstance(answer, Appended) and answer.is_repeated and not answer.first_seq:
            # An early try that comes after the next append of its producer.
            assert self._append.outcome == "acknowledged"
        elif isinstance(answer, Appended):
            present = self._writer.cluster.topics
            if present.head_at(self._append.topic, self._world.now_ns) >= answer.last_seq:
                self._writer.book.acknowledge(
                    self._append, answer.first_seq, answer.last_seq, self._world.now_ns
                )
            else:
                raise AssertionError(f"{self._append.topic}: acknowledged and not committed")
        elif answer.code == IN_DOUBT:
            self._has_unknown = True
        else:
            # The same at every broker, and nothing was done now.
            self._is_refused = answer.code not in RETRIED
        self._end_try(number)

    def _on_timeout(self, number: int) -> None:
        if number in self._open_tries:
            self._has_unknown = True
            self._end_try(number)

    def _end_try(self, number: int) -> None:
        if number not in self._open_tries:
            return
        self._open_tries.discard(number)
        if self._append.outcome == "acknowledged":
            self._end()
        elif (
            (self._append_id is not None or self._producer is not None)
            and not self._is_refused
            and self._world.now_ns - self._append.sent_ns < KEY_MS * 1e6
        ):
            self._world.after(self._world.rng.random() * 10_000, self._repeat)
        else:
            self._append.outcome = "unknown" if self._has_unknown else "failed"
            self._end()

    def _repeat(self) -> None:
        if self._writer.cluster.topics.present(self._append.topic[0]) is None:
            self._append.outcome = "unknown"
            self._end()
        else:
            self._writer.book.counts["repeated appends"] += 1
            self._writer.machine().send(self.begin())

    def _end(self) -> None:
        self._writer.on_end(self._append, self._producer_state)


class TopicReader(BrokerClient):
    """Follows some topics from their start, at any broker, with and without waiting."""

    def __init__(
        self,
        cluster: BrokerCluster,
        machines: Sequence[BrokerMachine],
        book: BrokerBook,
        name: str,
        pause_ms: float,
    ) -> None:
        super().__init__(cluster, machines, book, name, pause_ms)
        self._cursors: dict[TopicKey, int] = {}
        self._is_busy = False

    def act(self) -> None:
        rng = self.world.rng
        topics = self.cluster.topics.all()
        if self._is_busy or not topics:
            return
        chosen = rng.sample(topics, rng.randint(1, len(topics)))
        reads = [
            TopicRead(
                topic.name,
                self._cursors.get((topic.name, topic.incarnation), 1),
                bytes_max=rng.choice((1, 300, 1 << 20)),
                incarnation=topic.incarnation,
            )
            for topic in chosen
        ]
        request = SharedRead(
            reads,
            min_bytes=rng.choice((0, 1, 200)),
            bytes_max=rng.choice((1, 1_000, 8 << 20)),
            wait_seconds=rng.choice((0.0, 1.0, 20.0)),
        )
        self._send(request)

    def _send(self, request: SharedRead) -> None:
        machine = self.machine()
        sent_ns = self.world.now_ns
        run = machine.runs
        self._is_busy = True
        is_over: list[None] = []

        def on_reply(answers: list[TopicRecords]) -> None:
            assert [one.topic for one in answers] == [one.topic for one in request.topics]
            self.book.check_wait(request, answers, sent_ns, self.world.now_ns)
            for read, answer in zip(request.topics, answers, strict=True):
                if answer.incarnation:
                    self.book.check_answer(machine, run, read, answer, sent_ns)
                self.book.counts[f"read: {'ok' if answer.refusal is None else answer.refusal.code}"] += 1
            if not is_over:
                is_over.append(None)
                self.world.after(self.world.rng.random() * 5, self._on_answers, answers)

        def on_timeout() -> None:
            if not is_over:
                is_over.append(None)
                self._is_busy = False

        machine.send(lambda broker: broker.read(request, self.world.checked(on_reply)))
        self.world.after(READ_TIMEOUT_MS, on_timeout)

    def _on_answers(self, answers: list[TopicRecords]) -> None:
        self._is_busy = False
        for answer in answers:
            if answer.incarnation:
                self._cursors[answer.topic, answer.incarnation] = answer.next_seq


class Administrator(BrokerClient):
    """Creates, fences, opens, trims and deletes topics at any broker."""

    def __init__(
        self,
        cluster: BrokerCluster,
        machines: Sequence[BrokerMachine],
        book: BrokerBook,
        name: str,
        pause_ms: float,
        topics: int,
    ) -> None:
        super().__init__(cluster, machines, book, name, pause_ms)
        self._names = [f"t{number}" if number % 2 else f"t:{number}" for number in range(topics)]
        self.opened_ns: dict[TopicKey, int] = {}

    def act(self) -> None:
        rng = self.world.rng
        name = rng.choice(self._names)
        topic = self.cluster.topics.present(name)
        machine = self.machine()
        if topic is None:
            self.create(machine, name)
            return
        key = name, topic.incarnation
        match rng.choice(("fence", "delete records", "evict records", "delete", "nothing")):
            case "fence":
                self._fence(machine, key)
            case "delete" if rng.random() < 0.2:
                machine.send(lambda broker: broker.delete(*key)(self._ignore))
            case "delete records":
                self._trim(machine, topic, "deleted")
            case "evict records":
                self._trim(machine, topic, "evicted")

    def _trim(self, machine: BrokerMachine, topic: SharedTopic, reason: TrimReason) -> None:
        """Remove records, sometimes up to a seq that does not exist yet."""
        to_seq = self.world.rng.randint(topic.first_seq, max(topic.first_seq, topic.head + 2))
        removal = Removal(to_seq, reason)
        self.book.removals.setdefault((topic.name, topic.incarnation), []).append(removal)

        def on_trim(outcome: object) -> None:
            if isinstance(outcome, SharedTopic):
                # What it did not remove it does not remove later.
                removed_to = outcome.deleted_to if reason == "deleted" else outcome.evicted_to
                removal.to_seq = min(to_seq, removed_to)
                removal.acked_ns = self.world.now_ns

        machine.send(lambda broker: broker.trim(topic, to_seq, reason)(on_trim))

    def _fence(self, machine: BrokerMachine, key: TopicKey) -> None:
        fenced_ns: list[int] = []

        def on_fence(outcome: object) -> None:
            if isinstance(outcome, SharedTopic):
                fenced_ns.append(self.world.now_ns)

        machine.send(lambda broker: broker.fence(*key, "FENCED")(on_fence))
        self.world.after(self.world.rng.random() * FENCE_MS, self._open, key, fenced_ns)

    def _open(self, key: TopicKey, fenced_ns: list[int]) -> None:
        if fenced_ns and fenced_ns[0] > self.opened_ns.get(key, 0):
            self.book.check_fence(key, fenced_ns[0], self.world.now_ns)
        self.opened_ns[key] = self.world.now_ns
        self.cluster.topics.fence(*key, "OPEN")

    def create(self, machine: BrokerMachine, name: str) -> None:
        incarnation = self.world.rng.randint(1, 1 << 62)
        machine.send(lambda broker: broker.create(name, incarnation, b"{}")(self._ignore))

    def create_all(self) -> None:
        """Make or open every topic, directly in the catalog."""
        for name in self._names:
            topic = self.cluster.topics.present(name)
            if topic is None:
                topic = self.cluster.topics.create(name, self.world.rng.randint(1, 1 << 62), b"{}")
            self._open((name, topic.incarnation), [])

    def _ignore(self, outcome: object) -> None:
        self.book.counts[f"admin: {type(outcome).__name__}"] += 1


class Janitor(BrokerClient):
    """Runs compactions and vacuum on any machine, also several at once."""

    def act(self) -> None:
        rng = self.world.rng
        topic = self.topic()
        for machine in rng.sample(self.machines, rng.choice((1, 2))):
            if topic is None or rng.random() < 0.3:
                machine.keep_up(machine.vacuum.run)
            else:
                machine.keep_up(partial(machine.compactor.compact, topic.name))


class BoundsMonitor(BrokerClient):
    """Checks that the memory of every broker is bounded, whatever happens."""

    def act(self) -> None:
        for machine in self.machines:
            broker = machine.broker if machine.process is not None else None
            if broker is None:
                continue
            pending, cached = broker.batcher.pending_bytes, broker.cache.size_bytes
            room = machine.batch_limits.pending_bytes + GROUP_BYTES
            assert pending <= room, f"{machine.name}: {pending} bytes of writes wait, and {room} are allowed"
            cache_max = machine.read_limits.tail_cache_bytes
            assert cached <= cache_max, f"{machine.name}: the tail cache has {cached} bytes of {cache_max}"
            self.book.counts["bounds checked"] += 1
