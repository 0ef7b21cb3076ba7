"""A page of this shard's topics in name order, for the front process that merges the shards.

Must not know: other shards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec

from topicsd.engine.shard_state import ShardState


class ListRequest(msgspec.Struct, array_like=True):
    """`after` is the last name of the page before, or empty."""

    prefix: str
    after: str
    limit: int


class ListedTopic(msgspec.Struct):
    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int


_decode = msgspec.msgpack.Decoder(ListRequest).decode
_encode = msgspec.msgpack.Encoder().encode


def list_topics(shard: ShardState, payload: bytes) -> bytes:
    request = _decode(payload)
    names = shard.sorted_names()
    at = bisect_right(names, request.after) if request.after else 0
    at = max(at, bisect_left(names, request.prefix))
    page: list[ListedTopic] = []
    while at < len(names) and names[at].startswith(request.prefix) and len(page) < request.limit:
        topic = shard.topics[names[at]]
        if topic.visible:
            page.append(
                ListedTopic(
                    topic.name,
                    topic.head,
                    topic.earliest_seq,
                    topic.live_count,
                    topic.live_bytes,
                    topic.is_durable,
                    shard.watch.effective_priority(topic),
                )
            )
        at += 1
    return _encode(page)
