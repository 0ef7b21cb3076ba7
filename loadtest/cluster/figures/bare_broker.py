"""The ceiling of a broker: decode, batch, put one object, make one commit, answer.

It has the endpoints and reads the settings of a node, so that the same clients load it, and it uses the same
store and the same catalog. It does what no broker can do without: JSON records become length-prefixed bytes,
a batch becomes an object when it is full or old enough, one commit gives all its topics their offsets, and
reads come from the batches of this process or, for those of others, from the store. It has no frames or
checksums, limits, fences, idempotency, retries, membership and upkeep, and it forgets no batch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from loadtest.ceilings.bare_http import BareHttp
from loadtest.cluster.precreate import topic_name
from loadtest.store.commits import open_catalog
from shared.runtime.clock import SystemClock
from topicsd.broker.broker import ReadLimits
from topicsd.catalog.shared.shared_catalog import Part, SharedCatalog, Slice, TopicExists
from topicsd.disk.fs import RealFs
from topicsd.store.metered import MeteredStore
from topicsd.store.open_store import open_store

INCARNATION: Final = 1
ENCODING: Final = "bare"
LENGTH_BYTES: Final = 4
POLL_SECONDS: Final = ReadLimits().poll_seconds
"""How long a commit of another process may stay unseen: as long as by a broker."""
TOPIC_AT: Final = len("PUT /v0/topics/")


class _ProducePart(msgspec.Struct):
    topic: str
    partition: int
    records: list[msgspec.Raw]


class _BareProduce(msgspec.Struct):
    topic_partitions: list[_ProducePart]


class _ConsumePart(msgspec.Struct):
    topic: str
    partition: int
    fetch_offset: int
    partition_max_bytes: int = 1 << 20


class _BareConsume(msgspec.Struct):
    topic_partitions: list[_ConsumePart]
    max_wait_ms: int = 0


_decode_produce = msgspec.json.Decoder(_BareProduce).decode
_decode_consume = msgspec.json.Decoder(_BareConsume).decode


class _Group(NamedTuple):
    """One partition of one request, and what answers it."""

    part: _ProducePart
    records: list[bytes]
    body: bytes
    reply: Callable[[int], None]


class _Chunk(NamedTuple):
    """Records of one topic that were committed together."""

    last: int
    first: int
    records: list[bytes]


class BareBroker:
    def __init__(self, store: MeteredStore, catalog: SharedCatalog, linger: float, batch_bytes: int) -> None:
        self.store = store
        self.catalog = catalog
        self._linger = linger
        self._batch_bytes = batch_bytes
        self._loop = asyncio.get_running_loop()
        self._puts = ThreadPoolExecutor(4)
        self._commits = ThreadPoolExecutor(1)
        self.lookups = ThreadPoolExecutor(4)
        self._groups: list[_Group] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self.chunks: dict[str, list[_Chunk]] = {}
        self.waiting: set[asyncio.Future[None]] = set()
        self.counts = {
            "produce": dict.fromkeys(("requests", "records", "bytes", "errors"), 0),
            "consume": dict.fromkeys(("requests", "records", "bytes", "errors"), 0),
            "catalog": {"requests": 0},
        }
        self.put_seconds = self.commit_seconds = 0.0
        self.batches = 0

    def append(self, group: _Group) -> None:
        if not self._groups:
            self._timer = self._loop.call_later(self._linger, self._flush)
        self._groups.append(group)
        self._size += len(group.body)
        if self._size >= self._batch_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        groups, self._groups, self._size = self._groups, [], 0
        if groups:
            task = self._loop.create_task(self._write(groups))
            task.add_done_callback(_raise_failure)

    async def _write(self, groups: list[_Group]) -> None:
        """Put a batch, commit it, answer its requests."""
        by_name: dict[str, list[_Group]] = {}
        for group in groups:
            by_name.setdefault(topic_name(group.part.topic, group.part.partition), []).append(group)
        key = f"bare/{uuid.uuid4()}"
        slices: list[Slice] = []
        bodies: list[bytes] = []
        offset = 0
        for name, its_groups in by_name.items():
            count = sum(len(group.records) for group in its_groups)
            size = sum(len(group.body) for group in its_groups)
            slices.append(Slice(name, INCARNATION, offset, (Part(f"{key}/{len(slices)}", count, size),)))
            bodies += [group.body for group in its_groups]
            offset += size
        began = time.perf_counter()
        await self._loop.run_in_executor(self._puts, self.store.create, key, bodies, uuid.uuid4().hex)
        put = time.perf_counter()
        commit = self._loop.run_in_executor(self._commits, self.catalog.commit, key, ENCODING, slices)
        results = await commit
        self.put_seconds += put - began
        self.commit_seconds += time.perf_counter() - put
        self.batches += 1
        self.counts["catalog"]["requests"] += 1
        for (name, its_groups), (result,) in zip(by_name.items(), results, strict=True):
            assert result.status == "committed", result
            self._answer(name, its_groups, result.first_seq)
        for waiter in self.waiting:
            waiter.set_result(None)
        self.waiting.clear()

    def _answer(self, name: str, groups: list[_Group], first: int) -> None:
        chunks = self.chunks.setdefault(name, [])
        for group in groups:
            count = len(group.records)
            chunks.append(_Chunk(first + count - 1, first, group.records))
            self.counts["produce"]["records"] += count
            self.counts["produce"]["bytes"] += len(group.body) - (LENGTH_BYTES + 2) * count
            group.reply(first)
            first += count

    async def read(self, name: str, offset: int, size_max: int) -> tuple[list[bytes], int]:
        """Return records from an offset on, and the head of the topic as far as it is known."""
        chunks = self.chunks.get(name, [])
        at = bisect_left(chunks, (offset,))
        if at < len(chunks) and chunks[at].first <= offset:
            chunk = chunks[at]
            records = chunk.records[offset - chunk.first :]
            size = sum(map(len, records))
            for chunk in chunks[at + 1 :]:
                if size >= size_max or chunk.first != offset + len(records):
                    break
                records += chunk.records
                size += sum(map(len, chunk.records))
            return records, chunks[-1].last
        return await self._loop.run_in_executor(self.lookups, self._read_stored, name, offset, size_max)

    def _read_stored(self, name: str, offset: int, size_max: int) -> tuple[list[bytes], int]:
        """Read the ranges of other processes: one lookup, one request for each object."""
        (head,) = self.catalog.heads([(name, INCARNATION)])
        self.counts["catalog"]["requests"] += 2
        records: list[bytes] = []
        size = 0
        for extent in self.catalog.extents_from(name, offset, 16) if offset <= head else ():
            if size >= size_max:
                break
            body = self.store.read(extent.key, extent.byte_offset, extent.byte_length)
            records += split(body)[max(0, offset - extent.first_seq) :]
            size += len(body)
        return records, max(head, 0)

    def metrics(self, started_at_ms: int) -> dict[str, Any]:
        totals = self.store.totals
        return {
            "started_at_ms": started_at_ms,
            **self.counts,
            "store": {
                "put": totals.creates,
                "range_get": totals.reads,
                "info": totals.infos,
                "list": totals.lists,
                "bytes_written": totals.bytes_written,
                "bytes_read": totals.bytes_read,
            },
            "billing_estimate": {"requests_dollars": totals.dollars(self.store.prices)},
            "batches": self.batches,
            "put_seconds": self.put_seconds,
            "commit_seconds": self.commit_seconds,
        }


def joined(records: list[bytes]) -> bytes:
    """Return records as length-prefixed bytes.

    >>> split(joined([b'"a"', b'"bc"']))
    [b'"a"', b'"bc"']
    """
    return b"".join([len(record).to_bytes(LENGTH_BYTES, "little") + record for record in records])


def split(body: bytes) -> list[bytes]:
    records, at = [], 0
    while at < len(body):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(body[at:start], "little")
        records.append(body[start:at])
    return records


def _raise_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()


class BareConnection(BareHttp):
    def __init__(self, broker: BareBroker, started_at_ms: int) -> None:
        super().__init__()
        self._broker = broker
        self._started_at_ms = started_at_ms
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, data: bytes, body_at: int, end: int) -> None:
        if data.startswith(b"POST /produce "):
            self._produce(_decode_produce(data[body_at:end]))
        elif data.startswith(b"POST /consume "):
            self._start(self._consume(_decode_consume(data[body_at:end])))
        elif data.startswith(b"PUT "):
            name = data[TOPIC_AT : data.find(b" ", TOPIC_AT)].decode().replace("%3A", ":")
            self._start(self._create(name))
        elif data.startswith(b"GET /metrics "):
            self._send(msgspec.json.encode(self._broker.metrics(self._started_at_ms)))
        else:
            self._send(b'{"status":"ok","started_at_ms":%d}' % self._started_at_ms)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)

    def _produce(self, request: _BareProduce) -> None:
        counts = self._broker.counts["produce"]
        counts["requests"] += 1
        parts = request.topic_partitions
        firsts: dict[int, int] = {}

        def reply(at: int, first: int) -> None:
            firsts[at] = first
            if len(firsts) == len(parts):
                self._send_produced(parts, firsts)

        for at, part in enumerate(parts):
            records = [bytes(record) for record in part.records]
            self._broker.append(_Group(part, records, joined(records), partial(reply, at)))

    def _send_produced(self, parts: list[_ProducePart], firsts: dict[int, int]) -> None:
        results = [
            b'{"topic":"%b","partition":%d,"ok":true,"start_offset":%d,"end_offset":%d,"count":%d}'
            % (
                part.topic.encode(),
                part.partition,
                firsts[at],
                firsts[at] + len(part.records) - 1,
                len(part.records),
            )
            for at, part in enumerate(parts)
        ]
        self._send(b'{"results":[%b],"success_count":%d,"error_count":0}' % (b",".join(results), len(parts)))

    async def _consume(self, request: _BareConsume) -> None:
        broker, parts = self._broker, request.topic_partitions
        counts = broker.counts["consume"]
        counts["requests"] += 1
        until = time.monotonic() + request.max_wait_ms / 1000
        while True:
            answers = [
                await broker.read(
                    topic_name(part.topic, part.partition), part.fetch_offset, part.partition_max_bytes
                )
                for part in parts
            ]
            left = until - time.monotonic()
            if left <= 0 or any(records for records, _ in answers):
                break
            waiter = asyncio.get_running_loop().create_future()
            broker.waiting.add(waiter)
            await asyncio.wait([waiter], timeout=min(left, POLL_SECONDS))
            broker.waiting.discard(waiter)
        results = []
        for part, (records, head) in zip(parts, answers, strict=True):
            counts["records"] += len(records)
            counts["bytes"] += sum(map(len, records))
            rows = [b'{"offset":%d,"value":%b}' % row for row in enumerate(records, part.fetch_offset)]
            results.append(
                b'{"topic":"%b","partition":%d,"ok":true,"records":[%b],"next_offset":%d,"high_watermark":%d}'
                % (
                    part.topic.encode(),
                    part.partition,
                    b",".join(rows),
                    part.fetch_offset + len(records),
                    head,
                )
            )
        self._send(b'{"results":[%b],"success_count":%d,"error_count":0}' % (b",".join(results), len(parts)))

    async def _create(self, name: str) -> None:
        def create() -> None:
            try:
                self._broker.catalog.create(name, INCARNATION, b"{}")
            except TopicExists:
                return

        await asyncio.get_running_loop().run_in_executor(self._broker.lookups, create)
        self._send(b"{}")


async def main(settings: dict[str, str]) -> None:
    store = open_store(settings["TOPICS_STORE_URL"], RealFs())
    catalog = open_catalog(settings["TOPICS_CATALOG_URL"])
    linger = int(settings["TOPICS_BATCH_MAX_DELAY_MS"]) / 1000
    broker = BareBroker(store, catalog, linger, int(settings["TOPICS_BATCH_MAX_BYTES"]))
    started_at_ms = SystemClock().now_ms()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await loop.create_server(
        lambda: BareConnection(broker, started_at_ms), "127.0.0.1", int(settings["TOPICS_PORT"]), backlog=1024
    )
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(main(dict(os.environ)))
