"""The idempotency keys of the old shards, divided among the new ones.

A key with a known topic goes to the shard of this topic. One of an earlier version does not name its topic:
it goes to each new shard that has topics of its old shard, and copies that an earlier reshard made are
dropped. What has expired is dropped too, as at a start.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

import msgspec

from shared.ipc.placement import Placement
from topicsd.engine.checkpoint.snapshot_format import KeyGeneration
from topicsd.engine.write.idempotency import DIGEST_BYTES, GENERATIONS
from topicsd.offline.reshard.rest import RestedShard

_COLUMNS: Final = (
    ("digests", DIGEST_BYTES),
    ("records", DIGEST_BYTES),
    ("first_seqs", 8),
    ("counts", 4),
    ("used_ms", 8),
    ("topic_ids", 8),
)


def divided_keys(
    old: list[RestedShard], receivers: list[set[int]], placement: Placement, now_ms: int
) -> list[list[KeyGeneration]]:
    """Return the keys of each new shard, each key once, the generations in order of time.

    `receivers` has, for each old shard, the new shards that receive topics of it.
    """
    divided: list[list[KeyGeneration]] = [[] for _ in range(placement.shard_count)]
    seen: dict[tuple[int, int, int], set[bytes]] = {}
    generations = [(one, shard.number) for shard in old for one in shard.keys]
    generations.sort(key=lambda pair: (pair[0].window_ms, pair[0].number))
    owners: dict[int, Iterable[int]] = {}
    for one, number in generations:
        tenth_ms = max(1, one.window_ms // GENERATIONS)
        if now_ms - (one.number + 1) * tenth_ms > one.window_ms:
            continue
        owners[0] = receivers[number]
        for shard, indexes in _indexes_of(one, owners, placement).items():
            known = seen.setdefault((shard, one.window_ms, one.number), set())
            new = []
            for index in indexes:
                digest = one.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
                if digest not in known:
                    known.add(digest)
                    new.append(index)
            if new:
                divided[shard].append(_picked(one, new))
    return divided


def _indexes_of(
    one: KeyGeneration, owners: dict[int, Iterable[int]], placement: Placement
) -> dict[int, list[int]]:
    """Return the indexes of the keys of each new shard; `owners` caches the shards by topic id."""
    count = len(one.digests) // DIGEST_BYTES
    indexes: dict[int, list[int]] = {}
    for index, topic_id in enumerate(array("Q", one.topic_ids or bytes(8 * count))):
        shards = owners.get(topic_id)
        if shards is None:
            shards = owners[topic_id] = (placement.shard_of(topic_id),)
        for shard in shards:
            indexes.setdefault(shard, []).append(index)
    return indexes


def _picked(one: KeyGeneration, indexes: list[int]) -> KeyGeneration:
    """Return some keys of a generation."""
    if len(indexes) * DIGEST_BYTES == len(one.digests):
        return one
    columns = {}
    for field, width in _COLUMNS:
        column = getattr(one, field)
        columns[field] = (
            b"".join([column[at * width : (at + 1) * width] for at in indexes]) if column else b""
        )
    return msgspec.structs.replace(one, **columns)
