"""The ceiling of fan-out: the work of the ceiling of writes, and the event to each watcher.

The records of one turn of the event loop leave as one event, rendered once and followed by the caught-up
event: the bytes that the server would send. Cursors, sessions, slow readers and lost records are left out.
"""

from __future__ import annotations

import asyncio
import os
import time
from base64 import urlsafe_b64encode
from functools import partial

import msgspec
import uvloop

from loadtest.ceilings.bare_http import parser, rendered, serve
from loadtest.ceilings.write_ceiling import NAME_AT, WriteCeiling, appended
from loadtest.engine.bare_log import BareLog
from topicsd.engine.requests import AppendRequest, NewRecord

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\nretry: 2000\n\n"
STREAM = b"GET /v0/watch/"
MAKE = b"POST /v0/watch "


class _WatchRequest(msgspec.Struct):
    topics: dict[str, msgspec.Raw]


_decode = msgspec.json.Decoder(AppendRequest).decode
_decode_watch = msgspec.json.Decoder(_WatchRequest).decode


class Watchers:
    """The watchers of each topic, and the records not sent to them yet."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watchers: dict[str, set[asyncio.Transport]] = {}
        self._heads: dict[str, int] = {}
        self._fresh: dict[str, list[bytes]] = {}

    def enter(self, name: str, watcher: asyncio.Transport) -> None:
        self._watchers.setdefault(name, set()).add(watcher)
        watcher.write(HEAD + caught_up(name, self._heads.get(name, 0)))

    def leave(self, watcher: asyncio.Transport) -> None:
        for watchers in self._watchers.values():
            watchers.discard(watcher)

    def publish(self, name: str, records: list[NewRecord], last: int) -> None:
        self._heads[name] = last
        if name not in self._watchers:
            return
        if not self._fresh:
            self._loop.call_soon(self._send)
        ts = time.time_ns() // 1_000_000
        first = last - len(records) + 1
        self._fresh.setdefault(name, []).extend(
            b'{"$seq":%d,"$ts":%d,"data":%b}' % (seq, ts, bytes(record.data))
            for seq, record in enumerate(records, first)
        )

    def _send(self) -> None:
        fresh, self._fresh = self._fresh, {}
        for name, records in fresh.items():
            event = events(name, records, self._heads[name])
            for watcher in self._watchers[name]:
                watcher.write(event)


def _id(name: str, seq: int) -> bytes:
    return b"id: %b\n" % urlsafe_b64encode(b'{"%b":%d}' % (name.encode(), seq)).rstrip(b"=")


def caught_up(name: str, head: int) -> bytes:
    data = b'{"topic":"%b","head_seq":%d}' % (name.encode(), head)
    return b"%bevent: caught-up\ndata: %b\n\n" % (_id(name, head), data)


def events(name: str, records: list[bytes], head: int) -> bytes:
    data = b'{"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
        name.encode(),
        b",".join(records),
        head - len(records),
        head,
        head,
    )
    return b"%bevent: record\ndata: %b\n\n%b" % (_id(name, head), data, caught_up(name, head))


class FanoutCeiling(WriteCeiling):
    def __init__(self, log: BareLog, watchers: Watchers) -> None:
        super().__init__(log)
        self._watchers = watchers

    def take(self, data: bytes, body_at: int, end: int) -> None:
        if data.startswith(STREAM):
            name = data[len(STREAM) : data.find(b" ", len(STREAM))].decode()
            self._watchers.enter(name, self.transport)
        elif data.startswith(MAKE):
            (name,) = _decode_watch(data[body_at:end]).topics
            self.transport.write(rendered(b'{"stream_url":"/v0/watch/%b"}' % name.encode()))
        else:
            name = data[NAME_AT : data.find(b" ", NAME_AT)].decode()
            request = _decode(data[body_at:end])
            self._log.append(name, request, partial(self._appended, name, request.records))

    def _appended(self, name: str, records: list[NewRecord], last: int) -> None:
        self.transport.write(rendered(appended(name, last - len(records) + 1, last)))
        self._watchers.publish(name, records, last)

    def connection_lost(self, error: Exception | None) -> None:
        self._watchers.leave(self.transport)


async def main(port_file: str, directory: str) -> None:
    log, watchers = BareLog(directory, is_durable=False), Watchers()
    await serve(lambda: FanoutCeiling(log, watchers), port_file)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dir", default=os.environ.get("TOPICS_DATA_DIR"), help="the directory of the log")
    given = options.parse_args()
    os.makedirs(given.dir, exist_ok=True)
    uvloop.run(main(given.port_file, given.dir))
