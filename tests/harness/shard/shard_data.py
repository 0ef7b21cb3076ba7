"""The data of a shard for tests of loading and replay: log files only, on a fake disk."""

from __future__ import annotations

from shared.settings.settings import Settings
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.engine.shard_data import ShardData
from topicsd.log.files import LogFiles
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore


def empty_data(disk: MemoryDisk | None = None, files: LogFiles | None = None) -> ShardData:
    disk = disk or MemoryDisk()
    segments = SegmentReader(LocalStore(disk, "/d"), None)
    return ShardData(ManualClock(), Settings(), files or LogFiles(disk), segments)
