"""Compaction of shared topics on one thread: `python -m loadtest.store.compaction [FOLDER]`.

Blobs with records of one topic are written to a store in a folder, with a SQLite catalog. The compactor makes
objects of them; a bare program beside it reads the same slices, and creates objects of the same size. It
prints the best of ROUNDS rounds, in MB of slices a second.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from shared.runtime.clock import SystemClock
from shared.runtime.retries import Retries
from topicsd.broker.frames_v1 import FRAMES_V1, NewFrame, encode_frames
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import Compactor
from topicsd.broker.upkeep.stages import STAGES, Staged
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, Part, SharedExtent, Slice
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog
from topicsd.disk.fs import RealFs
from topicsd.store.create_object import create_object
from topicsd.store.file_objects import FileObjects

CLOCK: Final = SystemClock()
RECORD_BYTES: Final = (100, 1024, 16 << 10)
BLOB_BYTES: Final = 1 << 20
TOTAL_BYTES: Final = 128 << 20
ROUNDS: Final = 3
TOPIC: Final = "bench"


def retries() -> Retries:
    return Retries(CLOCK.monotonic, threading.Event().wait, 10.0)


class Places:
    """A store and a catalog in a new folder, with old blobs."""

    def __init__(self, folder: Path, record_bytes: int) -> None:
        folder.mkdir()
        self.store = FileObjects(RealFs(), str(folder))
        path = str(folder / "catalog.sqlite")
        old = SqliteSharedCatalog(path, lambda: CLOCK.now_ms() - REPEATED_MS - 60_000)
        old.create(TOPIC, 1, b"{}")
        count = BLOB_BYTES // (record_bytes + 50)
        body = encode_frames([NewFrame(b"1" * record_bytes)] * count, 1, 1, CLOCK.now_ms())
        for _ in range(TOTAL_BYTES // len(body)):
            key = f"llog/wal-shared/{secrets.token_hex(16)}"
            self.store.create(key, [body], key)
            part = Part(secrets.token_hex(8), count, len(body))
            old.commit(key, FRAMES_V1, [Slice(TOPIC, 1, 0, (part,))])
        old.close()
        self.catalog = SqliteSharedCatalog(path, CLOCK.now_ms)
        self.extents: list[SharedExtent] = self.catalog.extents_from(TOPIC, 1, 256)
        self.byte_count = sum(extent.byte_length for extent in self.extents)

    def compact(self) -> tuple[float, dict[str, float]]:
        """Make objects of all blobs; return the seconds, also of each stage."""
        compactor = Compactor("bench", self.store, self.catalog, retries, CompactorLimits(extents_min=1))
        stages: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        began_at = CLOCK.monotonic()
        outcome = "merged"
        while outcome == "merged":
            steps = compactor.compact(TOPIC)
            call = next(steps)
            while True:
                call_at = CLOCK.monotonic()
                result = call()
                if isinstance(call, Staged):
                    stages[call.stage] += CLOCK.monotonic() - call_at
                try:
                    call = steps.send(result)
                except StopIteration as end:
                    outcome = end.value.outcome
                    break
        return CLOCK.monotonic() - began_at, stages

    def copy(self) -> float:
        """Read the slices, and create objects of the same sizes; return the seconds."""
        began_at = CLOCK.monotonic()
        parts: list[bytes] = []
        size = 0
        for extent in [*self.extents, None]:
            if extent is None or size + extent.byte_length > CompactorLimits().object_bytes:
                create_object(self.store, f"bare/{secrets.token_hex(16)}", parts, retries())
                parts, size = [], 0
            if extent is not None:
                parts.append(self.store.read(extent.key, extent.byte_offset, extent.byte_length))
                size += extent.byte_length
        return CLOCK.monotonic() - began_at


def main(folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as path:
        for record_bytes in RECORD_BYTES:
            best: dict[str, float] = {}
            stages: dict[str, float] = {}
            for number in range(ROUNDS):
                places = Places(Path(path) / f"{record_bytes}-{number}", record_bytes)
                os.sync()
                bare = places.byte_count / places.copy() / 1e6
                os.sync()
                seconds, times = places.compact()
                mine = places.byte_count / seconds / 1e6
                if mine > best.get("compactor", 0):
                    stages = times
                best = {
                    "bare": max(bare, best.get("bare", 0)),
                    "compactor": max(mine, best.get("compactor", 0)),
                }
                places.catalog.close()
            share = best["compactor"] / best["bare"]
            print(
                f"records of {record_bytes:>6} B   compactor {best['compactor']:7.1f} MB/s   "
                f"bare {best['bare']:7.1f} MB/s   {share:.2f}   "
                + "  ".join(
                    f"{stage} {seconds:.2f} s" for stage, seconds in stages.items() if seconds >= 0.005
                ),
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
