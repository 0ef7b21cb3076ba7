"""A broker: takes writes of any shared topic and serves their reads, and owns nothing.

Everything that lasts is in the object store and in the catalog, so a broker that ends loses only what it has
not acknowledged. The parts: `write/` makes blobs of requests and commits them, `read/` serves records from
memory and from the store. All calls to store and catalog are made on the threads of `BrokerPools`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import DiskThread, Loop, SystemDiskThread
from shared.runtime.retries import Retries
from topicsd.broker.counts import BrokerCounts
from topicsd.broker.frames_v1 import FRAMES_V1, Rebase
from topicsd.broker.read.extents import ExtentReader
from topicsd.broker.read.heads import Heads
from topicsd.broker.read.reader import ReadWait, SharedRead, SharedReader, TopicRecords
from topicsd.broker.read.tail_cache import TailCache, TailChunk
from topicsd.broker.read.time_search import TimeSearch
from topicsd.broker.refusals import no_role
from topicsd.broker.steps import Pool, Wait
from topicsd.broker.topic_table import TopicTable
from topicsd.broker.write.batcher import Batcher, BatchLimits
from topicsd.broker.write.committer import BlobCommitter, CommittedRun
from topicsd.broker.write.open_blob import AppendReply, Group
from topicsd.catalog.shared.shared_catalog import (
    ConfigChanged,
    LogState,
    SharedCatalog,
    SharedTopic,
    TopicExists,
    TrimReason,
)
from topicsd.store.block_cache import BlockCache
from topicsd.store.object_store import ObjectStore


class ReadLimits(NamedTuple):
    tail_cache_bytes: int = 256 << 20
    block_cache_bytes: int = 256 << 20
    laggard_cache_bytes: int = 64 << 20
    poll_seconds: float = 0.25


THREADS: Final = {"put": 4, "commit": 2, "lookup": 2, "read": 4, "laggard": 2}
"""The number of threads of each pool."""


class BrokerPools(NamedTuple):
    """The threads of a broker, by what they wait for."""

    puts: Pool
    commits: Pool
    lookups: Pool
    reads: Pool
    laggard_reads: Pool

    def stop(self) -> None:
        for pool in self:
            pool.stop()


def make_pools(thread: Callable[[str], DiskThread]) -> BrokerPools:
    """Make the pools of threads that `thread` starts by name."""
    return BrokerPools(
        *(Pool([thread(f"{kind}-{number}") for number in range(count)]) for kind, count in THREADS.items())
    )


def start_pools(loop: Loop) -> BrokerPools:
    return make_pools(partial(SystemDiskThread, loop))


class Broker:
    def __init__(
        self,
        clock: Clock,
        loop: Loop,
        pools: BrokerPools,
        store: ObjectStore,
        catalog: SharedCatalog,
        retries: Callable[[], Retries],
        batch_limits: BatchLimits,
        read_limits: ReadLimits,
        roles: Collection[str] = ("write", "read"),
    ) -> None:
        """`retries` bounds how long a request to the store is repeated; `roles` are what clients may ask."""
        self.write_refusal = None if "write" in roles else no_role("write")
        self.read_refusal = None if "read" in roles else no_role("read")
        self._loop = loop
        self.call_later: Final = loop.call_later
        self.store_url = store.url
        self._catalog = catalog
        self.lookups = pools.lookups
        self.laggard_reads = pools.laggard_reads
        self.counts = BrokerCounts()
        self.topics = TopicTable(clock, pools.lookups, catalog)
        self.heads = Heads(clock, loop, pools.lookups, catalog, read_limits.poll_seconds)
        self.cache = TailCache(read_limits.tail_cache_bytes)
        self.committer = BlobCommitter(
            clock, loop, store, catalog, pools.puts, pools.commits, retries, self.topics, self.on_commit
        )
        self.batcher = Batcher(clock, loop, self.topics, self.committer, batch_limits)
        blocks = BlockCache(store, read_limits.block_cache_bytes)
        laggard_blocks = BlockCache(store, read_limits.laggard_cache_bytes)
        self.extents = ExtentReader(
            catalog, pools.lookups, pools.reads, pools.laggard_reads, blocks, laggard_blocks, retries
        )
        self.times = TimeSearch(catalog, pools.laggard_reads, laggard_blocks, retries)
        self.reader = SharedReader(
            clock, self.topics, self.heads, self.cache, self.extents, pools.laggard_reads
        )

    def append(self, group: Group, reply: AppendReply) -> None:
        """Append the records of a group; `reply` gets `Appended` or a `Refusal`, once."""
        if self.write_refusal is None:
            self.batcher.append(group, reply)
        else:
            reply(self.write_refusal)

    def read(
        self,
        request: SharedRead,
        reply: Callable[[list[TopicRecords]], object],
        wait: ReadWait | None = None,
    ) -> None:
        """Read several topics; `reply` gets an answer for each, in the order of the request."""
        refusal = self.read_refusal
        if refusal is None:
            self.reader.read(request, reply, wait)
        else:
            reply([TopicRecords(one.topic, one.from_seq, refusal=refusal) for one in request.topics])

    def on_commit(self, run: CommittedRun) -> None:
        """Make committed records visible to the readers of this broker: the records first, then the head."""
        rebase = Rebase(run.incarnation, run.first_seq, run.last_seq)
        if run.texts is None:
            self.cache.add(TailChunk(run.topic, rebase, b"".join(run.bodies), FRAMES_V1))
        else:
            byte_count = sum(map(len, run.bodies))
            self.cache.add(TailChunk.of_texts(run.topic, rebase, run.texts, run.ts, byte_count))
        self.heads.advance(run.topic, run.incarnation, run.last_seq)

    # -- changes of topics: one request to the catalog each, which is safe to repeat

    def create(self, name: str, incarnation: int, config: bytes) -> Wait:
        """Wait for the topic with this name, which has another incarnation if it existed before."""

        def create() -> SharedTopic | None:
            try:
                return self._catalog.create(name, incarnation, config)
            except TopicExists:
                return self._catalog.topics([name])[0]

        return self.topics.change(create, name)

    def configure(self, topic: SharedTopic, config: bytes) -> Wait:
        """Wait for the topic with this configuration, or with the one that it has got since it was read."""

        def configure() -> SharedTopic | None:
            try:
                return self._catalog.configure(topic.name, topic.incarnation, config, topic.config_version)
            except ConfigChanged:
                return self._catalog.topics([topic.name])[0]

        return self.topics.change(configure, topic.name)

    def fence(self, name: str, incarnation: int, log_state: LogState) -> Wait:
        return self.topics.change(partial(self._catalog.fence, name, incarnation, log_state), name)

    def trim(self, topic: SharedTopic, to_seq: int, reason: TrimReason) -> Wait:
        return self.topics.change(
            partial(self._catalog.trim, topic.name, topic.incarnation, to_seq, reason), topic.name
        )

    def delete(self, name: str, incarnation: int) -> Wait:
        """Wait until the topic is deleted; its objects are left for vacuum."""

        def forget() -> None:
            self._catalog.forget(name, incarnation)

        def start(resume: Callable[[object], None]) -> None:
            def end(outcome: object) -> None:
                if not isinstance(outcome, OSError):
                    self.cache.drop(name)
                    self.heads.forget(name)
                resume(outcome)

            self.topics.change(forget, name)(end)

        return start

    def list(self, prefix: str, after: str, limit: int) -> Wait:
        """Wait for a page of topics in the order of their names."""
        return self.lookups.call(partial(self._catalog.list, prefix, after, limit))

    def close(self) -> None:
        """Refuse new writes and start what is open; the broker is drained when `is_drained`."""
        self.batcher.close()
        if self.committer.homes is not None:
            self.committer.homes.home.close()

    @property
    def is_drained(self) -> bool:
        homes = self.committer.homes
        is_home_idle = homes is None or homes.home.in_flight == 0
        return is_home_idle and self.committer.in_flight == 0 and self.batcher.pending_bytes == 0
