"""A client of server-sent events, as strict as `raw_client.py`: every line must be valid.

Promises: `next` returns the next event; comments are counted and skipped.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, NamedTuple

from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import RawClient, request_bytes

EVENT_SECONDS: Final = 60.0

_FIELDS = ("id", "event", "data", "retry")


class Event(NamedTuple):
    name: str
    data: Any
    id: str


class EventReader:
    """A parser of events over any source of bytes."""

    def __init__(self) -> None:
        self.comments = 0

    def _read_until(self, mark: bytes) -> bytes:
        raise NotImplementedError

    def next(self) -> Event:
        """Return the next event; heartbeats alone do not count as an answer."""
        until = time.monotonic() + EVENT_SECONDS
        while True:
            assert time.monotonic() < until, f"no event within {EVENT_SECONDS:.0f} s, only comments"
            lines = self._read_until(b"\n\n").decode().split("\n")
            if not lines[0].startswith(":"):
                break
            self.comments += 1
        fields: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name in _FIELDS, line
            fields.setdefault(name, []).append(value)
        return Event(fields["event"][0], json.loads("\n".join(fields["data"])), fields.get("id", [""])[0])

    def heartbeat_id(self) -> str:
        """Return the id of the next heartbeat; no event may come before it."""
        lines = self._read_until(b"\n\n").decode().split("\n")
        assert lines[0].startswith(": hb "), lines
        assert lines[1].startswith("id: "), lines
        self.comments += 1
        return lines[1].removeprefix("id: ")

    def records(self, count: int) -> list[tuple[str, int]]:
        """Return the topics and seqs of the next `count` records; skip other events."""
        records: list[tuple[str, int]] = []
        while len(records) < count:
            event = self.next()
            if event.name == "record":
                records += [(event.data["topic"], record["$seq"]) for record in event.data["records"]]
        return records


class EventClient(EventReader, RawClient):
    """A client of one event stream over HTTP/1.1; `begin` keeps the response headers in `fields`."""

    def __init__(self, port: int, target: str, *fields: str, buffer_bytes: int | None = None) -> None:
        EventReader.__init__(self)
        RawClient.__init__(self, port, buffer_bytes=buffer_bytes)
        self.send(request_bytes("GET", target, None, *fields))

    def read_head(self) -> str:
        return self._read_until(b"\r\n\r\n").decode()

    def begin(self) -> EventClient:
        """Read the head and the first line of a stream."""
        status_line, *lines = self.read_head().split("\r\n")
        assert status_line == "HTTP/1.1 200 OK", (status_line, lines, self._unread)
        self.fields = dict(line.split(": ", 1) for line in lines)
        assert self._read_until(b"\n\n") == b"retry: 2000"
        return self

    def rest(self) -> list[Event]:
        """Return all remaining events; the server must end the connection after a whole one."""
        events = []
        while not self.is_at_end():
            events.append(self.next())
        return events

    def _read_until(self, mark: bytes) -> bytes:
        return RawClient._read_until(self, mark)


class H2Events(EventReader):
    """One of several event streams of an HTTP/2 client."""

    def __init__(self, client: H2Client, target: str, *fields: str) -> None:
        super().__init__()
        self._client = client
        self._at = 0
        self.stream_id = client.start("GET", target, None, *fields)
        assert self._read_until(b"\n\n") == b"retry: 2000"

    def _read_until(self, mark: bytes) -> bytes:
        while (end := self._client.received(self.stream_id).find(mark, self._at)) < 0:
            assert not self._client.is_at_end
            self._client.read_some()
        block = self._client.received(self.stream_id)[self._at : end]
        self._at = end + len(mark)
        return block
