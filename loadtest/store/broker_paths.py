"""CPU time of the paths of a broker, for each record: `python -m loadtest.store.broker_paths [ROUNDS]`.

The handlers of `/produce` and `/consume` run in this process, over a catalog and a store that answer at once
and keep nothing. Beside them is what a program does at least: it decodes JSON, joins length-prefixed records,
makes one object, and renders slices of a list. Neither has a connection. Both run by turns, and the best of
all rounds counts.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from shared.http.head import Fields
from shared.runtime.clock import SystemClock
from shared.runtime.retries import Retries
from shared.settings.settings import Settings
from topicsd.broker.broker import Broker, ReadLimits, make_pools
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.shared.shared_catalog import PartResult, SharedTopic, Slice
from topicsd.service.call import Call
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.consume import ConsumeHandler
from topicsd.service.shared.names import SharedNames
from topicsd.service.shared.produce import ProduceHandler

CLOCK: Final = SystemClock()
FIELDS: Final = Fields(content_type="application/json")
TOPIC: Final = "bench"
LENGTH_BYTES: Final = 4
READ_RECORDS: Final = 8_000
BATCH_BYTES: Final = 2 << 20
SHAPES: Final = ((100, 1000), (1024, 1000), (100, 10), (1024, 10))
"""Bytes of a record, and records of a request."""


class PathCost(NamedTuple):
    """CPU time in µs for each record."""

    ours: float
    bare: float


class _InlineLoop:
    def __init__(self) -> None:
        self._ready: deque[Callable[[], Any]] = deque()

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._ready.append(partial(callback, *args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _InlineLoop:
        return self

    def cancel(self) -> None:
        """Timers never fire."""

    def run(self) -> None:
        while self._ready:
            self._ready.popleft()()


class _InlineThread:
    def __init__(self, loop: _InlineLoop) -> None:
        self._loop = loop

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._loop.call_soon(lambda: done(job()))

    def drain(self) -> None:
        self._loop.run()

    def stop(self) -> None:
        """Nothing runs."""


class _InstantStore:
    url = "memory://"

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        """Keep nothing."""


class _SilentListener:
    def follow(self, names: object) -> None:
        """Report nothing."""

    def close(self) -> None:
        """Nothing is open."""


class _InstantCatalog:
    def __init__(self) -> None:
        self.head = 0

    def topics(self, names: Sequence[str]) -> list[SharedTopic]:
        return [SharedTopic(name, 1, "OPEN", self.head, 0, 0, 0, 0, b"{}", 1) for name in names]

    def heads(self, topics: Sequence[tuple[str, int]]) -> list[int]:
        return [self.head] * len(topics)

    def listen(self, on_notices: object) -> _SilentListener:
        return _SilentListener()

    def commit(self, key: str, encoding: str, slices: Sequence[Slice]) -> list[list[PartResult]]:
        results: list[list[PartResult]] = []
        for one in slices:
            results.append([])
            for part in one.parts:
                self.head += part.count
                results[-1].append(PartResult("committed", self.head - part.count + 1, self.head))
        return results


class _BenchCall(Call, kw_only=True, eq=False):
    answers: list[Sequence[bytes | memoryview]]

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        assert status == 200, parts
        self.answers.append(parts)


class _Ours:
    def __init__(self) -> None:
        self._loop = _InlineLoop()
        pools = make_pools(lambda name: _InlineThread(self._loop))
        self._catalog: Any = _InstantCatalog()
        store: Any = _InstantStore()
        limits = BatchLimits(batch_bytes=BATCH_BYTES)
        reads = ReadLimits(poll_seconds=1e9)
        self._broker = Broker(
            CLOCK, self._loop, pools, store, self._catalog, self._retries, limits, reads, ("write", "read")
        )
        names = SharedNames(self._broker, CLOCK)
        counts = RequestCounts(CLOCK)
        self._produce = ProduceHandler(self._broker, names, Settings(), counts)
        self._consume = ConsumeHandler(self._broker, counts)

    def _retries(self) -> Retries:
        return Retries(CLOCK.monotonic, threading.Event().wait, 10.0)

    def write(self, bodies: Sequence[bytes]) -> None:
        answers: list[Sequence[bytes | memoryview]] = []
        for body in bodies:
            self._produce.start(_BenchCall(TOPIC, "", FIELDS, body, 0.0, answers=answers))
            self._loop.run()
        if self._broker.batcher.pending_bytes:
            # What the timer of the batch does.
            self._broker.batcher._on_timer()
        self._loop.run()
        assert len(answers) == len(bodies)

    def read(self, offset: int, count: int, size: int) -> bytes:
        answers: list[Sequence[bytes | memoryview]] = []
        body = _consume_body(offset, size)
        self._consume.start(_BenchCall(TOPIC, "", FIELDS, body, 0.0, answers=answers))
        self._loop.run()
        # A connection writes the parts of a large answer one after the other.
        return bytes(answers[0][1])


class _LeastWrite(msgspec.Struct):
    topic: str
    partition: int
    records: list[msgspec.Raw]


class _LeastProduce(msgspec.Struct):
    topic_partitions: list[_LeastWrite]


class _LeastRead(msgspec.Struct):
    topic: str
    partition: int
    fetch_offset: int
    partition_max_bytes: int


class _LeastConsume(msgspec.Struct):
    topic_partitions: list[_LeastRead]
    max_bytes: int = 0


class _Bare:
    """What `loadtest/cluster/figures/bare_broker.py` does with a request."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_LeastProduce).decode
        self._decode_read = msgspec.json.Decoder(_LeastConsume).decode
        self._records: list[bytes] = []

    def write(self, bodies: Sequence[bytes]) -> list[bytes]:
        parts: list[bytes] = []
        for body in bodies:
            for one in self._decode(body).topic_partitions:
                records = [bytes(record) for record in one.records]
                parts.append(b"".join([len(one).to_bytes(LENGTH_BYTES, "little") + one for one in records]))
                self._records += records
        b"".join(parts)
        return [b'{"results":[{"start_offset":%d}]}' % at for at in range(len(bodies))]

    def read(self, offset: int, count: int, size: int) -> bytes:
        (one,) = self._decode_read(_consume_body(offset, size)).topic_partitions
        records = self._records[one.fetch_offset - 1 : one.fetch_offset - 1 + count]
        sum(map(len, records))
        rows = [b'{"offset":%d,"value":%b}' % row for row in enumerate(records, one.fetch_offset)]
        return b'{"results":[{"records":[%b]}]}' % b",".join(rows)


def _consume_body(offset: int, size: int) -> bytes:
    partition = b'{"topic":"bench","partition":0,"fetch_offset":%d,"partition_max_bytes":%d}' % (offset, size)
    return b'{"topic_partitions":[%b],"max_bytes":%d}' % (partition, size)


def produce_body(record_bytes: int, count: int) -> bytes:
    texts = [os.urandom(record_bytes // 2 - 1).hex() for _ in range(count)]
    group = {"topic": TOPIC, "partition": 0, "records": texts}
    return msgspec.json.encode({"topic_partitions": [group]})


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1e9


def measure(record_bytes: int, count: int, rounds: int) -> dict[str, PathCost]:
    body = produce_body(record_bytes, count)
    frame_bytes = record_bytes + 50
    bodies = [body] * max(1, BATCH_BYTES // (frame_bytes * count) // 2)
    best: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for side, program in (("ours", _Ours()), ("bare", _Bare())):
            while_writing = _seconds(partial(program.write, bodies))
            for _ in range(READ_RECORDS // (len(bodies) * count)):
                while_writing = min(while_writing, _seconds(partial(program.write, bodies)))
            costs = {"write": while_writing * 1e6 / (len(bodies) * count)}
            total = len(bodies) * count
            reads = [
                partial(program.read, at, count, frame_bytes * count) for at in range(1, total + 1, count)
            ]
            costs["read"] = sum(map(_seconds, reads)) * 1e6 / total
            for path, cost in costs.items():
                best[path, side] = min(cost, best.get((path, side), cost))
    return {path: PathCost(best[path, "ours"], best[path, "bare"]) for path in ("write", "read")}


def main(rounds: str = "20") -> None:
    for record_bytes, count in SHAPES:
        for path, cost in measure(record_bytes, count, int(rounds)).items():
            print(
                f"{path:<5}  {record_bytes:>4} B x {count:<4}  {cost.ours:6.3f} µs   "
                f"bare {cost.bare:6.3f} µs   {cost.bare / cost.ours:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
