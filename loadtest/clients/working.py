"""The client that measures a queue: producers with a bounded lead, and claiming workers.

It is one process with one event loop; each producer and worker has a connection and one outstanding request.
Of a claim it parses the seqs of the jobs by a regular expression, which is all that an ack needs. The client
costs CPU on the same machine, so its figures are those of server and client together.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import cast

import msgspec
import uvloop

from loadtest.clients.traffic import NotMeasured, append_body, tagged_body
from loadtest.clients.watching import percentiles

# The wait of a worker after an empty claim.
IDLE_SECONDS = 0.002

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_seqs_of = re.compile(rb'"\$seq":(\d+),').findall


class Work(msgspec.Struct, frozen=True):
    """The load on a queue that exists and may hold jobs."""

    queue: str
    workers: int = 50
    claim: int = 8
    producers: int = 2
    batch: int = 100
    ahead: int = 20_000
    """The maximum number of jobs produced and not yet acked."""
    tags: int = 0
    """The number of tags that the jobs have in turn, a multiple of `batch`; 0 for jobs without a tag."""


class QueueResult(msgspec.Struct, frozen=True):
    seconds: float
    jobs: int
    metered: float
    """The increase of the meter during the measured time."""
    claim_us: tuple[float, float]
    """The time of a claim: median, 99th percentile."""


def measure(
    port: int, work: Work, seconds: float, warmup: float = 0.3, meter: Callable[[], float] = float
) -> QueueResult:
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(_QueueRun(port, work).run(seconds, warmup, meter))
    finally:
        gc.enable()


class _QueueClient(asyncio.Protocol):
    """A connection that sends one request at a time."""

    transport: asyncio.Transport

    def __init__(self, queue_run: _QueueRun, path: str) -> None:
        self.queue_run = queue_run
        self._partial = b""
        self._on_answer: Callable[[bytes], None]
        self._head = f"POST /v0/topics/{path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def request(self, body: bytes, rest: str = "") -> bytes:
        head = self._head.replace(" HTTP/1.1", f"{rest} HTTP/1.1", 1)
        return b"%bcontent-length: %d\r\n\r\n%b" % (head.encode(), len(body), body)

    def ask(self, request: bytes, on_answer: Callable[[bytes], None]) -> None:
        self._on_answer = on_answer
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        data = self._partial + data if self._partial else data
        end = data.find(_HEAD_END)
        length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
        if length is None or len(data) < end + len(_HEAD_END) + int(length[1]):
            self._partial = data
            return
        self._partial = b""
        if not data.startswith(b"HTTP/1.1 20"):
            self.queue_run.fail(f"a request was answered with {data[:300]!r}")
        else:
            self._on_answer(data[end:])

    def connection_lost(self, error: Exception | None) -> None:
        self.queue_run.fail("a connection ended")


class _Producer(_QueueClient):
    def begin(self) -> None:
        work = self.queue_run.work
        bodies = [tagged_body(range(at, at + work.batch)) for at in range(0, work.tags, work.batch)]
        self._requests = cycle([self.request(body) for body in bodies or [append_body(work.batch)]])
        self.produce()

    def produce(self) -> None:
        queue_run = self.queue_run
        if queue_run.ahead + queue_run.work.batch > queue_run.work.ahead:
            queue_run.paused.append(self)
        else:
            queue_run.ahead += queue_run.work.batch
            self.ask(next(self._requests), lambda answer: self.produce())


class _Worker(_QueueClient):
    def begin(self) -> None:
        self._claim_request = self.request(b'{"node":"bench","max":%d}' % self.queue_run.work.claim, "/claim")
        self._claim()

    def _claim(self) -> None:
        self._claim_started = time.perf_counter()
        self.ask(self._claim_request, self._on_claimed)

    def _on_claimed(self, answer: bytes) -> None:
        queue_run = self.queue_run
        seqs = _seqs_of(answer)
        if not seqs:
            queue_run.loop.call_later(IDLE_SECONDS, self._claim)
            return
        queue_run.claim_us.append((time.perf_counter() - self._claim_started) * 1e6)
        body = b'{"node":"bench","seqs":[%b]}' % b",".join(seqs)
        self.ask(self.request(body, "/ack"), partial(self._on_acked, len(seqs)))

    def _on_acked(self, count: int, answer: bytes) -> None:
        queue_run = self.queue_run
        if b'"skipped":[]' not in answer:
            queue_run.fail(f"an ack of leased jobs was answered with {answer!r}")
        queue_run.jobs += count
        queue_run.ahead -= count
        while queue_run.paused and queue_run.ahead + queue_run.work.batch <= queue_run.work.ahead:
            queue_run.paused.popleft().produce()
        self._claim()


class _QueueRun:
    def __init__(self, port: int, work: Work) -> None:
        self._port = port
        self.work = work
        self.loop: asyncio.AbstractEventLoop
        self.ahead = 0
        self.jobs = 0
        self.claim_us: array[float] = array("d")
        self.paused: deque[_Producer] = deque()
        self._is_over = False

    async def run(self, seconds: float, warmup: float, meter: Callable[[], float]) -> QueueResult:
        self.loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self.loop.create_future()
        clients: list[_QueueClient] = [_Producer(self, self.work.queue) for _ in range(self.work.producers)]
        clients += [_Worker(self, self.work.queue) for _ in range(self.work.workers)]
        try:
            for client in clients:
                await self.loop.create_connection(partial(_itself, client), "127.0.0.1", self._port)
            await self._pass(warmup)
            metered, started = meter(), time.perf_counter()
            self.jobs, self.claim_us = 0, array("d")
            await self._pass(seconds)
            while not self.jobs and time.perf_counter() - started < 60.0:
                await self._pass(seconds)
            took, metered = time.perf_counter() - started, meter() - metered
            if not self.jobs:
                raise NotMeasured("no job was finished in time")
            return QueueResult(took, self.jobs, metered, percentiles(self.claim_us))
        finally:
            self._is_over = True
            for client in clients:
                if hasattr(client, "transport"):
                    client.transport.abort()

    async def _pass(self, seconds: float) -> None:
        await asyncio.wait({self._failure}, timeout=seconds)
        if self._failure.done():
            self._failure.result()

    def fail(self, why: str) -> None:
        if not self._is_over and not self._failure.done():
            self._failure.set_exception(NotMeasured(why))


def _itself(client: _QueueClient) -> _QueueClient:
    return client
