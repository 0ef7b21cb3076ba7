"""Reads after a position of a shared topic over HTTP, as those of a local one."""

from __future__ import annotations

from shared.contract.seek import Seek
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from shared.settings.settings import Settings
from topicsd.engine.requests import ReadAnswer, ReadRequest, Reply
from topicsd.service.call import Call
from topicsd.service.diff import Diff
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


class SharedDiff:
    """The operation `diff` on shared topics; it refuses a name that is none."""

    def __init__(
        self,
        reads: SharedReads,
        feeds: Feeds,
        settings: Settings,
        loop: Loop,
        clock: Clock,
        counts: RequestCounts,
    ) -> None:
        self._diff = Diff(_BrokerReads(reads, feeds), settings, loop, clock, counts)

    def start(self, call: Call) -> None:
        self._diff.start(call)
