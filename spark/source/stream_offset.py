"""The offset of a stream as Spark stores it in a checkpoint: JSON, one text per position.

Spark compares offsets as texts. Keys are therefore sorted, and the offset contains nothing but the position
of the query::

    {"topics":{"orders":{"epoch":1024,"offset":24}},"version":1}

`offset` is the seq of the next record to read. The epoch distinguishes a topic from one that was
created under its name after its deletion, whose seqs begin again.

How to change the format: raise VERSION and read the versions before it; a checkpoint lives as long as its
query.

    >>> encode({"b": TopicOffset(2, 7), "a": TopicOffset(1, 5)})["topics"]
    {'a': {'epoch': 1, 'offset': 5}, 'b': {'epoch': 2, 'offset': 7}}
    >>> decode(encode({"a": TopicOffset(1, 5)}))
    {'a': TopicOffset(epoch=1, offset=5)}
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spark.errors import SourceError

VERSION = 1


class TopicOffset(NamedTuple):
    epoch: int
    offset: int


TopicOffsets = dict[str, TopicOffset]


def encode(offsets: TopicOffsets) -> dict[str, Any]:
    topics = {name: {"epoch": epoch, "offset": offset} for name, (epoch, offset) in sorted(offsets.items())}
    return {"topics": topics, "version": VERSION}


def decode(offset: dict[str, Any]) -> TopicOffsets:
    if offset.get("version") != VERSION:
        raise SourceError(
            f"checkpoint: the version of its offsets must be {VERSION}, got {offset.get('version')}"
        )
    return {name: TopicOffset(one["epoch"], one["offset"]) for name, one in offset["topics"].items()}
