"""The ceiling of the log: frame, write once per turn of the event loop, share one sync.

It records the position of every record, so that the record could be read again, and omits everything else:
limits, keys, caps, durability classes, ceilings, atomic batches, recovery.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import xxhash

from topicsd.engine.requests import AppendRequest

_HEADER = struct.Struct("<IBBQQQHHI").pack
_CHECKSUM = struct.Struct("<Q").pack
_xxh3 = xxhash.xxh3_64_intdigest

FILE_BYTES = 256 << 20


class BareTopic:
    __slots__ = ("head", "lengths", "number", "offsets", "stamps")

    def __init__(self, number: int) -> None:
        self.number = number
        self.head = 0
        self.offsets, self.lengths, self.stamps = array("Q"), array("I"), array("Q")


class BareLog:
    def __init__(self, directory: str, is_durable: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._is_durable = is_durable
        self._topics: dict[str, BareTopic] = {}
        self._file_number = 0
        self._fd = -1
        self._offset = FILE_BYTES
        self._parts: list[bytes] = []
        self._size = 0
        self._replies: list[tuple[Callable[[Any], Any], int]] = []
        self._waiting: list[tuple[Callable[[Any], Any], int]] = []
        self._scheduled = self._syncing = False
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._sync_loop, daemon=True)
        self._thread.start()

    def append(self, name: str, request: AppendRequest, reply: Callable[[Any], Any]) -> None:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = BareTopic(len(self._topics))
        ts = time.time_ns() // 1_000_000
        seq = topic.head
        number = topic.number
        at = self._offset + self._size
        add = self._parts.append
        for record in request.records:
            seq += 1
            data = bytes(record.data)
            tag = record.tag.encode() if record.tag else b""
            length = 46 + len(tag) + len(data)
            body = _HEADER(length, 1, 1 if tag else 0, number, seq, ts, 0, len(tag), len(data)) + tag + data
            add(body)
            add(_CHECKSUM(_xxh3(memoryview(body)[4:])))
            topic.offsets.append(at)
            topic.lengths.append(length)
            topic.stamps.append(ts)
            at += length + 4
        self._size = at - self._offset
        topic.head = seq
        self._replies.append((reply, seq))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._commit)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        os.close(self._fd)

    def _commit(self) -> None:
        self._scheduled = False
        parts, self._parts = self._parts, []
        replies, self._replies = self._replies, []
        if self._offset + self._size > FILE_BYTES:
            self._next_file()
        os.pwrite(self._fd, b"".join(parts), self._offset)
        self._offset += self._size
        self._size = 0
        if self._is_durable:
            self._waiting += replies
            if not self._syncing:
                self._syncing = True
                self._wake.set()
        else:
            _answer(replies)

    def _next_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._file_number += 1
        path = os.path.join(self._directory, f"bare-{self._file_number}")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self._fd, 0, FILE_BYTES)
        self._offset = 0

    def _sync_loop(self) -> None:
        while True:
            # Without waiting writers, sync the written bytes every 50 ms, as the log does.
            self._wake.wait(None if self._is_durable else 0.05)
            self._wake.clear()
            if self._closing:
                return
            replies, self._waiting = self._waiting, []
            if self._fd >= 0:
                os.fdatasync(self._fd)
            if self._is_durable:
                self._loop.call_soon_threadsafe(self._synced, replies)

    def _synced(self, replies: list[tuple[Callable[[Any], Any], int]]) -> None:
        _answer(replies)
        if self._waiting:
            self._wake.set()
        else:
            self._syncing = False


def _answer(replies: list[tuple[Callable[[Any], Any], int]]) -> None:
    for reply, seq in replies:
        reply(seq)
