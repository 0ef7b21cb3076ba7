"""A page of this shard's topics in name order; the supervisor merges those of all shards and of a broker.

Metrics need some cursors of each topic, and the age of the oldest job of a queue. Each may need a read of a
segment, so a page measures a bounded number of cursors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container
from functools import partial
from itertools import islice
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.topic_config import Durability, TopicPlacement, TopicType
from topicsd.engine.queue.job_age import measure_oldest_ready
from topicsd.engine.read.cursors import Lag, measure_lag
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import queue_counts


class ListRequest(msgspec.Struct, array_like=True):
    """A request for a page. `after` is the last name of the previous page, or empty."""

    prefix: str
    after: str
    limit: int


class ListedCursor(msgspec.Struct):
    cursor: str
    lag_records: int
    lag_bytes: int
    lag_seconds: float


class ListedTopic(msgspec.Struct):
    topic: str
    type: TopicType
    placement: TopicPlacement
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int | UnsetType = UNSET
    """Absent of shared topics, as `effective_priority` is."""
    durable: bool = True
    durability: Durability = "fsync"
    effective_priority: int | UnsetType = UNSET
    cursors: list[ListedCursor] | UnsetType = UNSET
    cursor_count: int | UnsetType = UNSET
    oldest_ready_seconds: float | UnsetType = UNSET
    """Age of the oldest ready job. Only queues have this field and those after it."""
    ready: int | UnsetType = UNSET
    in_flight: int | UnsetType = UNSET


decode_list_request: Final = msgspec.msgpack.Decoder(ListRequest).decode
encode_listed: Final = msgspec.msgpack.Encoder().encode


CURSORS_MAX: Final = 100
"""Cursors measured for one page."""


def list_topics(
    shard: ShardState, hidden: Container[str], payload: bytes, reply: Callable[[bytes], object]
) -> None:
    """Pass the page to `reply`, at once or after the disk reads that its measurements need.

    Topics in `hidden` are left out: another shard lists them.
    """
    request = decode_list_request(payload)
    names = shard.sorted_names()
    index = bisect_right(names, request.after) if request.after else 0
    index = max(index, bisect_left(names, request.prefix))
    page: list[ListedTopic] = []
    while index < len(names) and names[index].startswith(request.prefix) and len(page) < request.limit:
        topic = shard.topics[names[index]]
        if topic.visible and topic.name not in hidden:
            page.append(
                ListedTopic(
                    topic.name,
                    topic.config.type,
                    "local",
                    topic.head,
                    topic.earliest_seq,
                    topic.live_count,
                    topic.live_bytes,
                    topic.is_durable,
                    topic.config.durability,
                    shard.wake_queue.effective_priority(topic),
                )
            )
        index += 1
    _PageMeasurement(page, reply).run(shard)


class _PageMeasurement:
    """A page with measurements of cursors and jobs in progress."""

    def __init__(self, page: list[ListedTopic], reply: Callable[[bytes], object]) -> None:
        self._page = page
        self._reply = reply
        self._pending_count = 1

    def run(self, shard: ShardState) -> None:
        remaining = CURSORS_MAX
        for listed in self._page:
            topic = shard.topics[listed.topic]
            counts = queue_counts(topic, shard.clock.now_ms())
            if counts is not None:
                listed.ready, listed.in_flight = counts.ready, counts.in_flight
                self._pending_count += 1
                measure_oldest_ready(shard, topic, partial(self._on_age, listed))
            if not topic.cursors:
                continue
            listed.cursor_count, listed.cursors = len(topic.cursors), []
            for name in islice(sorted(topic.cursors), remaining):
                remaining -= 1
                self._pending_count += 1
                on_lag = partial(self._on_lag, listed.cursors, name)
                measure_lag(shard, topic, topic.cursors[name].from_seq, on_lag)
        self._finish_one()

    def _on_age(self, listed: ListedTopic, oldest_ready_ms: int) -> None:
        listed.oldest_ready_seconds = oldest_ready_ms / 1000
        self._finish_one()

    def _on_lag(self, cursors: list[ListedCursor], name: str, lag: Lag) -> None:
        cursors.append(ListedCursor(name, lag.records, lag.bytes, lag.ms / 1000))
        self._finish_one()

    def _finish_one(self) -> None:
        self._pending_count -= 1
        if not self._pending_count:
            self._reply(encode_listed(self._page))
