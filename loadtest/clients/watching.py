"""The client that measures fan-out: the time from an append to its event at each watcher.

It is one process with one event loop, so all times are of one clock: from the sending of an append to the
last byte of its event at each of its watchers. Of the input it parses one number, the head at the end of the
last event of a read, which is enough while no other client writes. The cost of the client is in the figures
of the server and of the ceiling alike.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import resource
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec
import uvloop

from loadtest.clients.traffic import NotMeasured

CONNECTING_AT_ONCE = 100
TIMEOUT_SECONDS = 60.0
# Files that the bench, its subjects and Python have open besides the streams.
SPARE_FILES = 300

Itself = TypeVar("Itself")

_GOOD = b"HTTP/1.1 200 "
_HEAD = b'"head_seq":'


class WatchedTopic(msgspec.Struct, frozen=True):
    """A topic that receives appends, and the streams that watch it."""

    name: str
    streams: Sequence[str]


class FanoutResult(msgspec.Struct, frozen=True):
    seconds: float
    count: int
    """Records times watchers."""
    bytes: int
    metered: float
    """The increase of the meter during the measured time."""
    each_us: tuple[float, float]
    """The time until one watcher had the record: median, 99th percentile."""
    last_us: tuple[float, float]
    """The time until all watchers of the topic had the record."""


def possible_streams(count: int) -> int:
    """Raise the descriptor limit; return the possible number of streams, at most `count`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return count if most == resource.RLIM_INFINITY else min(count, most - SPARE_FILES)


def make_sessions(port: int, names: Sequence[str]) -> list[WatchedTopic]:
    """Create a session for each name, grouped by topic; a name may occur several times."""
    streams: dict[str, list[str]] = {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        for name in names:
            body = b'{"topics":{"%b":{"tail":true}},"heartbeat_ms":60000}' % name.encode()
            connection.request("POST", "/v0/watch", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise NotMeasured(f"/v0/watch: {answer.status} {text[:200]!r}")
            streams.setdefault(name, []).append(msgspec.json.decode(text)["stream_url"])
    finally:
        connection.close()
    return [WatchedTopic(name, urls) for name, urls in streams.items()]


def measure(
    port: int,
    topics: Sequence[WatchedTopic],
    body: bytes,
    seconds: float,
    window: int = 1,
    warmup: float = 0.3,
    meter: Callable[[], float] = float,
) -> FanoutResult:
    """Append to the topics in turn, with at most `window` appends not delivered to all watchers."""
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(_FanoutClient(port, topics, body, window).run(seconds, warmup, meter))
    finally:
        gc.enable()


class _Watcher(asyncio.Protocol):
    __slots__ = ("_on_event", "_on_failure", "_rest", "appender", "seq", "transport")

    transport: asyncio.Transport

    def __init__(
        self,
        appender: _Appender,
        on_event: Callable[[_Watcher, int, int], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self.appender = appender
        self.seq = -1
        """The last seq received; -1 before the first event."""
        self._on_event = on_event
        self._on_failure = on_failure
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not data.endswith(b"}\n\n"):
            if self.seq < 0 and not data.startswith(_GOOD[: len(data)]):
                self._on_failure(f"a stream was answered with {data[:300]!r}")
            self._rest = data
            return
        self._rest = b""
        at = data.rfind(_HEAD)
        if at < 0:
            self._on_failure(f"a stream ended a read with {data[-300:]!r}")
        else:
            self._on_event(self, int(data[at + len(_HEAD) : -3]), len(data))

    def connection_lost(self, error: Exception | None) -> None:
        self._on_failure("a stream ended")


class _Appender(asyncio.Protocol):
    """A topic, and the connection that appends to it."""

    transport: asyncio.Transport

    def __init__(self, topic: WatchedTopic, body: bytes, on_failure: Callable[[str], None]) -> None:
        self.topic = topic
        self.head = 0
        self.sent_at: dict[int, float] = {}
        self.missing: dict[int, int] = {}
        self._on_failure = on_failure
        head = f"POST /v0/topics/{topic.name} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        self._request = b"%bcontent-length: %d\r\n\r\n%b" % (head.encode(), len(body), body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.count(b"HTTP/1.1 ") != data.count(b"HTTP/1.1 20"):
            self._on_failure(f"an append was answered with {data[:300]!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self._on_failure("a connection of appends ended")

    def append(self) -> None:
        self.head += 1
        self.missing[self.head] = len(self.topic.streams)
        self.sent_at[self.head] = time.perf_counter()
        self.transport.write(self._request)


class _FanoutClient:
    def __init__(self, port: int, topics: Sequence[WatchedTopic], body: bytes, window: int) -> None:
        self._port = port
        self._body = body
        self._window = window
        self._topics = topics
        self._appenders: list[_Appender] = []
        self._transports: list[asyncio.Transport] = []
        self._unready = sum(len(topic.streams) for topic in topics)
        self._turn = 0
        self._is_over = False
        self._begin()

    def _begin(self) -> None:
        """Reset the counts."""
        self._count = self._bytes = 0
        self._each_us, self._last_us = array("d"), array("d")

    async def run(self, seconds: float, warmup: float, meter: Callable[[], float]) -> FanoutResult:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        try:
            await self._connect()
            await self._wait(self._ready, TIMEOUT_SECONDS)
            for _ in range(self._window):
                self._append()
            await self._wait(self._failure, warmup)
            metered, started = meter(), time.perf_counter()
            self._begin()
            await self._wait(self._failure, seconds)
            while not self._last_us and time.perf_counter() - started < TIMEOUT_SECONDS:
                await self._wait(self._failure, seconds)
            took = time.perf_counter() - started
            metered = meter() - metered
            if not self._last_us:
                raise NotMeasured("no append was delivered to all watchers in time")
            each, last = percentiles(self._each_us), percentiles(self._last_us)
            return FanoutResult(took, self._count, self._bytes, metered, each, last)
        finally:
            self._is_over = True
            for transport in self._transports:
                transport.abort()

    async def _wait(self, future: asyncio.Future[None], seconds: float) -> None:
        """Wait until the future is done or the time has passed; raise a failure."""
        await asyncio.wait({future, self._failure}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        if future is self._ready and not future.done():
            raise NotMeasured(f"{self._unready} streams sent no event in time")

    async def _connect(self) -> None:
        opening = []
        for topic in self._topics:
            appender = _Appender(topic, self._body, self._fail)
            self._appenders.append(appender)
            for stream in topic.streams:
                opening.append(self._open(appender, stream))
                if len(opening) == CONNECTING_AT_ONCE:
                    await asyncio.gather(*opening)
                    opening.clear()
        await asyncio.gather(*opening)
        # Last, because a server does not wait long for the first request of a connection.
        for appender in self._appenders:
            await self._loop.create_connection(partial(_itself, appender), "127.0.0.1", self._port)
            self._transports.append(appender.transport)

    async def _open(self, appender: _Appender, stream: str) -> None:
        watcher = _Watcher(appender, self._on_event, self._fail)
        await self._loop.create_connection(partial(_itself, watcher), "127.0.0.1", self._port)
        self._transports.append(watcher.transport)
        watcher.transport.write(b"GET %b HTTP/1.1\r\nhost: bench\r\n\r\n" % stream.encode())

    def _fail(self, why: str) -> None:
        if not self._is_over and not self._failure.done():
            self._failure.set_exception(NotMeasured(why))

    # -- appends and deliveries ----------------------------------------------------------------------------

    def _append(self) -> None:
        self._appenders[self._turn % len(self._appenders)].append()
        self._turn += 1

    def _on_event(self, watcher: _Watcher, head: int, size: int) -> None:
        now = time.perf_counter()
        appender, before = watcher.appender, watcher.seq
        watcher.seq = head
        if before < 0:
            self._is_ready(appender, head)
            return
        self._bytes += size
        for seq in range(before + 1, head + 1):
            took_us = (now - appender.sent_at[seq]) * 1e6
            self._count += 1
            self._each_us.append(took_us)
            appender.missing[seq] -= 1
            if not appender.missing[seq]:
                self._last_us.append(took_us)
                del appender.missing[seq], appender.sent_at[seq]
                self._append()

    def _is_ready(self, appender: _Appender, head: int) -> None:
        appender.head = head
        self._unready -= 1
        if not self._unready:
            self._ready.set_result(None)


def _itself(value: Itself) -> Itself:
    """Return the argument, for use as a protocol factory with `partial`."""
    return value


def percentiles(values: array[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile.

    >>> percentiles(array("d", range(101)))
    (50.0, 99.0)
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2], ordered[(len(ordered) - 1) * 99 // 100]
