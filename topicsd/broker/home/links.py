"""Requests to brokers of other nodes, over HTTP, on threads: one connection for each request on its way.

A request is made once: a connection that ended may have carried it.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from topicsd.broker.home.home import TAKE_SECONDS
from topicsd.broker.home.homes import HomeAway
from topicsd.broker.steps import Pool, Wait

PATH: Final = "/v0/cluster/commit"
IDLE_SECONDS: Final = 5.0
"""A connection that was not used for longer is replaced: the other side may have closed it."""
THREADS: Final = 4
ANSWER_BYTES_MAX: Final = 8 << 20

_FIELDS: Final = {"content-type": "application/octet-stream"}
_OK: Final = 200


class _HomeConnection:
    __slots__ = ("http", "used_at")

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self.http = kind(parts.hostname or "", parts.port, timeout=TAKE_SECONDS)
        self.used_at = 0.0


class HomeLinks:
    def __init__(self, pool: Pool, monotonic: Callable[[], float]) -> None:
        self._pool = pool
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._idle: dict[str, list[_HomeConnection]] = {}
        """By address."""

    def ask(self, address: str, body: bytes) -> Wait:
        """Wait for the body of an answer of 200; after an OSError the request may have been received."""
        return self._pool.call(partial(self._post, address, body))

    def close(self) -> None:
        self._pool.stop()
        for connections in self._idle.values():
            for one in connections:
                one.http.close()

    def _post(self, address: str, body: bytes) -> bytes:
        connection = self._take(address)
        try:
            if connection.http.sock is None:
                connection.http.connect()
        except OSError as error:
            raise HomeAway(error.errno, f"{address}: {error}") from error
        try:
            connection.http.request("POST", PATH, body, _FIELDS)
            answer = connection.http.getresponse()
            text = answer.read(ANSWER_BYTES_MAX + 1)
        except HTTPException as error:
            connection.http.close()
            raise OSError(errno.EPROTO, f"{address}: {error!r}") from error
        except OSError:
            connection.http.close()
            raise
        if answer.status != _OK or len(text) > ANSWER_BYTES_MAX:
            connection.http.close()
            raise OSError(errno.EPROTO, f"{address} answers {answer.status}")
        connection.used_at = self._monotonic()
        with self._lock:
            self._idle.setdefault(address, []).append(connection)
        return text

    def _take(self, address: str) -> _HomeConnection:
        """Return an idle connection, or a new one."""
        oldest = self._monotonic() - IDLE_SECONDS
        with self._lock:
            while idle := self._idle.get(address):
                connection = idle.pop()
                if connection.used_at >= oldest:
                    return connection
                connection.http.close()
            self._idle.pop(address, None)
        return _HomeConnection(address)
