"""Real brokers on virtual time, and requests to the catalog and the store.

The brokers, the compactor and the SQLite catalog are those of the server. Time, threads and the store are
replaced: a request takes a fixed time of its kind, nothing fails, and every request is counted. The same
parameters give the same counts. A broker asks no other one for anything, so that many of them fit a process.
"""

from __future__ import annotations

import heapq
import os
import secrets
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from shared.contract.errors import Refusal
from shared.contract.store_prices import PRICES
from shared.runtime.retries import Retries
from topicsd.broker.broker import Broker, ReadLimits, make_pools
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.compactor import Compactor, CompactorLimits
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, HeadNotice, SharedCatalog
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog
from topicsd.store.metered import MeteredStore, RequestTotals
from topicsd.store.object_store import ObjectExists, ObjectInfo

T = TypeVar("T")

WARM_SECONDS: Final = 0.5
READERS_PER_SECOND: Final = 800
"""That begin at one broker: each compares the head that it finds with the catalog."""
WAIT_SECONDS: Final = 30.0
REQUEST_SECONDS: Final = {"put": 0.03, "read": 0.02, "laggard": 0.02, "commit": 0.003, "lookup": 0.002}
"""How long a request takes, by the pool that makes it."""
NOTICE_SECONDS: Final = 0.01
"""From a commit to the notices of it."""


class ClusterLoad(NamedTuple):
    """What clients do, and with which cluster."""

    brokers: int
    partitions: int
    requests_per_second: float
    """Of each broker; a request appends records to one partition."""
    request_records: int
    record_bytes: int
    seconds: float
    has_own_broker: bool = False
    """Whether clients write and read a partition at one broker, instead of at any."""
    has_readers: bool = False
    """Whether each partition has a reader that waits at its tail."""

    @property
    def warm_seconds(self) -> float:
        """How long it takes until every broker knows its topics and all readers wait."""
        readers = self.partitions / self.brokers if self.has_readers else 0
        return WARM_SECONDS + readers / READERS_PER_SECOND


class VirtualRequests(NamedTuple):
    """What was requested in the measured time of a run."""

    seconds: float
    calls: Counter[str]
    """By verb of the catalog."""
    items: Counter[str]
    """By verb: the parts of commits, and the topics of lookups and polls."""
    puts: int
    gets: int
    dollars: float
    bytes_written: int
    bytes_read: int
    records_read: int


class VirtualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.seconds * 1000)


class VirtualLoop:
    """An event loop whose time passes when nothing is left to do."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._count = 0

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> _Handle:
        handle = _Handle(callback, args)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _Handle:
        handle = _Handle(callback, args)
        self._count += 1
        heapq.heappush(self._timers, (self._clock.seconds + delay, self._count, handle))
        return handle

    def run_until(self, seconds: float) -> None:
        while True:
            while self._ready:
                self._ready.popleft().run()
            if not self._timers or self._timers[0][0] > seconds:
                self._clock.seconds = seconds
                return
            when, _, handle = heapq.heappop(self._timers)
            self._clock.seconds = max(when, self._clock.seconds)
            handle.run()


class _Handle:
    __slots__ = ("_args", "_callback", "_is_cancelled")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._callback = callback
        self._args = args
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self) -> None:
        if not self._is_cancelled:
            self._callback(*self._args)


class VirtualThread:
    """A thread whose jobs take the time of their kind; it has one at a time."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self._loop = loop
        self._seconds = REQUEST_SECONDS[name.partition("-")[0]]

    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        self._loop.call_later(self._seconds, self._run, job, done)

    def _run(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        try:
            outcome: T | OSError = job()
        except OSError as error:
            outcome = error
        done(outcome)

    def drain(self) -> None:
        raise AssertionError("nothing waits for a thread")

    def stop(self) -> None:
        pass


class MemoryObjects:
    """A store in memory; one without readers keeps sizes only."""

    url = "s3://memory"

    def __init__(self, clock: VirtualClock, keeps_data: bool) -> None:
        self._clock = clock
        self._keeps_data = keeps_data
        self._objects: dict[str, tuple[bytes, int, str]] = {}

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        if key in self._objects:
            raise ObjectExists(key)
        self._objects[key] = b"".join(parts) if self._keeps_data else b"", self._clock.now_ms(), put_id

    def read(self, key: str, offset: int, size: int) -> bytes:
        return self._objects[key][0][offset : offset + size]

    def info(self, key: str) -> ObjectInfo:
        data, modified_ms, put_id = self._objects[key]
        return ObjectInfo(key, len(data), modified_ms, put_id)

    def delete(self, key: str) -> None:
        self._objects.pop(key, None)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return (self.info(key) for key in sorted(self._objects) if key.startswith(prefix) and key > after)

    def close(self) -> None:
        pass


class VirtualListener:
    """Gets the notices of the topics that it follows."""

    def __init__(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> None:
        self.on_notices = on_notices
        self.names: Collection[str] = ()

    def follow(self, names: Collection[str]) -> None:
        self.names = names

    def close(self) -> None:
        self.names = ()


class CountedCatalog:
    """A catalog whose verbs are counted, and whose commits are reported after a while."""

    def __init__(self, real: SharedCatalog, loop: VirtualLoop) -> None:
        self._real = real
        self._loop = loop
        self._listeners: list[VirtualListener] = []
        self.calls: Counter[str] = Counter()
        self.items: Counter[str] = Counter()

    def listen(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> VirtualListener:
        self._listeners.append(VirtualListener(on_notices))
        return self._listeners[-1]

    def _report(self, notices: Sequence[HeadNotice]) -> None:
        for listener in self._listeners:
            if followed := [one for one in notices if one.topic in listener.names]:
                listener.on_notices(followed)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self._real, verb)

        def call(*args: Any) -> Any:
            self.calls[verb] += 1
            match verb:
                case "commit":
                    self.items[verb] += sum(len(one.parts) for one in args[2])
                    self.items["slices"] += len(args[2])
                case "heads" | "topics":
                    self.items[verb] += len(args[0])
            result = method(*args)
            if verb == "commit":
                notices = [
                    HeadNotice(one.topic, one.incarnation, parts[-1].last_seq)
                    for one, parts in zip(args[2], result, strict=True)
                ]
                self._loop.call_later(NOTICE_SECONDS, self._report, notices)
            return result

        return call


class VirtualCluster:
    """Brokers, their clients, a catalog and a store."""

    def __init__(self, load: ClusterLoad, folder: str, keeps_data: bool = True) -> None:
        self.load = load
        self.clock = VirtualClock()
        self._loop = VirtualLoop(self.clock)
        self._rng = Random(f"{load}")
        self._topics = SqliteSharedCatalog(os.path.join(folder, "catalog.db"), self.clock.now_ms)
        self.catalog: Any = CountedCatalog(self._topics, self._loop)
        self.store = MeteredStore(MemoryObjects(self.clock, keeps_data))
        self._records = [NewFrame(b'"%b"' % (b"x" * (load.record_bytes - 2)))] * load.request_records
        self._created: set[int] = set()
        self._records_read = 0
        self._until = load.warm_seconds + load.seconds
        pause = 1 / load.requests_per_second
        self._brokers = [self._broker() for _ in range(load.brokers)]
        if load.has_readers:
            for partition in range(load.partitions):
                self._loop.call_later(
                    self._rng.random() * (load.warm_seconds - WARM_SECONDS), self._follow, partition, 1
                )
        for number in range(load.brokers):
            self._loop.call_later(self._rng.random() * pause, self._write, number, pause)

    def _broker(self) -> Broker:
        pools = make_pools(partial(VirtualThread, self._loop))
        limits = BatchLimits(), ReadLimits(block_cache_bytes=32 << 20, tail_cache_bytes=32 << 20)
        return Broker(self.clock, self._loop, pools, self.store, self.catalog, self._retries, *limits)

    def _retries(self) -> Retries:
        return Retries(self.clock.monotonic, lambda seconds: None, 0.0)

    # -- clients

    def _name(self, partition: int) -> str:
        name = f"topic:{partition}"
        if partition not in self._created:
            self._created.add(partition)
            self._topics.create(name, 1, b"{}")
        return name

    def _write(self, number: int, pause: float) -> None:
        """Send a request to a broker, and the next one after a while."""
        load, rng = self.load, self._rng
        partition = rng.randrange(load.partitions)
        if load.has_own_broker:
            # The partitions of this broker; with fewer partitions than brokers, each has some brokers.
            own = max(1, load.partitions // load.brokers)
            partition = (number % load.partitions) + load.brokers * rng.randrange(own)
            partition %= load.partitions
        group = Group(self._name(partition), self._records)
        self._brokers[number].append(group, _check)
        if self.clock.seconds < self._until:
            self._loop.call_later(2 * pause * rng.random(), self._write, number, pause)

    def _follow(self, partition: int, seq: int) -> None:
        """Wait for the records of a partition at its broker, or at any one."""
        number = partition if self.load.has_own_broker else self._rng.randrange(self.load.brokers)
        read = SharedRead([TopicRead(self._name(partition), seq)], wait_seconds=WAIT_SECONDS)

        def on_reply(answers: list[TopicRecords]) -> None:
            (answer,) = answers
            assert answer.refusal is None, answer.refusal
            self._records_read += len(answer.records)
            if self.clock.seconds < self._until:
                self._follow(partition, answer.next_seq)

        self._brokers[number % self.load.brokers].read(read, on_reply)

    # -- requests

    def run(self) -> VirtualRequests:
        """Run the clients; count after the caches of the brokers are warm."""
        self._loop.run_until(self.load.warm_seconds)
        return self._counts_of(lambda: self._loop.run_until(self._until))

    def compact(self, topics_max: int) -> tuple[int, VirtualRequests]:
        """Merge what the clients wrote, of some topics; return how many had something to merge."""
        self._loop.run_until(self._until + 5)
        self.clock.seconds += REPEATED_MS / 1000 + 60
        compactor = Compactor("c", self.store, self.catalog, self._retries, CompactorLimits())
        outcomes: Counter[str] = Counter()

        def compact() -> None:
            for partition in sorted(self._created)[:topics_max]:
                outcomes[_result(compactor.compact(self._name(partition))).outcome] += 1

        counts = self._counts_of(compact)
        return outcomes["merged"], counts

    def _counts_of(self, work: Callable[[], object]) -> VirtualRequests:
        calls, items = self.catalog.calls.copy(), self.catalog.items.copy()
        before, read = _copy(self.store.totals), self._records_read
        begun = self.clock.seconds
        work()
        after = self.store.totals
        puts, gets = after.creates - before.creates, after.reads + after.infos - before.reads - before.infos
        return VirtualRequests(
            self.clock.seconds - begun,
            self.catalog.calls - calls,
            self.catalog.items - items,
            puts,
            gets,
            PRICES["s3"].requests(puts, gets),
            after.bytes_written - before.bytes_written,
            after.bytes_read - before.bytes_read,
            self._records_read - read,
        )

    def close(self) -> None:
        self._topics.close()


def _check(answer: Appended | Refusal) -> None:
    assert isinstance(answer, Appended), answer


def _copy(totals: RequestTotals) -> RequestTotals:
    copy = RequestTotals()
    for name in RequestTotals.__slots__:
        setattr(copy, name, getattr(totals, name))
    return copy


def _result(steps: BlockingSteps[T]) -> T:
    """Run blocking steps to their end."""
    result: Any = None
    while True:
        try:
            result = steps.send(result)()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def memory_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a catalog whose disk is not measured."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return tempfile.TemporaryDirectory(dir=folder, prefix=f"topicsd-{secrets.token_hex(4)}-")


def run_load(
    load: ClusterLoad, topics_to_compact: int = 0
) -> tuple[VirtualRequests, tuple[int, VirtualRequests] | None]:
    """Run a load; return what it counts, and what the compaction of its topics counts."""
    with memory_folder() as folder:
        cluster = VirtualCluster(load, folder, load.has_readers or topics_to_compact > 0)
        counts = cluster.run()
        compaction = cluster.compact(topics_to_compact) if topics_to_compact else None
        cluster.close()
        return counts, compaction
