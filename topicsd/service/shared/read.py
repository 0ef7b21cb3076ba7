"""Reads of a shared topic over HTTP, as those of a local one."""

from __future__ import annotations

from typing import Final

from shared.contract.seek import Seek
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from shared.settings.settings import Settings
from topicsd.engine.requests import ReadAnswer, ReadRequest, Reply
from topicsd.service.diff import Diff
from topicsd.service.handlers import Handler
from topicsd.service.records.record_reader import RecordReader
from topicsd.service.request_counts import RequestCounts
from topicsd.stream.feeds import Feeds
from topicsd.stream.shared.shared_reads import SharedReads


class _BrokerReads:
    def __init__(self, reads: SharedReads, feeds: Feeds) -> None:
        self._reads = reads
        self.try_read = reads.try_read
        self.feed = feeds.broker_feed

    def read(self, name: str, request: ReadRequest, reply: Reply[ReadAnswer], missing: None) -> None:
        self._reads.read(name, request, reply)

    def seek(self, name: str, position: Seek, reply: Reply[int]) -> None:
        self._reads.seek(name, position, reply)

    def note_read(self, name: str) -> None:
        """A feed keeps when its topic was read; a single read has no priority."""

    def evict_floor(self, name: str) -> int:
        return self._reads.evict_floor(name)


class SharedReadHandlers:
    """The reads of shared topics; they refuse a name that is none."""

    def __init__(
        self,
        reads: SharedReads,
        feeds: Feeds,
        settings: Settings,
        loop: Loop,
        clock: Clock,
        counts: RequestCounts,
    ) -> None:
        broker_reads = _BrokerReads(reads, feeds)
        self.table: Final[dict[str, Handler]] = {
            "diff": Diff(broker_reads, settings, loop, clock, counts).start,
            **RecordReader(broker_reads, counts.performance).table,
        }
