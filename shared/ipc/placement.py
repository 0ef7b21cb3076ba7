"""Placement: the shard of a topic, as a function of the topic id and the number of shards.

Rendezvous hashing: every shard gets a score for the id, and the highest score wins. No lookup service and no
shared table is needed. Growing from N to N+1 shards moves 1/(N+1) of the topics, all of them to the new
shard, because the scores of the other shards do not change. The cost is N hashes of 8 bytes; a placement is
computed once per connection or request, and N is the number of cores.

The score of shard s is `xxh3_64(id as 8 bytes little-endian, seed = s)`. The lowest shard wins among equal
scores. The vectors below are published: clients that compute the shard themselves must get the same values,
and a change of one of them strands the data of every existing directory.

>>> from shared.contract.names import topic_id
>>> for name in ("orders", "orders.eu", "jobs:mail", "a", "Z9", "metrics-2024", "x" * 255):
...     number = topic_id(name)
...     print(f"{name[:12]:12} {number:016x} {shard_of(number, 2)} {shard_of(number, 5)}")
orders       a88ccdc9fa4974fb 0 0
orders.eu    45199b9c79b0d24d 0 3
jobs:mail    5d5f1029cccde99b 0 3
a            e6c632b61e964e1f 1 1
Z9           2a7f6763e6831e9a 1 1
metrics-2024 0bd4ed2cdca9260f 1 1
xxxxxxxxxxxx 2be953982ac8bd9d 1 2
"""

from __future__ import annotations

import xxhash

_ID_END = 1 << 64


def shard_of(topic_id: int, shard_count: int) -> int:
    """Return the shard, from 0, that owns the topic with this id."""
    assert 0 <= topic_id < _ID_END
    assert shard_count >= 1
    id_bytes = topic_id.to_bytes(8, "little")
    owner = 0
    owner_score = -1
    for shard in range(shard_count):
        score = xxhash.xxh3_64_intdigest(id_bytes, shard)
        if score > owner_score:
            owner = shard
            owner_score = score
    return owner
