"""The batcher: puts the groups of many requests into one blob, and limits what waits.

B1  A blob is closed when it has `batch_bytes`, when a commit can take no more parts, or `batch_seconds` after
    its first group joined; `urgent_batch_seconds` after a group of the low-latency class.
B2  At most `blobs_max` blobs are on their way. While there are so many, the open blob keeps growing up to
    B1 and full ones wait, so a slow store makes larger objects and not more of them.
B3  Groups of one topic join in the order of their requests, and its blobs are committed in their order.
B4  A group is refused when `pending_bytes` wait, or the oldest one has waited for `pending_seconds`: the
    store or the catalog is slower than the writers, and a longer queue would only delay all of them.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from shared.contract.errors import Refusal, shutting_down, throttled
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.broker.frames_v1 import Texts, data_bytes
from topicsd.broker.refusals import no_catalog, no_such_topic
from topicsd.broker.topic_table import TopicTable
from topicsd.broker.write.open_blob import AppendReply, Group, OpenBlob
from topicsd.catalog.shared.shared_catalog import PARTS_AT_ONCE, SharedTopic
from topicsd.log.frame import CHECKSUM_BYTES, HEADER_BYTES

LOOKUP_SECONDS: Final = 60.0
FRAME_BYTES_MIN: Final = HEADER_BYTES + CHECKSUM_BYTES


class BatchLimits(NamedTuple):
    batch_bytes: int = 8 << 20
    batch_seconds: float = 0.25
    urgent_batch_seconds: float = 0.05
    blobs_max: int = 4
    pending_bytes: int = 64 << 20
    pending_seconds: float = 30.0


class BatchCounters:
    """Totals of a batcher since its start."""

    __slots__ = ("blobs", "bytes_appended", "groups", "records", "refused")

    def __init__(self) -> None:
        self.blobs = self.bytes_appended = self.groups = self.records = self.refused = 0


class Committer(Protocol):
    @property
    def in_flight(self) -> int: ...

    def start(self, blob: OpenBlob, on_settled: Callable[[OpenBlob], object]) -> None:
        """Put and commit a blob, call the replies of its parts, then `on_settled`."""
        ...


class Batcher:
    def __init__(
        self, clock: Clock, loop: Loop, topics: TopicTable, committer: Committer, limits: BatchLimits
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._topics = topics
        self._committer = committer
        self._limits = limits
        self._open: OpenBlob | None = None
        self._timer: Any = None
        self._is_due = False
        self._full: deque[OpenBlob] = deque()
        self._ages: deque[OpenBlob] = deque()
        """The blobs that are not settled, oldest first; settled ones are removed from the front."""
        self._settled: set[OpenBlob] = set()
        self._lookups: dict[str, list[tuple[Group, AppendReply, float]]] = {}
        """Groups of topics that are being looked up, in their order (B3), and when they came."""
        self._is_closing = False
        self.pending_bytes = 0
        self.totals = BatchCounters()

    # -- groups

    def append(self, group: Group, reply: AppendReply) -> None:
        """Append the records of a group; `reply` gets `Appended` or a `Refusal`, once."""
        refusal = self._refuse()
        if refusal is not None:
            self.totals.refused += 1
            reply(refusal)
            return
        name = group.topic
        topic = self._topics.known(name)
        if name in self._lookups:
            self._lookups[name].append((group, reply, self._clock.monotonic()))
        elif topic is not None:
            self._join(group, topic, reply)
            return
        else:
            self._lookups[name] = [(group, reply, self._clock.monotonic())]
            self._topics.find(name)(partial(self._on_topic, name))
        self.pending_bytes += _frame_bytes(group)

    def _on_topic(self, name: str, topic: SharedTopic | OSError | None) -> None:
        now = self._clock.monotonic()
        for group, reply, came_at in self._lookups.pop(name):
            self.pending_bytes -= _frame_bytes(group)
            if now - came_at > LOOKUP_SECONDS:
                # The process was stopped: a repetition by the client may be recognised no longer.
                reply(throttled("the topic could not be looked up in time"))
            elif isinstance(topic, OSError):
                reply(no_catalog(topic))
            elif topic is None:
                reply(no_such_topic(name))
            elif self._is_closing:
                reply(shutting_down())
            else:
                self._join(group, topic, reply)

    def _refuse(self) -> Refusal | None:
        if self._is_closing:
            return shutting_down()
        if self.pending_bytes >= self._limits.pending_bytes:
            return throttled("the writes that wait for the object store fill the queue")
        if self._ages and self.pending_seconds >= self._limits.pending_seconds:
            return throttled("the oldest write has waited too long for the object store or the catalog")
        return None

    @property
    def pending_seconds(self) -> float:
        """The age of the oldest group that is not settled."""
        return self._clock.monotonic() - self._ages[0].opened_at if self._ages else 0.0

    def _join(self, group: Group, topic: SharedTopic, reply: AppendReply) -> None:
        incarnation = topic.incarnation
        if group.incarnation is not None and group.incarnation != incarnation:
            reply(no_such_topic(group.topic))
            return
        blob = self._open
        if blob is None:
            blob = self._open = OpenBlob(secrets.token_hex(12), self._clock.monotonic(), self._clock.now_ms())
            self._ages.append(blob)
            self._is_due = False
        size = blob.add(group, incarnation, reply)
        self.pending_bytes += size
        totals = self.totals
        totals.groups += 1
        totals.records += len(group.records)
        totals.bytes_appended += size
        limits = self._limits
        if blob.byte_length >= limits.batch_bytes or blob.part_count >= PARTS_AT_ONCE:
            self._close_blob()
        elif blob.part_count == 1 or group.is_urgent:
            self._set_timer(limits.urgent_batch_seconds if group.is_urgent else limits.batch_seconds)

    # -- blobs

    def _set_timer(self, seconds: float) -> None:
        """Close the blob in at most `seconds`; a timer that is set already may be earlier."""
        due = self._clock.monotonic() + seconds
        if self._timer is not None:
            if self._timer[0] <= due:
                return
            self._timer[1].cancel()
        self._timer = due, self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._is_due = True
        self._start_blobs()

    def _close_blob(self) -> None:
        blob = self._open
        assert blob is not None
        self._open = None
        self._is_due = False
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        self._full.append(blob)
        self._start_blobs()

    def _start_blobs(self) -> None:
        while self._committer.in_flight < self._limits.blobs_max:
            if not self._full:
                if self._open is not None and self._is_due:
                    self._close_blob()
                return
            self.totals.blobs += 1
            self._committer.start(self._full.popleft(), self._on_settled)

    def _on_settled(self, blob: OpenBlob) -> None:
        """Release the room of a blob whose replies were called."""
        self.pending_bytes -= blob.byte_length
        self._settled.add(blob)
        while self._ages and self._ages[0] in self._settled:
            self._settled.discard(self._ages.popleft())
        self._start_blobs()

    def close(self) -> None:
        """Refuse new groups, and start what is open. The committer settles what has joined."""
        self._is_closing = True
        if self._open is not None:
            self._close_blob()


def _frame_bytes(group: Group) -> int:
    """Return about how many bytes the records will have in a blob."""
    records = group.records
    size = len(records) * FRAME_BYTES_MIN + data_bytes(records)
    return size if isinstance(records, Texts) else size + sum(len(one.meta) for one in records)
