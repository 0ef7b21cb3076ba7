"""Two open shards of one directory, between which topics are moved as bundles.

Promises: `move` is a whole move as a server makes it: prepare, gather, adopt, depart. The two share one disk
and one clock, so that a power cut ends both, and `reopen` starts both on what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from shared.contract.errors import Refusal, throttled
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.engine.bundle.gather import Gathered, depart, sealed_part
from topicsd.engine.bundle.segment_source import DirectorySource, TailSource
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.topic import Topic

T = TypeVar("T")

MOVED = throttled("the topic has moved")


class MoveRefusedError(Exception):
    """A shard refused a step of a move."""


class TwoShards:
    def __init__(
        self, disk: MemoryDisk | None = None, clock: ManualClock | None = None, **settings: Any
    ) -> None:
        first = OneShard(shard=0, shards=2, disk=disk, clock=clock, **settings)
        second = OneShard(shard=1, shards=2, disk=first.disk, clock=first.clock, **settings)
        self.shards = [first, second]

    @property
    def disk(self) -> MemoryDisk:
        return self.shards[0].disk

    def settle(self) -> None:
        for one in self.shards:
            one.settle()

    def reopen(self, disk: MemoryDisk) -> None:
        for one in self.shards:
            one.open(disk)

    def cut_power(self, seed: int) -> None:
        self.reopen(self.disk.after_power_cut(Random(seed)))

    def kill(self) -> None:
        self.reopen(self.disk.after_process_kill())

    def run(self, number: int, job: BackgroundJob[T]) -> T:
        """Run a job of a shard to its end."""
        outcomes: list[Any] = []
        one = self.shards[number]
        one.shard.state.jobs.start(job, outcomes.append)
        for _ in range(50):
            one.settle()
            if outcomes:
                break
            one.pass_time(100)
        (outcome,) = outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def prepare(self, name: str, source: int = 0) -> None:
        """Seal the segments of a topic, and have the other shard fetch them."""
        one = self.shards[source]
        refusal = self.run(source, one.shard.gatherer.prepare(name))
        if refusal is None:
            files = DirectorySource(self.disk, one.paths.root)
            adopter = self.shards[1 - source].shard.adopter
            refusal = self.run(1 - source, adopter.prepare(sealed_part(one.topic(name)), files))
        if refusal is not None:
            raise MoveRefusedError(refusal.message)

    def gather(self, name: str, source: int = 0, *, is_prepared: bool = True) -> Gathered:
        """Gather a topic apart; unless `is_prepared`, seal it in its directory."""
        gatherer = self.shards[source].shard.gatherer
        job = gatherer.gather_apart(name) if is_prepared else gatherer.gather(name)
        gathered = self.run(source, job)
        if isinstance(gathered, Refusal):
            raise MoveRefusedError(gathered.message)
        return gathered

    def source_of(self, gathered: Gathered, source: int = 0, *, links: bool = False) -> TailSource:
        """Return the files of a gathered topic."""
        files = DirectorySource(self.disk, self.shards[source].paths.root, links=links)
        return TailSource(self.disk, gathered.tail, files)

    def adopt(self, gathered: Gathered, target: int = 1, *, links: bool = False, **options: Any) -> Any:
        files = self.source_of(gathered, 1 - target, links=links)
        return self.run(target, self.shards[target].shard.adopter.adopt(gathered.bundle, files, **options))

    def depart(self, name: str, source: int = 0, refusal: Refusal = MOVED) -> RecordedReply:
        reply = RecordedReply()
        one = self.shards[source]
        depart(one.shard.state, one.topic(name), refusal, reply)
        one.settle()
        return reply

    def move(
        self,
        name: str,
        source: int = 0,
        *,
        is_prepared: bool = True,
        before_departure: Callable[[], object] = int,
    ) -> Topic:
        """Move a topic to the other shard."""
        if is_prepared:
            self.prepare(name, source)
        gathered = self.gather(name, source, is_prepared=is_prepared)
        topic = self.adopt(gathered, 1 - source, links=is_prepared)
        if isinstance(topic, Refusal):
            raise MoveRefusedError(topic.message)
        assert isinstance(topic, Topic), topic
        before_departure()
        deleted = self.depart(name, source).answer
        if isinstance(deleted, Refusal):
            raise MoveRefusedError(deleted.message)
        return topic
