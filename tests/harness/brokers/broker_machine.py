"""A machine with a real broker: its loop, its threads, and their requests are events of the simulation.

Promises: a broker has no disk, so each end of its process leaves nothing. The catalog, a model in memory or
a real one, is reached through a network: every request is done at one moment, or not at all, and its answer
may be lost. Its clock is the virtual one. `TopicsService` notes when heads grew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from functools import partial
from typing import Any, Final

from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.cluster.answers import Reply, Request
from tests.harness.cluster.machine import CLIENT_MS, Cluster, Machine
from tests.harness.cluster.node_threads import NodeClock, NodeLoop, NodeThread
from tests.harness.cluster.shared_catalog import connect_in_memory
from tests.harness.cluster.virtual_time import Process, World
from topicsd.broker.broker import Broker, ReadLimits, make_pools
from topicsd.broker.catalog_of_store import CATALOG_KEY
from topicsd.broker.steps import BlockingSteps, Pool, on_pool, run
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum, BlobVacuumReport
from topicsd.broker.upkeep.compaction_choice import OBJECT_BYTES_MAX, CompactorLimits
from topicsd.broker.upkeep.compactor import CompactionReport, Compactor
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.shared.shared_catalog import (
    EXTENTS_AT_ONCE,
    TOPICS_AT_ONCE,
    Claim,
    Compaction,
    HeadNotice,
    PartResult,
    SharedCatalog,
    SharedExtent,
    SharedTopic,
    Slice,
    TopicExists,
)
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog

SKEW_MS: Final = 3_600_000
THREAD_MS: Final = 1.0
STORE_SECONDS: Final = 20.0
NOTICE_LATE_MS: Final = 10_000

TopicKey = tuple[str, int]
"""Name and incarnation."""


MakeCatalog = Callable[[Callable[[], int]], SharedCatalog]
"""Opens an empty catalog with a clock."""


def open_sqlite(now_ms: Callable[[], int]) -> SharedCatalog:
    """Open a SQLite catalog in memory: real statements and transactions."""
    return SqliteSharedCatalog("/catalog", now_ms, connect_in_memory)


class TopicsService:
    """The catalog that all brokers share, and the history of its heads."""

    def __init__(self, world: World, real: SharedCatalog, objects: Container[str]) -> None:
        self._world = world
        self._objects = objects
        self._real = real
        self._grown: dict[TopicKey, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        """By topic: the times at which its head grew, and the heads."""
        self.condemned_count = 0
        self.listeners: list[TopicsListener] = []
        self._holders: dict[str, tuple[str, int]] = {}
        """By topic: the compactor that got the last claim, and when it ends."""

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        """Return a verb of the catalog about which nothing is noted."""
        return getattr(self._real, verb)  # type: ignore[no-any-return]

    def commit(self, key: str, encoding: str, slices: Sequence[Slice]) -> list[list[PartResult]]:
        results = self._real.commit(key, encoding, slices)
        for one, slice_results in zip(slices, results, strict=True):
            heads = [result.last_seq for result in slice_results if result.status == "committed"]
            if heads:
                times, known = self._grown[one.topic, one.incarnation]
                assert heads == sorted(set(heads)), f"{one.topic}: a commit gives {heads}"
                assert not known or heads[0] > known[-1], f"{one.topic}: a head went back"
                times.append(self._world.now_ns)
                known.append(heads[-1])
                for listener in self.listeners:
                    listener.report(HeadNotice(one.topic, one.incarnation, heads[-1]))
        return results

    def head_at(self, topic: TopicKey, at_ns: int) -> int:
        """Return the head that the topic had at a moment."""
        times, heads = self._grown[topic]
        at = bisect_right(times, at_ns)
        return heads[at - 1] if at else 0

    def condemn(self, keys: Sequence[str]) -> set[str]:
        condemned = self._real.condemn(keys)
        self.condemned_count += len(condemned)
        return condemned

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        claim: Claim | None = self._real.claim(name, compactor, lease_ms)
        if claim is not None:
            self._holders[name] = compactor, self._world.now_ns + lease_ms * 1_000_000
        return claim

    def release(self, claim: Claim) -> None:
        self._real.release(claim)
        if self._holders.get(claim.topic, ("", 0))[0] == claim.compactor:
            del self._holders[claim.topic]

    def claims_of(self, compactor: str) -> list[str]:
        """Return the topics that a compactor has claimed and not released."""
        now_ns = self._world.now_ns
        return [
            name
            for name, (holder, until) in self._holders.items()
            if (holder, True) == (compactor, until > now_ns)
        ]

    def begin_compaction(self, claim: Claim, compaction: Compaction) -> None:
        self._real.begin_compaction(claim, compaction)
        self._check_topic(compaction.topic)

    def present(self, name: str) -> SharedTopic | None:
        return self._real.topics([name])[0]

    def all(self) -> list[SharedTopic]:
        return self._real.list("", "", TOPICS_AT_ONCE)

    def extents(self, topic: SharedTopic) -> Iterator[SharedExtent]:
        seq = 1
        while page := self._real.extents_from(topic.name, seq, EXTENTS_AT_ONCE):
            yield from page
            seq = page[-1].last_seq + 1

    def is_named(self, key: str) -> bool:
        """Return whether an extent names the object."""
        return any(extent.key == key for topic in self.all() for extent in self.extents(topic))

    def check(self) -> None:
        """Check the extents of every topic."""
        for topic in self.all():
            self._check_topic(topic.name)

    def _check_topic(self, name: str) -> None:
        """Check that the extents follow each other up to the head, and that their objects are there (C4)."""
        topic = self.present(name)
        if topic is None:
            return
        last = topic.first_seq - 1
        for number, extent in enumerate(self.extents(topic)):
            is_next = extent.first_seq == last + 1 or (number == 0 and extent.first_seq <= last)
            assert is_next, f"{name}: {extent} after {last} (C4)"
            assert extent.last_seq > last, f"{name}: {extent} is removed (C4)"
            assert extent.key in self._objects, f"{name}: {extent} has no object (R3)"
            last = extent.last_seq
        assert last == topic.head, f"{name}: the extents end at {last}, and the head is {topic.head} (C4)"


class BrokerCluster(Cluster):
    def __init__(self, world: World, make_catalog: MakeCatalog = MemoryTopics) -> None:
        super().__init__(world)
        self.topics = TopicsService(world, make_catalog(world.clock.now_ms), self.store.objects)
        self.store.is_named = self.topics.is_named
        self.store.create(CATALOG_KEY, [self.topics.catalog_id().encode()], "")


class TopicsClient:
    """The catalog as one process reaches it: every verb is one request."""

    url = "fake://catalog"

    def __init__(self, cluster: BrokerCluster, process: Process, node: str) -> None:
        self._cluster = cluster
        self._process = process
        self._node = node

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return partial(self._request, verb)

    def _request(self, verb: str, *args: Any) -> Any:
        cluster = self._cluster
        what = args[0] if args and isinstance(args[0], str) else ""
        network, service = cluster.network, cluster.catalog.service
        effect = partial(getattr(cluster.topics, verb), *args)
        return network.request(self._process, self._node, service, f"{verb} {what}", effect)

    def listen(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> TopicsListener:
        listener = TopicsListener(self._cluster, self._process, self._node, on_notices)
        self._cluster.topics.listeners.append(listener)
        return listener

    def create(self, name: str, incarnation: int, config: bytes) -> SharedTopic:
        outcome = self._request("create", name, incarnation, config)
        if isinstance(outcome, TopicExists):
            raise outcome
        assert isinstance(outcome, SharedTopic)
        return outcome


class TopicsListener:
    """The notices of the catalog on their way to one process: lost, doubled, late, and so out of order (C10).

    Some say no incarnation, or only the name, as those of some catalogs.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        process: Process,
        node: str,
        on_notices: Callable[[Sequence[HeadNotice]], object],
    ) -> None:
        self._cluster = cluster
        self._process = process
        self._node = node
        self._on_notices = on_notices
        self._names: frozenset[str] = frozenset()

    def follow(self, names: Collection[str]) -> None:
        before, self._names = self._names, frozenset(names)
        for name in sorted(self._names - before):
            self.report(HeadNotice(name))

    def close(self) -> None:
        self._cluster.topics.listeners.remove(self)

    def report(self, notice: HeadNotice) -> None:
        world, service = self._cluster.world, self._cluster.catalog.service
        if notice.topic not in self._names:
            return
        copies = world.rng.choice((0, 1, 1, 1, 2)) if service.reaches(self._node) else 0
        self._cluster.network.faults[f"notice: {('lost', 'sent', 'doubled')[copies]}"] += 1
        for _ in range(copies):
            fields = world.rng.choice((3, 3, 2, 1))
            said = (
                notice if fields == 3 else HeadNotice(notice.topic, head=notice.head if fields == 2 else None)
            )
            ms = world.rng.random() * (NOTICE_LATE_MS if world.rng.random() < 0.1 else service.ms_max)
            world.after(ms, self._on_notices, [said], process=self._process)


MakeBroker = Callable[..., Broker]
MakeVacuum = Callable[..., BlobVacuum]


class BrokerMachine(Machine):
    supported = frozenset()

    def __init__(
        self,
        cluster: BrokerCluster,
        name: str,
        make_broker: MakeBroker = Broker,
        make_vacuum: MakeVacuum = BlobVacuum,
        poll_seconds: float = 0.25,
    ) -> None:
        super().__init__(cluster, name)
        self.broker_cluster = cluster
        self._make_broker = make_broker
        self.make_vacuum = make_vacuum
        rng = self.world.rng
        self.skew_ms = rng.randint(-SKEW_MS, SKEW_MS)
        self.batch_limits = BatchLimits(
            batch_bytes=rng.choice((200, 2_000, 8 << 20)),
            blobs_max=rng.choice((1, 2, 4)),
            pending_bytes=rng.choice((2_000, 64 << 20)),
            pending_seconds=rng.choice((5.0, 60.0)),
        )
        self.read_limits = ReadLimits(
            tail_cache_bytes=rng.choice((0, 3_000, 1 << 20)),
            block_cache_bytes=rng.choice((0, 1 << 20)),
            laggard_cache_bytes=rng.choice((0, 1 << 20)),
            poll_seconds=poll_seconds,
        )
        self.broker: Broker | None = None
        self.upkeep: Pool | None = None
        self.reports: Counter[str] = Counter()
        self.heads: dict[TopicKey, int] = {}
        """The heads that this run of the broker has answered."""

    def boot(self, process: Process) -> None:
        loop = NodeLoop(process)
        self.heads = {}
        self.upkeep = Pool([NodeThread(process, loop, THREAD_MS)])
        store, catalog = self.store_client(process), TopicsClient(self.broker_cluster, process, self.name)
        self.compactor = Compactor(
            self.name,
            store,
            catalog,
            partial(process.retries, STORE_SECONDS),
            # Two compactors of one topic choose different ranges.
            CompactorLimits(self.world.rng.choice((500, 5_000, OBJECT_BYTES_MAX)), lease_ms=60_000),
        )
        grace_ms = self.world.rng.choice((0, 60_000, 3_600_000))
        self.vacuum = self.make_vacuum(store, catalog, partial(process.retries, STORE_SECONDS), grace_ms)
        self.broker = self._make_broker(
            NodeClock(process, self.skew_ms),
            loop,
            make_pools(lambda name: NodeThread(process, loop, THREAD_MS)),
            store,
            catalog,
            partial(process.retries, STORE_SECONDS),
            self.batch_limits,
            self.read_limits,
        )

    def keep_up(self, job: Callable[[], BlockingSteps[CompactionReport | BlobVacuumReport]]) -> None:
        """Run a background job in the process that runs now, if one does."""
        process = self.process
        if process is not None:
            assert self.upkeep is not None
            steps = on_pool(self.upkeep, job())
            self.world.after(0, run, steps, self._on_report, process=process)

    def _on_report(self, report: CompactionReport | BlobVacuumReport | OSError) -> None:
        match report:
            case CompactionReport(outcome):
                self.reports[f"compaction: {outcome}"] += 1
            case BlobVacuumReport():
                self.reports["vacuum: done"] += 1
            case _:
                self.reports["upkeep: unavailable"] += 1

    def send(self, call: Callable[[Broker], object]) -> None:
        """Carry a request to the broker that runs now, if one does."""
        process = self.process
        if process is not None:
            broker = self.broker
            assert broker is not None
            ms = self.world.rng.random() * CLIENT_MS
            self.world.after(ms, call, broker, process=process)

    def on_kill(self) -> None:
        pass

    def on_power_cut(self) -> None:
        pass

    def end_in_write(self, writes: int, is_power_cut: bool) -> None:
        pass

    def clear_endings(self) -> None:
        pass

    def handle(self, topic: str, request: Request, reply: Reply) -> None:
        raise AssertionError("requests to brokers are sent with `send`")

    def is_exported(self, topic: str) -> bool:
        return True
