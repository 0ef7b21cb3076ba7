"""A broker, a compactor and vacuum over a real store and a real catalog, and what the broker answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from shared.runtime.retries import Retries
from spark.source.source import TopicsdSource
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from topicsd.broker.broker import Broker, ReadLimits, make_pools
from topicsd.broker.catalog_of_store import adopt_store
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.steps import BlockingSteps, Wait
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum, BlobVacuumReport
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import CompactionReport, Compactor
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, SharedTopic, TrimReason
from topicsd.disk.fs import RealFs
from topicsd.log.frame import Record
from topicsd.store.open_store import open_store

Row = tuple[int, int, bytes, bytes | None, list[tuple[str, bytes]]]


class SharedStore:
    """One broker on a loop and threads that run when a test asks."""

    def __init__(self, folder: Path, url: str = "", catalog_url: str = "sqlite:") -> None:
        self.folder = folder
        self.url = url or f"file://{folder}"
        self.catalog_url = catalog_url
        self.clock = ManualClock()
        self._loop = ManualLoop(self.clock)
        self._threads: list[StepThread] = []
        self._stack = ExitStack()
        self.store = open_store(self.url, RealFs())
        self._stack.callback(self.store.close)
        self.catalog = open_shared_catalog(
            catalog_url, str(folder), self.retries(), self.clock.now_ms, self.url
        )
        self._stack.callback(self.catalog.close)
        adopt_store(self.store, self.catalog, self.retries)
        self.broker = Broker(
            self.clock,
            self._loop,
            make_pools(self._thread),
            self.store,
            self.catalog,
            self.retries,
            BatchLimits(),
            # Nothing from memory: what the store has is to be compared.
            ReadLimits(tail_cache_bytes=0, block_cache_bytes=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def options(self) -> dict[str, str]:
        return {"path": self.url, "catalog": self.catalog_url}

    def source(self, topics: str, **options: str) -> TopicsdSource:
        return TopicsdSource({"topics": topics, **self.options, **options})

    def retries(self) -> Retries:
        return Retries(self.clock.monotonic, lambda seconds: self.clock.advance(seconds * 1000), 10.0)

    def _thread(self, name: str) -> StepThread:
        thread = StepThread(self._loop)
        self._threads.append(thread)
        return thread

    def settle(self, ms: int = 0) -> None:
        for _ in range(ms // 50 + 1):
            self._loop.run_until_idle()
            while any(thread.run_one() for thread in self._threads):
                self._loop.run_until_idle()
            if ms:
                self._loop.advance(50)

    def _wait(self, wait: Wait) -> Any:
        answers: list[Any] = []
        wait(answers.append)
        self.settle()
        (answer,) = answers
        assert not isinstance(answer, Exception), answer
        return answer

    # -- topics and records

    def create(self, *names: str) -> None:
        for name in names:
            self._wait(self.broker.create(name, abs(hash((name, self.clock.now_ms()))), b"{}"))

    def topic(self, name: str) -> SharedTopic:
        (topic,) = self.catalog.topics([name])
        assert topic is not None
        return topic

    def append(self, **groups: Sequence[NewFrame | bytes]) -> None:
        """Append the records of several topics, which are put into one blob."""
        answers: list[Any] = []
        for name, records in groups.items():
            frames = [NewFrame(one) if isinstance(one, bytes) else one for one in records]
            self.broker.append(Group(name, frames), answers.append)
        self.settle(500)
        assert len(answers) == len(groups)
        assert all(isinstance(one, Appended) for one in answers), answers

    def fill(self, name: str, blobs: int, records: int = 3) -> None:
        for _ in range(blobs):
            head = self.topic(name).head
            self.append(**{name: [b'{"n":%d}' % number for number in range(head + 1, head + 1 + records)]})

    def read(self, name: str) -> list[Record]:
        """Return what the broker answers to a read of the whole topic."""
        records: list[Record] = []
        next_seq = self.topic(name).first_seq
        while next_seq <= self.topic(name).head:
            answers: list[list[TopicRecords]] = []
            self.broker.read(SharedRead([TopicRead(name, next_seq)]), answers.append)
            self.settle()
            ((answer,),) = answers
            assert answer.refusal is None, answer.refusal
            records += answer.records
            next_seq = answer.next_seq
        return records

    def rows(self, name: str) -> list[Row]:
        return [(one.seq, one.ts, one.data, one.tag or None, _headers(one)) for one in self.read(name)]

    def trim(self, name: str, to_seq: int, reason: TrimReason = "deleted") -> None:
        self._wait(self.broker.trim(self.topic(name), to_seq, reason))

    def delete(self, name: str) -> None:
        self._wait(self.broker.delete(name, self.topic(name).incarnation))

    # -- upkeep

    def compact(self, name: str, **limits: int) -> CompactionReport:
        """Merge the extents that the topic has now."""
        self.clock.advance(REPEATED_MS)
        compactor = Compactor("c", self.store, self.catalog, self.retries, CompactorLimits(**limits))
        return run_blocking(compactor.compact(name))

    def vacuum(self) -> BlobVacuumReport:
        return run_blocking(BlobVacuum(self.store, self.catalog, self.retries, -3_600_000).run())

    def path_of(self, name: str, seq: int) -> tuple[Path, int]:
        """Return the file of the object that has a seq, and where its extent begins."""
        (extent,) = self.catalog.extents_from(name, seq, 1)
        return self.folder / extent.key, extent.byte_offset

    def damage(self, name: str, seq: int, offset: int, data: bytes) -> None:
        """Change bytes of the extent that has a seq."""
        path, begin = self.path_of(name, seq)
        whole = path.read_bytes()
        at = begin + offset
        path.chmod(0o600)
        path.write_bytes(whole[:at] + data + whole[at + len(data) :])


def run_blocking(steps: BlockingSteps[Any], before: Callable[[], object] = lambda: None) -> Any:
    result: Any = None
    while True:
        try:
            call = steps.send(result)
        except StopIteration as end:
            return end.value
        before()
        result = call()


def _headers(one: Record) -> list[tuple[str, bytes]]:
    headers = [] if one.meta is None else [("meta", one.meta)]
    return [*headers, *([("node", one.node)] if one.node else [])]
