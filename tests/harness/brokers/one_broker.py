"""One broker on a loop and threads that run when the test asks, over a store and a catalog in memory.

Promises: time passes only in `advance`. Calls of the catalog and the store are counted by name, and the next
ones fail as the test says: `lost request` before it is done, `lost answer` after it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from shared.contract.errors import Refusal
from shared.runtime.disk_thread import DiskThread
from shared.runtime.retries import Retries
from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.machine.fake_store import FakeStore, Fault
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from topicsd.broker.broker import Broker, ReadLimits, make_pools
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.shared.shared_catalog import SharedTopic


class CountedTopics:
    """A catalog whose calls are counted, and fail as the test says."""

    url = "memory://catalog"

    def __init__(self, real: MemoryTopics) -> None:
        self._real = real
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, deque[Fault | None]] = {}

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return partial(self._call, verb)

    def _call(self, verb: str, *args: Any) -> Any:
        self.calls[verb] += 1
        faults = self.faults.get(verb)
        fault = faults.popleft() if faults else None
        if fault == "lost request":
            raise CatalogUnavailable("connection reset")
        result = getattr(self._real, verb)(*args)
        if fault == "lost answer":
            raise CatalogUnavailable("timed out")
        return result


class OneBroker:
    def __init__(
        self,
        batch_limits: BatchLimits = BatchLimits(),  # noqa: B008
        read_limits: ReadLimits = ReadLimits(),  # noqa: B008
        other: OneBroker | None = None,
        roles: tuple[str, ...] = ("write", "read"),
    ) -> None:
        """Another broker shares clock, loop, store and catalog with this one."""
        self.clock: ManualClock = ManualClock() if other is None else other.clock
        self.loop: ManualLoop = ManualLoop(self.clock) if other is None else other.loop
        self.topics: MemoryTopics = MemoryTopics(self.clock.now_ms) if other is None else other.topics
        self.store: FakeStore = FakeStore() if other is None else other.store
        self.catalog = CountedTopics(self.topics)
        self.threads: list[StepThread] = []
        self.pools = make_pools(self._thread)
        self.limits = batch_limits
        self.broker = Broker(
            self.clock,
            self.loop,
            self.pools,
            self.store,
            self.catalog,
            self.retries,
            batch_limits,
            read_limits,
            roles,
        )

    def retries(self) -> Retries:
        return Retries(self.clock.monotonic, self._pause, 10.0, lambda: 1.0)

    def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds * 1000)

    def _thread(self, name: str) -> DiskThread:
        thread = StepThread(self.loop)
        self.threads.append(thread)
        return thread

    # -- time

    def settle(self) -> None:
        """Run what is ready, on the loop and on the threads; time does not pass."""
        self.loop.run_until_idle()
        while any(thread.run_one() for thread in self.threads):
            self.loop.run_until_idle()

    def advance(self, ms: float, step_ms: float = 10) -> None:
        while ms > 0:
            self.loop.advance(min(step_ms, ms))
            self.settle()
            ms -= step_ms

    # -- requests

    def create(self, name: str, incarnation: int = 7) -> SharedTopic:
        return self.topics.create(name, incarnation, b"{}")

    def append(self, name: str, *values: bytes, **fields: Any) -> list[Appended | Refusal]:
        """Begin an append; the list gets its answer."""
        answers: list[Appended | Refusal] = []
        records = [NewFrame(value) for value in values]
        self.broker.append(Group(name, records, **fields), answers.append)
        return answers

    def appended(self, name: str, *values: bytes) -> Appended:
        """Append, and wait for the answer."""
        answers = self.append(name, *values)
        self.settle()
        self.advance(1_000)
        (answer,) = answers
        assert isinstance(answer, Appended), answer
        return answer

    def read(self, request: SharedRead) -> list[list[TopicRecords]]:
        """Begin a read; the list gets its answer."""
        answers: list[list[TopicRecords]] = []
        self.broker.read(request, answers.append)
        return answers

    def values(self, name: str, from_seq: int = 1, **fields: Any) -> list[tuple[int, bytes]]:
        """Read one topic without waiting."""
        answers = self.read(SharedRead([TopicRead(name, from_seq, **fields)]))
        self.settle()
        ((answer,),) = answers
        assert answer.refusal is None, answer.refusal
        return [(record.seq, record.data) for record in answer.records]
